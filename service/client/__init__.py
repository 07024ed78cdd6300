"""A client of the Scraping Data Service: `AsyncClient`, and `Client` for code that is not async.

It needs aiohttp and none of the server's other packages.
"""

from service.client.aio import AsyncClient
from service.client.errors import ClientError, CursorExpired, VersionConflict
from service.client.patching import Patched
from service.client.sync import Client
from service.client.types import Deletion, Output, OutputInput, OutputPatch
from service.client.writing import Pushed

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "CursorExpired",
    "Deletion",
    "Output",
    "OutputInput",
    "OutputPatch",
    "Patched",
    "Pushed",
    "VersionConflict",
]
