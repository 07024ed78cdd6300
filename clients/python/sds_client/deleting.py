"""Delete in as many requests as it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sds_client.transport import Transport


async def delete_all(
    transport: Transport,
    path: str,
    query: Mapping[str, str | list[str]],
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Repeat a DELETE while the service reports that there are more; return how many records it deleted.

    A request that was carried out but whose response was lost is sent again and counts nothing.
    """
    deleted, more = 0, True
    while more:
        response = await transport.call("DELETE", path, query=query)
        deleted += response.json["deleted"]
        more = response.json.get("more", False)
        if on_progress is not None:
            on_progress(deleted)
    return deleted
