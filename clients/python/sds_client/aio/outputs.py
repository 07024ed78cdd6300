"""Outputs: write, read, follow, patch and delete."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, Unpack, overload

from sds_client.aio.base import Base, Items, each
from sds_client.deleting import delete_all
from sds_client.errors import ClientError
from sds_client.following import Follower
from sds_client.patching import Patched, patch_body, patch_some
from sds_client.paths import delete_query, outputs_path
from sds_client.reading import PAGE, Order, Reader, export
from sds_client.state import batches
from sds_client.types import (
    Changed,
    DeleteFilters,
    Deletion,
    Item,
    Output,
    ReadOptions,
)
from sds_client.writing import BATCH_BYTES, BATCH_ITEMS, Batch, Batcher, Pushed, Sender


class Outputs(Base):
    async def push(
        self,
        group: str,
        items: Items,
        *,
        batch_items: int = BATCH_ITEMS,
        batch_bytes: int = BATCH_BYTES,
        concurrency: int = 1,
        on_batch: Callable[[int, Item], None] | None = None,
    ) -> Pushed:
        """Write items to a group and return how many were created, updated and unchanged.

        Items are sent as they come, in batches, so any number of them needs little memory. All are durable
        when this returns. On `ClientError` the batches before the rejected one are stored; `loc` in its
        problems counts from the first item of all. When `items` raises, or an item has no JSON form, the items
        before it are stored first. More than one request at once (`concurrency`) is faster over a distance, but
        of two items with one key in different batches either may win.
        `on_batch` is called with the number of items and the response of each request, in order.

        A request that was stored but whose response was lost is sent again and counts as unchanged.
        """
        sender, batcher = Sender(self._transport, group, concurrency, on_batch), Batcher(batch_items, batch_bytes)
        try:
            async for batch in _batched(items, batcher):
                await sender.send(batch)
            pushed = await sender.finish()
        except BaseException as error:
            await sender.stop(error)
            if batcher.failure is not None:
                raise error from batcher.failure
            raise
        if batcher.failure is not None:
            raise batcher.failure
        return pushed

    async def outputs(
        self,
        group: str,
        *,
        cursor: int = 0,
        page_size: int = PAGE,
        order: Order = "asc",
        **options: Unpack[ReadOptions],
    ) -> AsyncGenerator[Output]:
        """Yield a group's items in the order in which they last changed, to the present end.

        The options are the API's filters, and `fields` to keep only some paths. `order="desc"` yields the newest
        change first, for looking rather than for syncing; `cursor` then means ids lower than it.
        """
        reader = Reader(self._transport, group, cursor, page_size, order, options)
        while (page := await reader.page()) is not None:
            for item in page:
                yield item

    @overload
    def follow(
        self,
        group: str,
        *,
        deleted: Literal[False] = False,
        cursor_file: str | os.PathLike[str] | None = None,
        live: bool = True,
        cursor: int = 0,
        page_size: int = PAGE,
        **options: Unpack[ReadOptions],
    ) -> AsyncGenerator[Output]: ...

    @overload
    def follow(
        self,
        group: str,
        *,
        deleted: Literal[True],
        cursor_file: str | os.PathLike[str] | None = None,
        live: bool = True,
        cursor: int = 0,
        page_size: int = PAGE,
        **options: Unpack[ReadOptions],
    ) -> AsyncGenerator[Output | Deletion]: ...

    async def follow(
        self,
        group: str,
        *,
        deleted: bool = False,
        cursor_file: str | os.PathLike[str] | None = None,
        live: bool = True,
        cursor: int = 0,
        page_size: int = PAGE,
        **options: Unpack[ReadOptions],
    ) -> AsyncGenerator[Any]:
        """Yield what is new or changed, and wait for more; `live=False` ends at the present end.

        With `deleted`, deletions are yielded too, in their place among the changes: `"deleted" in item`. A copy that
        stores each item under its `output_id` and removes the deleted ones equals the group. It raises `CursorExpired`
        when the service no longer knows every deletion since the cursor.

        The cursor is kept in `cursor_file`. It moves past an item only when the loop asks for the next one, so each
        item is seen *at least once*: after a kill, those of the last second or of the last page are yielded again.
        `cursor` is where to begin without a file.
        """
        start, owner = {"cursor": cursor}, None
        if cursor_file is not None:
            owner = (await self._transport.call("GET", "/v1/token")).json["organization_id"]
        with Follower(
            self._transport,
            group,
            cursor_file=cursor_file,
            owner=owner,
            live=live,
            position=start,
            page_size=page_size,
            deleted=deleted,
            options=options,
        ) as follower:
            while (page := await follower.page()) is not None:
                for item in page:
                    yield item
                    follower.taken(item)

    async def changes(
        self,
        group: str,
        *,
        position: Mapping[str, Any] | None = None,
        page_size: int = PAGE,
        **options: Unpack[ReadOptions],
    ) -> AsyncGenerator[tuple[list[Output | Deletion], dict[str, Any]]]:
        """Yield pages of what is new, changed or deleted, to the present end, each with the position after it.

        For a consumer that keeps the position itself, as JSON: given as `position`, reading continues there. A
        position belongs to its group and filters: with others, ValueError is raised. The last page is empty: its
        position is after the items that the filters left out.
        """
        start = {"cursor": 0} if position is None else position
        follower = Follower(self._transport, group, position=start, page_size=page_size, options=options)
        while (page := await follower.page()) is not None:
            yield page, follower.position
        yield [], follower.position

    async def ndjson(
        self, group: str, *, cursor: int = 0, deleted: bool = False, **options: Unpack[ReadOptions]
    ) -> AsyncGenerator[bytes]:
        """Yield a group's items as NDJSON text, some whole lines at a time: the fastest way to read everything.

        With `deleted`, deletions are among the lines, as for `follow`. After a lost connection it continues after the
        last line that was received.
        """
        blocks = export(self._transport, group, cursor, deleted, options)
        try:
            while block := await anext(blocks, b""):
                yield block
        finally:
            with suppress(RuntimeError, ClientError):  # after an interrupt or `close` it may still be ending by itself
                await blocks.aclose()

    async def get(self, group: str, output_id: str) -> Output | None:
        """Return one item, or None when there is none."""
        try:
            found: Output = (await self._transport.call("GET", outputs_path(group, output_id))).json
        except ClientError as error:
            if error.has_no("output_id"):
                return None
            raise
        return found

    async def versions(self, group: str, output_id: str) -> AsyncGenerator[Output]:
        """Yield the versions that an item had before, newest first; the group's `history_days` says how long."""
        cursor: int | None = 0
        while cursor is not None:
            query = {"limit": "100", "cursor": str(cursor)}
            page = (await self._transport.call("GET", f"{outputs_path(group, output_id)}/versions", query=query)).json
            for version in page["items"]:
                yield version
            cursor = page["metadata"]["next_cursor"]

    async def restore(self, group: str, output_id: str, id: int | None = None) -> Changed:
        """Write the newest version of a deleted item back, or the version with this id of any item.

        Raises ClientError when the version is not kept, and without `id` when the item is not deleted.
        """
        response = await self._transport.call(
            "POST",
            f"{outputs_path(group, output_id)}/restore",
            value={} if id is None else {"id": id},
            # Sent twice, it would find the item that it has restored.
            repeatable=id is not None,
        )
        result: Changed = response.json["items"][0]
        return result

    async def patch(
        self,
        group: str,
        output_id: str,
        *,
        is_approved: bool | None = None,
        tags: Mapping[str, Any] | None = None,
        if_id: int | None = None,
    ) -> Changed:
        """Change the approval or the tags of one item; the result has its new id.

        `tags` are merged into the item's; a tag that is None is removed. With `if_id` the item is changed only while
        it has this id, else `VersionConflict` is raised.
        """
        response = await self._transport.call(
            "PATCH",
            outputs_path(group, output_id),
            value=patch_body(is_approved, tags),
            headers=None if if_id is None else {"If-Match": f'"{if_id}"'},
            # Sent twice, it would conflict with its own change.
            repeatable=if_id is None,
        )
        result: Changed = response.json
        return result

    async def patch_many(self, group: str, patches: Iterable[Mapping[str, Any]]) -> Patched:
        """Change the approval or the tags of any number of items, up to 500 or 8 MiB of them in one request.

        An item is named by `output_id` or `key_hash`. One that does not exist, or whose id is not its `if_id`, is
        counted and not changed.
        """
        patched = Patched()
        for batch in batches(patches):
            await patch_some(self._transport, group, batch, patched)
        return patched

    async def delete(self, group: str, output_id: str) -> bool:
        """Delete one item; return False when there is none."""
        try:
            await self._transport.call("DELETE", outputs_path(group, output_id))
        except ClientError as error:
            if error.has_no("output_id"):
                return False
            raise
        return True

    async def delete_many(
        self,
        group: str,
        *,
        on_progress: Callable[[int], None] | None = None,
        dry_run: bool = False,
        **filters: Unpack[DeleteFilters],
    ) -> int:
        """Delete the items that match all filters, of which at least one is needed; return how many.

        What is written while it runs stays. With `dry_run` nothing is deleted, and the number of matches is returned.

        Large deletions take many requests: `on_progress` is called after each with the number deleted so far. When
        one fails for good, what was deleted stays deleted, and the same call deletes the rest.
        """
        query = delete_query(filters)
        return await delete_all(self._transport, outputs_path(group), query, on_progress, dry_run=dry_run)


async def _batched(items: Items, batcher: Batcher) -> AsyncGenerator[Batch | None]:
    """Yield the items in batches; if they end with an error, it is kept in the batcher."""
    try:
        async for item in each(items):
            if (full := batcher.add(item)) is not None:
                yield full
    except Exception as error:
        batcher.failure = error
    yield batcher.rest()
