"""Read outputs: page by page, or as one stream of NDJSON lines."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

from sds_client.errors import ClientError
from sds_client.paths import outputs_path, read_query, walk_query
from sds_client.transport import LOST, Transport, not_json
from sds_client.types import Output

PAGE = 500
# A filter that selects little sends nothing for as long as the service searches.
_SEARCH_SECONDS = 600.0
Order = Literal["asc", "desc"]


class Reader:
    """Reads a group page by page, to the present end."""

    def __init__(
        self,
        transport: Transport,
        group: str,
        cursor: int,
        page_size: int,
        order: Order,
        options: Mapping[str, Any],
    ) -> None:
        self._transport, self._path = transport, outputs_path(group)
        self.query = {**read_query(options), "limit": str(page_size)}
        if order == "desc":
            self.query["order"] = "desc"
        if cursor:
            self.query["cursor"] = str(cursor)
        self._at_end = False

    async def page(self) -> list[Output] | None:
        """Return the next page, which may be empty before the end; None at the end."""
        if self._at_end:
            return None
        response = await self._transport.call("GET", self._path, query=self.query)
        metadata = response.json["metadata"]
        self._at_end = metadata["next_cursor"] is None
        self.query |= {"cursor": str(metadata["next_cursor"]), **walk_query(metadata)}
        items: list[Output] = response.json["items"]
        return items

    async def is_at_end(self) -> bool:
        """Return whether no item comes any more."""
        while (items := await self.page()) is not None:
            if items:
                return False
        return True


async def export(
    transport: Transport, group: str, cursor: int, deleted: bool, options: Mapping[str, Any]
) -> AsyncGenerator[bytes]:
    """Yield NDJSON from a cursor to the present end, some whole lines at a time.

    After a lost connection it continues after the last line that was received. Behind some proxies a lost connection
    looks like the end of a response that has no length, and only short ones have one. So after any other it asks
    again, up to the end that the second response has named, or until nothing comes and a page says so too.
    """
    path, query = f"{outputs_path(group)}/export", {**read_query(options), "format": "ndjson"}
    wait = _SEARCH_SECONDS if query.keys() - {"format", "fields"} else 0.0
    if deleted:
        query["deleted"] = "true"
    retry, ended, end = transport.retry(), False, 0
    while True:
        if cursor:
            query["cursor"] = str(cursor)
        try:
            async with transport.open("GET", path, query=query, wait=wait) as response:
                if response.content_type == "text/html":
                    raise not_json()
                rest, before, reached = b"", cursor, response.headers.get("X-Cursor")
                if not cursor and deleted and reached:  # what was forgotten before the first response is no loss
                    query["walk"] = str(reached)
                if ended and not end:
                    end = int(reached or 0)
                async for chunk in response.content.iter_any():
                    received, _, rest = (rest + chunk).rpartition(b"\n")
                    lines = [line for line in received.split(b"\n") if line]  # an empty line is a heartbeat
                    if lines:
                        cursor = json.loads(lines[-1])["id"]
                        yield b"\n".join(lines) + b"\n"
                        retry.progress()  # the consumer's own time is not the service's
                if rest:
                    raise ConnectionError("the last line is cut off")
                if "Content-Length" in response.headers or (end and cursor >= end):
                    return
                ended = True
            if cursor == before:
                reader = Reader(transport, group, cursor, 1, "asc", options)
                reader.query |= {name: query[name] for name in ("deleted", "walk") if name in query}
                if await reader.is_at_end():
                    return
                raise ConnectionError("the response ended before its first line")
        except (ClientError, *LOST) as error:
            await retry.pause(error)
