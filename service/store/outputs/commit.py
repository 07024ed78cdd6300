"""One round: look up the stored items, decide what becomes of each change, and write.

New items go in one `insert` command; changed ones, and those only seen again, in one or two `update` commands each, all
at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from service.store.actor import ACTOR
from service.store.connection import Database, durably, kill_cursor
from service.store.contract import stored
from service.store.decoding import NAIVE, RAW, decode, encoded
from service.store.errors import StoreUnavailable, without_frames
from service.store.group import Group
from service.store.outputs.comparing import Comparing
from service.store.outputs.counts import Change
from service.store.outputs.encode import Put, mark_of, rehash, rehashed
from service.store.outputs.ids import Batch, Ids
from service.store.outputs.plan import (
    CONTENT,
    KEPT_FIELDS,
    KNOWN_FIELDS,
    Known,
    Patch,
    Pending,
    Plan,
    Result,
    Row,
    is_changed,
    keeps,
    measure,
)
from service.store.outputs.query import JUDGED

T = TypeVar("T")

# One message of the database holds three times as much.
MAX_BYTES = 16 * 1024 * 1024
# Seconds of planning and encoding on the event loop, before other tasks run.
_SLICE_SECONDS = 0.005
# Updates are slow in the database: more of them than this go in two commands at once.
_FEW_UPDATES = 50
# Items hashed again at once, each up to a megabyte: one reply of the database holds 16 MB.
_HASHED_AT_ONCE = 10
# Items whose files are looked up at once: each may have 1000.
_FILES_AT_ONCE = 50


class Write:
    """The changes of one request by output_id, the last one of each, and a future for their results."""

    __slots__ = ("actor", "alone", "changes", "done", "losses", "results", "size", "tried")

    def __init__(self, changes: dict[str, Pending]) -> None:
        self.changes, self.actor = changes, ACTOR.get()
        self.size = sum(change.size for change in changes.values())
        self.results: dict[str, Result] = {}
        self.tried: dict[str, Result] = {}  # the intended results of rounds whose outcome is unknown
        self.alone = False  # whether it may be the cause of a failed round, and is tried alone
        self.losses = 0
        self.done: asyncio.Future[dict[str, Result]] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """Give the caller an error, unless it has gone."""
        if not self.done.done():
            self.done.set_exception(without_frames(error))  # which hold this write

    def succeed(self) -> None:
        """Give the caller the results, unless it has gone."""
        if not self.done.done():
            self.done.set_result(self.results)


class Committer:
    """Writes the items of one group, a round at a time."""

    def __init__(self, database: Database, ids: Ids, group: Group, max_item_bytes: int) -> None:
        self._database, self._ids = database, ids
        self.group, self._max_item_bytes = group, max_item_bytes

    @stored
    async def look_up(self, changes: dict[str, Pending]) -> dict[str, Known]:
        """Return the stored fields of some items that a round needs.

        Reads the latest state of the primary, committed or not. The write that follows matches only this
        state, and its client gets a response only when both are committed.
        """
        # Tags are up to a megabyte each.
        tagged = {key for key, change in changes.items() if isinstance(change, Patch) and change.tags is not None}
        untagged = [key for key in changes if key not in tagged]
        known = {item["_id"]: item for item in await self._find(untagged, KNOWN_FIELDS)} if untagged else {}
        if tagged:
            fields = KNOWN_FIELDS | dict.fromkeys(CONTENT, 1)
            async for reply in self._replies(list(tagged), fields, codec_options=RAW):
                for item in await asyncio.to_thread(lambda raw: list(map(measure, _emptied(raw))), reply):
                    known[item["_id"]] = item
        keeping = [
            key
            for key, change in changes.items()
            if isinstance(change, Put) and key in known and keeps(change, known[key])
        ]
        for start in range(0, len(keeping), _FILES_AT_ONCE):
            for document in await self._find(keeping[start : start + _FILES_AT_ONCE], KEPT_FIELDS):
                known[document["_id"]] |= document
        return known

    async def _find(self, keys: list[str], fields: dict[str, Any], **options: Any) -> list[Any]:
        return [document async for reply in self._replies(keys, fields, **options) for document in reply]

    async def _replies(self, keys: list[str], fields: dict[str, Any], **options: Any) -> AsyncIterator[list[Any]]:
        """Yield stored items in replies of at most 16 MB, none of which is kept."""
        remaining = list(keys)
        while remaining:
            yield await self._reply(remaining, fields, options)

    async def _reply(self, keys: list[str], fields: dict[str, Any], options: dict[str, Any]) -> list[Any]:
        """Return stored items, and remove from the keys those that were looked for."""
        where = {**self.group.owner, "_id": {"$in": keys}}
        command: dict[str, Any] = {"find": "outputs", "filter": where, "projection": fields, "hint": "_id_"}
        command["batchSize"] = len(keys) + 1
        reply = (await self._database.command(command, **{"codec_options": NAIVE, **options}))["cursor"]
        documents = list(reply["firstBatch"])
        if reply["id"]:  # one message of 16 MB holds no more
            await kill_cursor(self._database, "outputs", reply["id"])
            ids = {document["_id"] for document in documents}
            keys[:] = [key for key in keys if key not in ids]
        else:
            keys.clear()
        return documents

    @stored
    async def write(
        self, batch: Batch, writes: list[Write], known: dict[str, Known], comparing: Comparing
    ) -> tuple[Plan, Change]:
        """Write a round durably; return what became of it, and the changed counts for the next turn."""
        writes = await self._compare(writes, known, comparing)
        plan = await self._plan(batch, writes, known)
        await self._ids.step("before write")
        if comparing.history_days:
            await self._keep_versions(plan)
        await _together([*(self._send(plan, part) for part in _commands(plan.rows)), self._touch(plan)])
        await self._ids.step("written")
        written = [row for row in plan.rows if row.output_id not in plan.lost]
        plan.results |= {row.output_id: row.result for row in written}
        return plan, plan.count(written)

    async def _compare(self, writes: list[Write], known: dict[str, Known], comparing: Comparing) -> list[Write]:
        """Hash again the items that were hashed with other settings of the group; return the writes to continue with.

        A write whose keys were made with other settings fails.
        """
        stale: dict[str, Put] = {}
        for write in writes:
            for key, change in write.changes.items():
                if not isinstance(change, Put):
                    continue
                if mark_of(change.content_hash) != comparing.mark:
                    if change.key_is_made:
                        write.fail(StoreUnavailable("the settings of the group have changed"))
                        break
                    write.changes[key] = change = await asyncio.to_thread(rehashed, change, comparing)
                item_before = known.get(key)
                if (
                    item_before is not None
                    and "deleted" not in item_before
                    and mark_of(item_before["content_hash"]) != comparing.mark
                ):
                    stale[key] = change
        for start in range(0, len(stale), _HASHED_AT_ONCE):
            part = list(stale)[start : start + _HASHED_AT_ONCE]
            async for reply in self._replies(part, {"data": 1, **KEPT_FIELDS}, codec_options=RAW):
                await asyncio.to_thread(_hash_again, reply, stale, known, comparing)
        return [write for write in writes if not write.done.done()]

    async def _keep_versions(self, plan: Plan) -> None:
        """Let the database copy the versions that this round replaces; a failed round may leave a copy behind."""
        replaced = [row for row in plan.rows if row.known is not None and "deleted" not in row.known]
        if not replaced:
            return
        ids = [row.known["id"] for row in replaced if row.known is not None]
        # In the order of the ids: random keys would cost more, the more versions there are.
        identity = {name: f"${name}" for name in ("organization_id", "group_id", "id")}
        version = {"_id": identity, "replaced_date": plan.batch.date, "by": _actor_of(ids, replaced)}
        pipeline: list[dict[str, Any]] = [
            {"$match": {**self.group.owner, "id": {"$in": ids}}},
            {"$set": version},
            {"$merge": {"into": "versions", "whenMatched": "replace", "whenNotMatched": "insert"}},
        ]
        await durably(self._database, {"aggregate": "outputs", "pipeline": pipeline, "hint": "id", "cursor": {}})

    async def _plan(self, batch: Batch, writes: list[Write], known: dict[str, Known]) -> Plan:
        """Decide what becomes of each change."""
        plan = Plan(batch, self._max_item_bytes)
        began = time.perf_counter()
        for write in writes:
            planned, plan.actor = len(plan.rows), write.actor
            for key, change in write.changes.items():
                item_before = known.get(key)
                tried = write.tried.get(key)
                if tried is not None and item_before is not None and item_before["id"] == tried["id"]:
                    plan.results[key] = tried  # the failed attempt had written it
                elif key not in write.results and plan.has_room(change, item_before):
                    if isinstance(change, Patch) and change.tags is not None:
                        await asyncio.to_thread(plan.add, key, change, item_before)  # tags may be a megabyte
                    else:
                        plan.add(key, change, item_before)
                if time.perf_counter() > began + _SLICE_SECONDS:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
            write.tried |= {row.output_id: row.result for row in plan.rows[planned:]}
        return plan

    async def _send(self, plan: Plan, part: list[Row]) -> None:
        """Send inserts or updates as one command. Raises when one is refused or the outcome is unknown."""
        name, content = ("insert", "documents") if part[0].known is None else ("update", "updates")
        command = {name: "outputs", content: [row.stored for row in part], "ordered": False}
        reply = await durably(self._database, command)
        conflicts = {part[error["index"]].output_id for error in reply.get("writeErrors", ())}
        plan.lost |= conflicts
        missing = len(part) - len(conflicts) - reply["n"]
        if missing:
            plan.lost |= await self._lost(plan, [row for row in part if row.output_id not in conflicts], missing)

    async def _lost(self, plan: Plan, rows: list[Row], count: int) -> set[str]:
        """Return which of `count` updates matched nothing, because another writer had changed the item."""
        now = {item["_id"]: item["id"] for item in await self._find([row.output_id for row in rows], {"id": 1})}
        lost = {row.output_id for row in rows if now.get(row.output_id, 0) < row.id}
        # These have a newer id: either this update was made and then replaced, or another writer was faster.
        unsure = {row.output_id for row in rows if now.get(row.output_id, 0) > row.id}
        if len(lost) < count:
            plan.recount |= len(lost) + len(unsure) > count
            lost |= unsure
        return lost

    async def _touch(self, plan: Plan) -> None:
        """Store that unchanged items were seen again; items that changed go to another round."""
        statements = plan.touch_statements()
        halves = (half for half in (statements[::2], statements[1::2]) if half)
        commands = [{"update": "outputs", "updates": half, "ordered": False} for half in halves]
        replies = await _together([durably(self._database, command) for command in commands])
        matched = sum(reply["n"] for reply in replies)
        if matched < len(plan.touches):
            fields = dict.fromkeys(("id", "root_job_id", "seen", "last_scraped_date"), 1)
            stored_items = await self._find(list(plan.touches), fields)
            plan.settle_touches({item["_id"]: item for item in stored_items}, matched)
        for touch in plan.touches.values():
            plan.leave(touch.known, "unchanged")


def _actor_of(ids: list[int], rows: list[Row]) -> dict[str, Any]:
    """Return the expression for who made the change of the row that replaces the item with `$id`."""
    actors = [row.actor for row in rows]
    if len(set(actors)) == 1:
        return {"$literal": actors[0]}
    return {"$arrayElemAt": [{"$literal": actors}, {"$indexOfArray": [ids, "$id"]}]}


def _hash_again(reply: list[Any], stale: dict[str, Put], known: dict[str, Known], comparing: Comparing) -> None:
    """Hash the stored items of a reply with the present settings: a megabyte of numbers takes 0.1 s."""
    for raw in _emptied(reply):
        item = decode(encoded(raw))
        item_before = known[item["_id"]]
        item_before["content_hash"] = rehash(item_before["content_hash"], item["data"], comparing)
        item_before["is_rehashed"] = True
        if is_changed(stale[item["_id"]], item_before):  # perhaps only now
            item_before |= {name: item[name] for name in ("files", "tags", *JUDGED) if name in item}


def _emptied(reply: list[T]) -> Iterator[T]:
    """Yield the documents of a reply, each forgotten before the next: they may be 16 MB, and larger decoded."""
    while reply:
        yield reply.pop()


def _commands(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield inserts and updates in parts that one message can hold, many updates in at least two."""
    inserts, updates = [row for row in rows if row.known is None], [row for row in rows if row.known is not None]
    half = len(updates) // 2 if len(updates) > _FEW_UPDATES else 0
    for alike in (inserts, updates[:half], updates[half:]):
        part: list[Row] = []
        size = 0
        for row in alike:
            if part and size + row.size > MAX_BYTES:
                yield part
                part, size = [], 0
            part.append(row)
            size += row.size
        if part:
            yield part


async def _together(commands: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run commands at the same time: the database uses one core for each. Raise the first error when all have ended."""
    replies = await asyncio.gather(*commands, return_exceptions=True)
    errors = [reply for reply in replies if isinstance(reply, BaseException)]
    if not errors:
        return replies  # type: ignore[return-value]
    replies.clear()  # the error that is raised holds this frame
    raise errors.pop(0)
