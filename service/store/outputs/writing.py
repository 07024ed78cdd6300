"""Writing: changes of one group become rounds, each looked up, written and finished as `ids.py` says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, KeysView, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pymongo.errors import BulkWriteError

from service.settings import Settings
from service.store.connection import DURABLE, Collection, Database
from service.store.contract import stored
from service.store.decoding import AWARE, RAW, decode, encoded
from service.store.errors import DUPLICATE_KEY, StoreError, StoreUnavailable, is_passing, is_refusal
from service.store.group_commit import GroupCommit, GroupKey, Turn, fail
from service.store.outputs.ids import Batch, Change, Claim, Ids, new_token
from service.store.outputs.items import (
    FILTER_TAGS,
    KNOWN_FIELDS,
    Known,
    Operation,
    Row,
    Touch,
    delete_row,
    is_changed,
    messages,
    new_uuids,
    patch_row,
    put_row,
    touch_operations,
)
from service.store.outputs.merge_patch import merge_patch
from service.store.outputs.novelty import Novelty
from service.store.outputs.recovery import Recovery
from service.store.time_budget import time_budget

log = logging.getLogger("service.store")

# Each lost round means that another writer changed the same keys: 20 losses in a row are a stuck
# database, not a race.
_MAX_ROUNDS = 20
# Items whose files' dates are looked up at once: each may have 1000 files.
_DATES_AT_ONCE = 50
# Operations made on the event loop: 300 rows, or 1000 files of 256 bytes, take 4 ms. More go to a thread.
_ON_LOOP_ROWS = 300
_ON_LOOP_BYTES = 256 * 1024
# Messages of one round at once: the driver encodes each in one call that holds the interpreter lock, and every
# thread that waits for the lock keeps the event loop waiting longer.
_MESSAGES_AT_ONCE = 2

# What a patch of tags counts for in a round: those that it is merged with may be 1 MiB, and 50 are looked up at once.
_TAGS_BYTES = 16 * 1024 * 1024 // 50

Result = dict[str, Any]
# What finds a change's item: a field, its value, and the fields that are wanted of it beside those always needed.
Looked = tuple[str, str, tuple[str, ...]]


class Put(NamedTuple):
    """Store an item under its key."""

    item: dict[str, Any]

    @property
    def key(self) -> str:
        return f"key_hash:{self.item['key_hash']}"

    @property
    def size(self) -> int:
        return int(self.item["size"])

    @property
    def looked_up(self) -> Looked:
        return "key_hash", self.item["key_hash"], ()


@dataclass(frozen=True)
class Patch:
    """Change an item's approval, its tags (a JSON merge patch) or both, if it still has one of the ids `if_ids`."""

    by: str  # "output_id" or "key_hash"
    value: str
    is_approved: bool | None = None
    tags: dict[str, Any] | None = None
    if_ids: frozenset[int] | None = None

    @property
    def key(self) -> str:
        return f"{self.by}:{self.value}"

    @property
    def size(self) -> int:
        return 0 if self.tags is None else _TAGS_BYTES

    @property
    def looked_up(self) -> Looked:
        return self.by, self.value, () if self.tags is None else ("tags",)


@dataclass(frozen=True)
class Delete:
    """Turn an item into a deletion record, if it is still what was selected: a touch changes no id."""

    by: str
    value: str
    if_ids: frozenset[int] | None = None
    job_id: str | None = None
    scraped_before: datetime | None = None
    size: int = 0

    @property
    def key(self) -> str:
        return f"{self.by}:{self.value}"

    @property
    def looked_up(self) -> Looked:
        return self.by, self.value, FILTER_TAGS

    def selects(self, known: Known) -> bool:
        return (
            (self.if_ids is None or known.id in self.if_ids)
            and self.job_id in (None, known.root_job_id)
            and (self.scraped_before is None or known.scraped < self.scraped_before)
        )


Pending = Put | Patch | Delete


@dataclass(eq=False)
class Write:
    """One request's changes by key, the last of each key, and who waits for them."""

    changes: dict[str, Pending]
    deadline: float
    done: asyncio.Future[dict[str, Result]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def keys(self) -> KeysView[str]:
        return self.changes.keys()

    @property
    def size(self) -> int:
        return sum(change.size for change in self.changes.values())


BeginNext = Callable[[], Turn[Write] | None]


class Writing:
    """Writes the changes of groups, several rounds of each at once."""

    def __init__(self, database: Database, ids: Ids, recovery: Recovery, settings: Settings) -> None:
        self._outputs: Collection = database.get_collection("outputs", write_concern=DURABLE)
        self._ids, self._recovery = ids, recovery
        self._seconds = settings.mongo_timeout
        self._max_item_bytes = settings.max_item_bytes
        self._novelty = Novelty()
        self._commits = GroupCommit[Write](
            self._commit, settings.group_commit, settings.write_rounds, slow_seconds=settings.mongo_timeout / 2
        )

    @stored
    async def apply(self, organization_id: int, group_id: str, changes: Iterable[Pending]) -> dict[str, Result]:
        """Make the changes, the last of each key; return their results by key once they are durable."""
        write = Write({change.key: change for change in changes}, time.monotonic() + self._seconds)
        if not write.changes:
            return {}
        results: dict[str, Result] = await self._commits.submit((organization_id, group_id), write)
        return results

    async def close(self) -> None:
        """Wait for the writes under way."""
        await self._commits.close()

    @property
    def rounds_in_flight(self) -> int:
        return self._commits.in_flight

    @property
    def rounds_begun(self) -> int:
        return self._commits.begun

    async def _commit(self, group: GroupKey, turn: Turn[Write], begin_next: BeginNext) -> None:
        now = time.monotonic()
        in_time = [write for write in turn.writes if write.deadline >= now]
        for write in turn.writes:
            if write.deadline < now:
                # The client has had its 503 by now, and may have sent the same again.
                fail(write.done, StoreUnavailable("out of time"))
        if in_time or turn.left is not None:
            with time_budget(self._seconds):
                await self._rounds(group, in_time, turn, begin_next)

    @stored
    async def _rounds(self, group: GroupKey, writes: list[Write], turn: Turn[Write], begin_next: BeginNext) -> None:
        pending = {key: change for write in writes for key, change in write.changes.items()}
        results: dict[str, Result] = {}
        errors: dict[str, StoreError] = {}
        for attempt in range(_MAX_ROUNDS):
            round_ = _Round(self, group, pending, turn if attempt == 0 else None, begin_next)
            await round_.run()
            results |= round_.results
            errors |= round_.errors
            pending = {key: change for key, change in pending.items() if key not in results and key not in errors}
            if not pending:
                break
        errors |= dict.fromkeys(pending, StoreUnavailable("lost every race"))
        for write in writes:
            failed = next((errors[key] for key in write.changes if key in errors), None)
            if failed is not None:
                fail(write.done, failed)
            elif not write.done.done():
                write.done.set_result({key: results[key] for key in write.changes})


class _Round:
    """Tries to make all pending changes once.

    What is in neither `results` nor `errors` afterwards met a writer that changed the same item
    meanwhile, or a tombstone, and goes again.
    """

    def __init__(
        self,
        writing: Writing,
        group: GroupKey,
        pending: dict[str, Pending],
        turn: Turn[Write] | None,  # None: not the first try
        begin_next: BeginNext,
    ) -> None:
        self._ids, self._recovery, self._outputs = writing._ids, writing._recovery, writing._outputs
        self._novelty, self._all_new = writing._novelty, turn is not None and writing._novelty.expected(group)
        self._max_item_bytes = writing._max_item_bytes
        self._group, self._pending, self._begin_next = group, pending, begin_next
        self._left = turn.left if turn else None
        self._token = turn.claim.token if turn and turn.left else new_token()
        self._owner = {"organization_id": group[0], "group_id": group[1]}
        self.results: dict[str, Result] = {}
        self.errors: dict[str, StoreError] = {}
        self._rows: list[Row] = []
        self._touches: dict[str, Touch] = {}
        self._puts = 0
        self._recount = self._failed = False

    async def run(self) -> None:
        batch = None
        try:
            # At the same time: ids that turn out not to be needed are never used.
            known, batch = await asyncio.gather(self._look_up(), self._take_ids())
            await self._plan(batch, known)
            await self._write(batch)
        except BaseException:
            self._failed = True
            # What has landed is unknown: end the batch now, so that readers need not wait for the lease.
            self._recovery.recover_soon(self._group, self._token, allocated=batch is not None)
            raise

    async def _take_ids(self) -> Batch:
        """Return the ids that the round before has taken for this one, else new ones."""
        if self._left is not None:
            batch: Batch | None = await asyncio.shield(self._left)
            if batch is not None:
                await self._ids.step("allocated")
                return batch
            if self._failed:  # meanwhile, in the look-up
                raise StoreUnavailable("failed")
            self._token = new_token()
        return await self._ids.allocate(*self._group, len(self._pending), self._token)

    # -- looking up ---------------------------------------------------------------------------

    async def _look_up(self) -> dict[str, Known]:
        """Return what is stored of the changes' items, by their keys.

        Read as the primary has it now, committed or not: the write that follows is guarded by what
        was read here, and is answered only when it is committed, and with it what it was built on.
        """
        changes: Iterable[Pending] = self._pending.values()
        if self._all_new:
            changes = [change for change in changes if not isinstance(change, Put)]
        wanted: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for change in changes:
            by, value, extra = change.looked_up
            wanted.setdefault((by, extra), []).append(value)
        found = await asyncio.gather(*(self._find(*which, values) for which, values in wanted.items()))
        return {key: known for part in found for key, known in part.items()}

    async def _find(self, by: str, extra: tuple[str, ...], values: list[str]) -> dict[str, Known]:
        with_tags = "tags" in extra
        outputs = self._outputs.with_options(codec_options=RAW) if with_tags else self._outputs
        cursor = outputs.find(
            {**self._owner, by: {"$in": values}},
            {**KNOWN_FIELDS, **dict.fromkeys(extra, 1)},
            hint="key" if by == "key_hash" else by,
            batch_size=len(values) + 1,
        )
        found = await cursor.to_list(None)
        if with_tags:  # up to a megabyte each
            found = await asyncio.to_thread(lambda: [decode(encoded(document), AWARE) for document in found])
        return {f"{by}:{document[by]}": Known.of(document) for document in found}

    async def _file_dates(self, keys: list[str]) -> dict[str, datetime]:
        """Return the dates of the stored files of some items."""
        dates: dict[str, datetime] = {}
        for start in range(0, len(keys), _DATES_AT_ONCE):
            some = {"$in": keys[start : start + _DATES_AT_ONCE]}
            fields = {"_id": 0, "files.id": 1, "files.create_date": 1}
            async for document in self._outputs.find({**self._owner, "key_hash": some}, fields, hint="key"):
                dates |= {file["id"]: file["create_date"] for file in document.get("files", ())}
        return dates

    # -- planning -----------------------------------------------------------------------------

    async def _plan(self, batch: Batch, known: dict[str, Known]) -> None:
        """Decide what becomes of each change: a row with an id, a touch, or nothing at all."""
        puts = {key: change.item for key, change in self._pending.items() if isinstance(change, Put)}
        self._puts = len(puts)
        undated = [
            item["key_hash"]
            for key, item in puts.items()
            if key in known
            and is_changed(item, known[key])
            and any("create_date" not in file for file in item["files"])
        ]
        dates = await self._file_dates(undated) if undated else {}
        if any(isinstance(change, Patch) and change.tags is not None for change in self._pending.values()):
            # They are merged with stored tags of up to a megabyte each.
            await asyncio.to_thread(self._plan_changes, batch, known, dates)
        else:
            self._plan_changes(batch, known, dates)

    def _plan_changes(self, batch: Batch, known: dict[str, Known], dates: dict[str, datetime]) -> None:
        uuids = new_uuids(len(self._pending))
        for key, change in self._pending.items():
            there = known.get(key)
            id = batch.first + len(self._rows)
            match change:
                case Put(item):
                    if there is None or is_changed(item, there):
                        self._rows.append(put_row(batch, id, key, item, there, dates, uuids))
                    else:
                        self._touches[key] = Touch.of(batch, item, there)
                case Patch() if there is not None and not there.deleted:
                    self._plan_patch(batch, id, key, change, there)
                case Delete() if there is not None and not there.deleted:
                    if change.selects(there):
                        self._rows.append(delete_row(batch, id, key, there, change.scraped_before))
                    else:
                        self._skip(key, there, "conflict")
                case _:
                    self.results[key] = {"result": "not_found"}

    def _plan_patch(self, batch: Batch, id: int, key: str, patch: Patch, there: Known) -> None:
        if patch.if_ids is not None and there.id not in patch.if_ids:
            self._skip(key, there, "conflict")
            return
        approved = there.is_approved if patch.is_approved is None else patch.is_approved
        tags = None
        if patch.tags is not None:
            merged = merge_patch(there.tags or {}, patch.tags)
            tags = merged if merged != there.tags else None
        if tags is None and approved == there.is_approved:
            self._skip(key, there, "unchanged")
            return
        row = patch_row(batch, id, key, there, approved, tags)
        if row.size > self._max_item_bytes:
            self._skip(key, there, "too_large")
        else:
            self._rows.append(row)

    def _skip(self, key: str, there: Known, result: str) -> None:
        self.results[key] = _result(there.id, there.output_id, there.key_hash, result)

    # -- writing ------------------------------------------------------------------------------

    async def _write(self, batch: Batch) -> None:
        await self._ids.step("before write")
        places = asyncio.Semaphore(_MESSAGES_AT_ONCE)
        parts = (self._write_part(part, places) for part in messages(self._rows))
        await asyncio.gather(*parts, self._touch(batch))
        await self._ids.step("written")
        change = Change()
        if self.errors:
            # Behind `mongos` such a write may still land: not after the fence.
            change.tombstones = await self._recovery.fence(batch)
        self._count_rows(change)
        self._count_touches(change)
        change.recount = self._recount
        if self._puts:
            new = sum(row.known is None and row.key in self.results for row in self._rows)
            self._novelty.saw(self._group, new, self._puts - new)
        await self._finish(batch, change)

    async def _finish(self, batch: Batch, change: Change) -> None:
        """Take the batch out of flight; in the same step, take the ids of the next round if one waits."""
        is_last = len(self.results) + len(self.errors) == len(self._pending)
        following = self._begin_next() if is_last else None
        if following is None or following.left is None:
            await self._ids.finish(batch, change)
            return
        claim = following.claim = Claim(new_token(), sum(len(write.keys) for write in following.writes))
        try:
            taken = await self._ids.finish_and_allocate(batch, change, claim)
        except BaseException:
            self._recovery.recover_soon(self._group, claim.token, allocated=False)
            raise
        following.left.set_result(taken)

    async def _write_part(self, part: list[Row], places: asyncio.Semaphore) -> None:
        """Write some rows durably and enter the results of those that were not lost to another writer.

        Raises when the outcome is unknown.
        """
        lost: set[str] = set()
        try:
            async with places:
                matched = (await self._outputs.bulk_write(await _operations(part), ordered=False)).matched_count
        except BulkWriteError as error:
            if is_passing(error):
                raise
            matched = error.details["nMatched"]
            for failed in error.details["writeErrors"]:
                key = part[failed["index"]].key
                if failed["code"] == DUPLICATE_KEY:
                    lost.add(key)
                else:
                    log.error("the database refused an item", extra={"code": failed["code"]})
                    self.errors[key] = StoreError(f"write error {failed['code']}")
        except Exception as error:
            if not is_refusal(error):
                raise
            await self._write_halves(part, places, error)
            return
        kept = [row for row in part if row.known is not None and row.key not in lost and row.key not in self.errors]
        if matched < len(kept):
            lost |= await self._lost(kept, len(kept) - matched)
        made = [row for row in part if row.key not in lost and row.key not in self.errors]
        self.results |= {row.key: _result(row.id, row.output_id, row.key_hash, row.result) for row in made}

    async def _write_halves(self, part: list[Row], places: asyncio.Semaphore, refused: Exception) -> None:
        """Find the row that no message can hold: its error is for the client that sent it alone."""
        if len(part) == 1:
            log.error("an item cannot be sent to the database", extra={"error": type(refused).__name__})
            self.errors[part[0].key] = StoreError(type(refused).__name__)
            return
        middle = len(part) // 2
        await self._write_part(part[:middle], places)
        await self._write_part(part[middle:], places)

    async def _lost(self, rows: list[Row], count: int) -> set[str]:
        """Return which rows, `count` of them, had another id than when they were looked up."""
        now = await self._find("key_hash", (), [row.key_hash for row in rows])
        ids = {row.key: now[f"key_hash:{row.key_hash}"].id if f"key_hash:{row.key_hash}" in now else 0 for row in rows}
        lost = {row.key for row in rows if ids[row.key] < row.id}
        # Changed again since, by somebody who saw this row or by somebody who was faster.
        unsure = {row.key for row in rows if ids[row.key] > row.id}
        if len(lost) < count:
            self._recount |= len(lost) + len(unsure) > count
            lost |= unsure
        return lost

    async def _touch(self, batch: Batch) -> None:
        """Say that unchanged items were seen again, all of them in one bulk write; forget those that changed."""
        touches = self._touches
        if not touches:
            return
        operations = touch_operations(batch, touches.values())
        matched = (await self._outputs.bulk_write(operations, ordered=False)).matched_count
        if matched < len(touches):
            now = await self._find("key_hash", (), [touch.known.key_hash for touch in touches.values()])
            self._touches = touches = {
                key: touch
                for key, touch in touches.items()
                if key in now and (now[key].id, now[key].root_job_id) == (touch.known.id, touch.job)
            }
            # Another writer may have moved an item to the same job, or have changed one after its touch.
            moved = any(touch.job != touch.known.root_job_id for touch in touches.values())
            self._recount |= moved or len(touches) != matched
        for key, touch in touches.items():
            self._skip(key, touch.known, "unchanged")

    # -- counting -----------------------------------------------------------------------------

    def _count_rows(self, change: Change) -> None:
        made = [row for row in self._rows if row.key in self.results]
        if made:
            change.last_id = made[-1].id
        # Most rows of a round are alike.
        for (kind, job_id, approved, job_before, approved_before, deleted_before), count in Counter(
            map(self._kind_of, made)
        ).items():
            deleted = kind == "deleted"
            change.items += count * ((not deleted) - (job_before is not None))
            change.approved += count * (approved - approved_before)
            change.deleted += count * (deleted - deleted_before)
            if job_before is not None:
                change.job(job_before)["items"] -= count
            if deleted:
                continue
            change.job(job_id)["items"] += count
            change.created += count * (kind == "created")
            change.changed += count * (kind != "created")
            if kind != "patched":  # nothing that the job did
                change.job(job_id)[kind] += count

    def _kind_of(self, row: Row) -> tuple[str, str, bool, str | None, bool, bool]:
        """Return what a row counts as: what it does, its job and approval, and what was there before."""
        if row.deleted:
            kind = "deleted"
        elif not isinstance(self._pending[row.key], Put):
            kind = "patched"
        else:
            kind = "created" if row.result == "created" else "changed"
        known = row.known
        if known is None:
            return kind, row.root_job_id, row.is_approved, None, False, False
        job_before = None if known.deleted else known.root_job_id
        return kind, row.root_job_id, row.is_approved, job_before, known.is_approved, known.deleted

    def _count_touches(self, change: Change) -> None:
        for key, touch in self._touches.items():
            pending = self._pending[key]
            assert isinstance(pending, Put)
            change.job(pending.item["root_job_id"])["unchanged"] += 1
            if touch.job != touch.known.root_job_id:
                change.job(touch.known.root_job_id)["items"] -= 1
                change.job(touch.job)["items"] += 1


async def _operations(part: list[Row]) -> list[Operation]:
    """Return the operations of some rows, from a thread if there is much to make."""
    if len(part) <= _ON_LOOP_ROWS and sum(row.size for row in part) <= _ON_LOOP_BYTES:
        return [row.operation() for row in part]
    return await asyncio.to_thread(lambda: [row.operation() for row in part])


def _result(id: int, output_id: str, key_hash: str, result: str) -> Result:
    return {"id": id, "output_id": output_id, "key_hash": key_hash, "result": result}


def in_order(changes: Sequence[Pending], results: dict[str, Result]) -> list[Result]:
    """Return the results of changes in the order in which they were asked for."""
    return [results[change.key] for change in changes]
