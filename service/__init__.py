"""The Scraping Data Service: cookies, local storage, outputs and reviews over HTTP."""

__version__ = "1.0.0"
