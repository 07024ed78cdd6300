"""The client for async code."""

from __future__ import annotations

from sds_client.aio.outputs import Outputs
from sds_client.aio.sessions import Sessions


class AsyncClient(Outputs, Sessions):
    """The service at `url`, for the organization of `token`; without them, what SDS_URL and SDS_TOKEN say.

    `cacert`, else SDS_CACERT, names a file with the certificates that alone are trusted.

    Every request that may be sent twice without harm is sent again when the service is busy (408, 429, 502, 503, 504)
    or the connection is lost, for up to `patience` seconds after the first failure, with growing pauses and after the
    wait that the service asks for. `add_reviews`, `add_webhook` and patches with `if_id` are sent again only when they
    were surely not stored. Other failures raise `ClientError`. `timeout` is how many seconds the service may be silent.
    `on_wait` is called before each pause; an exception that it raises ends the request.

    >>> async def titles(url, token):
    ...     async with AsyncClient(url, token) as client:
    ...         await client.push("lamps", [
    ...             {"source_url": "https://shop.example/1", "root_job_id": "monday", "data": {"title": "Oak"}},
    ...         ])
    ...         return [item["data"]["title"] async for item in client.outputs("lamps")]
    >>> asyncio.run(titles(url, token))
    ['Oak']
    """
