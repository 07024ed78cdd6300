"""Delete in as many requests as it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sds_client.transport import Transport


async def delete_all(
    transport: Transport,
    path: str,
    query: Mapping[str, str | list[str]],
    on_progress: Callable[[int], None] | None = None,
    *,
    dry_run: bool = False,
) -> int:
    """Repeat a DELETE with the cursor of each response until the end; return how many records it deleted.

    With `dry_run` nothing is deleted, and the number that would be is returned. A request that was carried out but
    whose response was lost is sent again and counts nothing.
    """
    total: int = 0
    query = {**query, "dry_run": "true"} if dry_run else query
    cursor: str | None = None
    while True:
        page = query if cursor is None else {**query, "cursor": cursor}
        response = (await transport.call("DELETE", path, query=page)).json
        total += response["matched" if dry_run else "deleted"]
        if on_progress is not None:
            on_progress(total)
        if not response.get("more", False):
            return total
        cursor = response.get("cursor")
