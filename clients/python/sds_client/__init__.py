"""A client of the Scraping Data Service: `AsyncClient`, and `Client` for code that is not async.

It needs only aiohttp.
"""

from sds_client.aio import AsyncClient
from sds_client.errors import AccessError, ClientError, CursorExpired, NoSession, SessionLost, VersionConflict
from sds_client.patching import Patched
from sds_client.sync import Client
from sds_client.transport import Waiting
from sds_client.types import Deletion, Output, OutputInput, OutputPatch
from sds_client.version import __version__
from sds_client.writing import Pushed

__all__ = [
    "AccessError",
    "AsyncClient",
    "Client",
    "ClientError",
    "CursorExpired",
    "Deletion",
    "NoSession",
    "Output",
    "OutputInput",
    "OutputPatch",
    "Patched",
    "Pushed",
    "SessionLost",
    "VersionConflict",
    "Waiting",
    "__version__",
]
