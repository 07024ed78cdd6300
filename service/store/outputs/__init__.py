"""The outputs of a group: reading, writing, patching and deleting them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from service.settings import Settings
from service.store.capacity import Capacity
from service.store.clock import now
from service.store.connection import DURABLE, Collection, Database, server_time
from service.store.contract import stored, without_time_limit
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.jobs import Jobs
from service.store.outputs.commit import MAX_BYTES
from service.store.outputs.comparing import Comparing, ComparingCache
from service.store.outputs.deletion import Deletion, Place
from service.store.outputs.documents import Page
from service.store.outputs.encode import Encoder, Put, Restored
from service.store.outputs.ids import Ids
from service.store.outputs.job_changes import JobChanges
from service.store.outputs.live import Form, LivePages, Reader
from service.store.outputs.pages import Reading
from service.store.outputs.plan import Delete, Patch, Result
from service.store.outputs.query import JUDGED, Query
from service.store.outputs.recovery import Recovery
from service.store.outputs.write_queue import WriteQueues
from service.store.watch import Watch

try:
    from service.store.outputs import one_pass
except ImportError:  # it was installed without a compiler
    one_pass = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from service.store.outputs.one_pass import OnePass

__all__ = ["Outputs", "Page", "Patch", "Place", "Query"]

# Far more ids than any group can have used since a backup was made.
RESTORED_GAP = 1_000_000_000


# How often `clock` asks whether a group's batches are over.
_CLOCK_SECONDS = 0.02
_PAUSED_MS = 1000


class Outputs(Reading):
    """Reads and writes the outputs of a group."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        comparing: ComparingCache,
        indexes: Indexes,
        watch: Watch,
        capacity: Capacity,
        settings: Settings,
    ) -> None:
        self._groups: Collection = database.get_collection("groups", write_concern=DURABLE)
        self._outputs: Collection = database.get_collection("outputs", write_concern=DURABLE)
        self._max_item_bytes, self._max_depth = settings.max_item_bytes, settings.max_depth
        self._one_pass = one_pass if settings.one_pass else None
        self.ids = Ids(database, settings.lease_seconds, settings.mongo_timeout, jobs.collect)
        super().__init__(database, self.ids, watch, indexes, capacity, settings)
        self.recovery = Recovery(database, self.ids, indexes, settings.mongo_timeout)
        self.write_queues = WriteQueues(database, self.ids, self.recovery, jobs, comparing, settings)
        self.deletion = Deletion(self, self.write_queues)
        self._comparing = comparing
        self.job_changes = JobChanges(database, self.ids, comparing, indexes)
        self.live_pages = LivePages(self, watch, settings.mongo_timeout)

    def live_page(self, group: Group, query: Query, form: Form) -> AbstractContextManager[Reader]:
        """Return a live reader of a query; all readers of one query share what is read and rendered."""
        self._indexes.require("outputs", "groups")
        return self.live_pages.reader(group, query, form)

    # -- writing ------------------------------------------------------------------------------

    @property
    def encoder_name(self) -> str:
        """Which encoder is used: `one_pass`, or `python` where that is not installed or turned off."""
        return "python" if self._one_pass is None else "one_pass"

    @property
    def handed_back(self) -> int:
        """How many items the one-pass encoder has left to the one in Python."""
        return 0 if self._one_pass is None else self._one_pass.handed_back()

    async def encoder(self, group: Group) -> Encoder | OnePass:
        """Return what encodes the items of one body for `write`, validated ones or their texts. Raises ItemTooLarge."""
        encoder = Encoder(group, self._max_item_bytes, await self._comparing.of(group))
        return encoder if self._one_pass is None else self._one_pass.OnePass(encoder, self._max_depth)

    async def write(self, group: Group, items: list[Put]) -> list[Result]:
        """Create, update or leave unchanged each item by its key; return the results in order.

        Returns when all of it is durable. The last of several items with one key wins.
        """
        return await self._apply(group, [(item.output_id, item) for item in items])

    async def patch(self, group: Group, patches: list[Patch]) -> list[Result]:
        """Change approvals and tags; return the results in order.

        A result is `updated`, `unchanged`, `not_found`, `conflict` (an id not in `if_ids`) or
        `too_large`. The last of several patches of one item wins.
        """
        results: dict[tuple[str, str], Result] = {}
        last = {(patch.by, patch.value): patch for patch in patches}
        for part in _parts(group, await self._measured(group, list(last.values()))):
            done = await self._apply(group, list(part.items()))
            results |= {(patch.by, patch.value): result for patch, result in zip(part.values(), done, strict=True)}
        return [results[patch.by, patch.value] for patch in patches]

    @stored
    async def _measured(self, group: Group, patches: list[Patch]) -> list[Patch]:
        """Return the patches with the bytes of the tags that they change: a round takes as many as it has room for."""
        sizes = dict.fromkeys((_output_id(group, patch) for patch in patches if patch.tags is not None), 0)
        if not sizes:
            return patches
        where, fields = {**group.owner, "_id": {"$in": list(sizes)}}, {"size": {"$bsonSize": {"tags": "$tags"}}}
        async for found in self._outputs.find(where, fields, hint="_id_", batch_size=len(sizes) + 1):
            sizes[found["_id"]] = found["size"]
        return [replace(patch, stored_bytes=sizes.get(_output_id(group, patch), 0)) for patch in patches]

    async def restore(self, group: Group, output_id: str, id: int | None) -> Result | None:
        """Write an earlier version of an item as a change: the newest one of a deleted item, or that with an id.

        Return the result, `conflict` where the item has changed meanwhile; None if the version is not kept. Raises
        ItemExists for a live item without an id.
        """
        version, present_id = await self.version(group, output_id, id)
        if version is None:
            return None
        comparing = await self._comparing.of(group)
        put = await asyncio.to_thread(self._restored, group, version, present_id, comparing)
        return (await self.write(group, [put]))[0]

    def _restored(self, group: Group, version: dict[str, Any], present_id: int | None, comparing: Comparing) -> Put:
        judged = {name: version[name] for name in JUDGED if name in version}
        # It is seen now: retention must not delete it again at once.
        item = {name: value for name, value in version.items() if name != "last_scraped_date"}
        put = Encoder(group, self._max_item_bytes, comparing)(item)
        return msgspec.structs.replace(put, restored=Restored(present_id, judged))

    async def delete(self, group: Group, output_id: str, if_ids: frozenset[int] | None = None) -> Result:
        """Delete one item: `updated`, `not_found` or `conflict`."""
        (result,) = await self._apply(group, [(output_id, Delete(if_ids))])
        return result

    async def _apply(self, group: Group, changes: list[tuple[str, Any]]) -> list[Result]:
        self._indexes.require("outputs", "groups")
        results = await self.write_queues.apply(group, dict(changes))
        return [results[output_id] for output_id, _ in changes]

    @stored
    @without_time_limit
    async def set_clocks_back(self) -> int:
        """Repair groups whose dates are in the future because a database clock was ahead; return how many.

        Items dated later than now get the present date: they stay in order, all being the newest.
        """
        present = min(await server_time(self._database), now())
        groups, ahead = 0, present + timedelta(minutes=1)
        async for found in self._groups.find({"now": {"$exists": True}}, ["organization_id", "group_id", "now"]):
            owner = Group.of(found).owner
            late = {**owner, "update_date": {"$gt": ahead}}
            # Or it was interrupted, after the clock of the group was set back.
            if found["now"] <= ahead and await self._outputs.find_one(late, ["_id"], hint="updated") is None:
                continue
            # Not while a batch is in flight: it has its date already. Later batches are dated now.
            earlier = {"last_change": present, "due": present}
            set_back = {"$set": {"now": present}, "$min": earlier, "$unset": {"paused": ""}}
            while (group := await self._groups.find_one_and_update({**owner, "open": []}, set_back)) is None:
                # The batches of dead writers have a lease of the wrong clock.
                lease = {"$add": ["$$NOW", int(1000 * self.ids.lease_seconds)]}
                deadline = {"deadline": {"$min": ["$$this.deadline", lease]}}
                batches = {"$map": {"input": "$open", "in": {"$mergeObjects": ["$$this", deadline]}}}
                paused = {"$add": ["$$NOW", _PAUSED_MS]}
                await self._groups.update_one(owner, [{"$set": {"paused": paused, "open": batches}}])
                await self.recovery.reap()
                await asyncio.sleep(_CLOCK_SECONDS)
            late = {**owner, "update_date": {"$gt": present}}
            first = await self._outputs.find_one(late, ["id"], sort=[("update_date", 1), ("id", 1)], hint="updated")
            if first is not None:
                # All from there on: items that were written after an attempt that was interrupted stay the newest.
                rest = {**owner, "id": {"$gte": first["id"], "$lt": group["next"]}, "update_date": {"$exists": True}}
                await self._outputs.update_many(rest, {"$set": {"update_date": present}}, hint="id")
            groups += 1
        return groups

    @stored
    @without_time_limit
    async def skip_ids(self) -> int:
        """Raise every group's next id after a backup was restored; return how many groups there are."""
        done = await self._groups.update_many({"next": {"$exists": True}}, {"$inc": {"next": RESTORED_GAP}})
        return done.matched_count


def _parts(group: Group, patches: Iterable[Patch]) -> Iterator[dict[str, Patch]]:
    """Yield the patches by output_id in as few parts as possible: each part takes a round, or two.

    An item that is named in both ways gets both patches, one after the other.
    """
    part: dict[str, Patch] = {}
    size = 0
    for patch in sorted(patches, key=lambda patch: patch.by, reverse=True):
        output_id = _output_id(group, patch)
        if output_id in part or (part and size + patch.size > MAX_BYTES):
            yield part
            part, size = {}, 0
        part[output_id] = patch
        size += patch.size
    if part:
        yield part


def _output_id(group: Group, patch: Patch) -> str:
    return patch.value if patch.by == "output_id" else group.output_id(patch.value)
