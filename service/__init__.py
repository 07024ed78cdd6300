"""The Scraping Data Service: cookies, local storage, outputs and reviews over HTTP."""

__version__ = "0.1.0"
