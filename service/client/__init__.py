"""A client of the Scraping Data Service: `AsyncClient`, and `Client` for code that is not async.

It needs aiohttp and nothing else of what the server needs.
"""

from service.client.aio import AsyncClient
from service.client.errors import ClientError
from service.client.outputs import Pushed
from service.client.sync import Client

__all__ = ["AsyncClient", "Client", "ClientError", "Pushed"]
