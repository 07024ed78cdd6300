"""Outputs: write, read, follow, patch and delete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, Unpack, overload

from sds_client.following import Follower
from sds_client.patching import Patched
from sds_client.reading import PAGE, Order, Reader
from sds_client.sync.waiting import Waiting
from sds_client.types import DeleteFilters, Deletion, Item, Output, PatchResult, ReadOptions
from sds_client.writing import BATCH_BYTES, BATCH_ITEMS, Batcher, Pushed, Sender


class Outputs(Waiting):
    def push(
        self,
        group: str,
        items: Iterable[Mapping[str, Any]],
        *,
        batch_items: int = BATCH_ITEMS,
        batch_bytes: int = BATCH_BYTES,
        concurrency: int = 1,
        on_batch: Callable[[int, Item], None] | None = None,
    ) -> Pushed:
        """Write items to a group; see `AsyncClient.push`. The iterable runs in the caller's thread."""
        batcher = Batcher(batch_items, batch_bytes)
        sender = Sender(self._client._transport, group, concurrency, on_batch)
        try:
            for item in items:
                if (full := batcher.add(item)) is not None:
                    self._wait(sender.send(full))
            self._wait(sender.send(batcher.rest()))
            return self._wait(sender.finish())
        finally:
            self._wait(sender.stop())

    def outputs(
        self,
        group: str,
        *,
        cursor: int = 0,
        page_size: int = PAGE,
        order: Order = "asc",
        **options: Unpack[ReadOptions],
    ) -> Iterator[Output]:
        """Yield a group's items; see `AsyncClient.outputs`."""
        reader = Reader(self._client._transport, group, cursor, page_size, order, options)
        while (page := self._wait(reader.page())) is not None:
            yield from page

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
    ) -> Iterator[Output]: ...

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
    ) -> Iterator[Output | Deletion]: ...

    def follow(
        self,
        group: str,
        *,
        deleted: bool = False,
        cursor_file: str | os.PathLike[str] | None = None,
        live: bool = True,
        cursor: int = 0,
        page_size: int = PAGE,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Any]:
        """Yield what is new, changed or deleted, each at least once; see `AsyncClient.follow`."""
        transport = self._client._transport
        with Follower(transport, group, cursor_file, live, cursor, page_size, deleted, options) as follower:
            while (page := self._wait(follower.page())) is not None:
                for item in page:
                    yield item
                    follower.taken(item)

    def ndjson(self, group: str, *, cursor: int = 0, **options: Unpack[ReadOptions]) -> Iterator[bytes]:
        """Yield a group's items as NDJSON text; see `AsyncClient.ndjson`."""
        blocks = self._client.ndjson(group, cursor=cursor, **options)

        async def following() -> bytes:
            return await anext(blocks, b"")

        try:
            while block := self._wait(following()):
                yield block
        finally:
            with suppress(RuntimeError):  # after an interrupt it may still be ending by itself
                self._wait(blocks.aclose())

    def get(self, group: str, output_id: str) -> Output | None:
        """Return one item, or None when there is none."""
        return self._wait(self._client.get(group, output_id))

    def patch(
        self,
        group: str,
        output_id: str,
        *,
        is_approved: bool | None = None,
        tags: Mapping[str, Any] | None = None,
        if_id: int | None = None,
    ) -> PatchResult:
        """Change the approval or the tags of one item; see `AsyncClient.patch`."""
        return self._wait(self._client.patch(group, output_id, is_approved=is_approved, tags=tags, if_id=if_id))

    def patch_many(self, group: str, patches: Iterable[Mapping[str, Any]]) -> Patched:
        """Change the approval or the tags of any number of items; see `AsyncClient.patch_many`."""
        return self._wait(self._client.patch_many(group, patches))

    def delete(self, group: str, output_id: str) -> bool:
        """Delete one item; return False when there is none."""
        return self._wait(self._client.delete(group, output_id))

    def delete_many(
        self, group: str, *, on_progress: Callable[[int], None] | None = None, **filters: Unpack[DeleteFilters]
    ) -> int:
        """Delete the items that match all filters; see `AsyncClient.delete_many`."""
        return self._wait(self._client.delete_many(group, on_progress=on_progress, **filters))
