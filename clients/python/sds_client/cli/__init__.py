"""The client's command line."""
