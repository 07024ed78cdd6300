"""The version of the client: that of the service it was released with."""

__version__ = "1.0.0"
