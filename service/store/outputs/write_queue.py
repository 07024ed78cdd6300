"""The write queue: one loop per process and group that writes the queued changes, round by round.

A round takes all queued writes. One `Ids.turn` finishes the batch of the previous round and allocates ids for this
one; the keys are looked up at the same time; then the items are written (`rounds.py`). The next turn, or a final one
that allocates nothing, makes them readable. Only then do the clients get their responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import uuid
from collections import deque
from typing import Any

from service.settings import Settings
from service.store.connection import Database
from service.store.errors import Misconfigured, StoreError, StoreUnavailable
from service.store.group import Group
from service.store.jobs import Jobs
from service.store.outputs.commit import MAX_BYTES, Committer, Write
from service.store.outputs.comparing import ComparingCache
from service.store.outputs.ids import BatchEnded, Finished, Ids
from service.store.outputs.plan import Pending, Plan, Result
from service.store.outputs.recovery import Recovery
from service.store.time_budget import in_time, time_budget

# A larger round gains nothing, and may take longer than its lease.
_MAX_KEYS = 1000
# A round without any result means that another process changed the same keys: 20 in a row mean a stuck database.
_MAX_LOSSES = 20
# Seconds before a failed round is tried again, for those of its clients that still wait.
_RETRY_SECONDS = 0.2
# Bytes of counts in the group's document before they are moved: every turn rewrites it, and 16 MB is its limit.
_MAX_PENDING_BYTES = 64 * 1024


class WriteQueues:
    """The write queues of this process: one per group that is being written."""

    def __init__(
        self,
        database: Database,
        ids: Ids,
        recovery: Recovery,
        jobs: Jobs,
        comparing: ComparingCache,
        settings: Settings,
    ) -> None:
        self.database, self.ids, self.recovery, self.jobs, self.comparing = database, ids, recovery, jobs, comparing
        self.seconds, self.max_item_bytes = settings.mongo_timeout, settings.max_item_bytes
        self._queues: dict[Group, WriteQueue] = {}
        self.rounds = 0  # so far

    async def apply(self, group: Group, changes: dict[str, Pending]) -> dict[str, Result]:
        """Make the changes of one request, by output_id; return their results once they are durable.

        If the caller is cancelled, its changes are dropped unless an attempt has begun.
        """
        if not changes:
            return {}
        write = Write(changes)
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = WriteQueue(self, group)
        queue.waiting.append(write)
        try:
            async with in_time():
                return await write.done
        except BaseException:
            with contextlib.suppress(ValueError):  # taken already
                queue.waiting.remove(write)  # its bytes are no longer counted
            raise
        finally:
            del write  # its error holds this frame

    def forget(self, group: Group) -> None:
        """Forget a write queue that ends: the next write of its group begins another one."""
        del self._queues[group]

    async def close(self) -> None:
        """Wait for the writes under way, for a limited time: the reaper ends the rest."""
        if tasks := [queue.task for queue in self._queues.values()]:
            _, late = await asyncio.wait(tasks, timeout=2 * self.seconds)
            for task in late:
                task.cancel()

    @property
    def busy(self) -> int:
        """How many groups are being written."""
        return len(self._queues)


class WriteQueue:
    """Writes the changes of one group, in the order in which they came."""

    def __init__(self, queues: WriteQueues, group: Group) -> None:
        self.group = group
        self._written: Finished | None = None  # the batch that the next turn finishes
        self._settled: list[Write] = []  # the writes that wait for that
        self.waiting: deque[Write] = deque()
        self._queues, self._ids, self._recovery = queues, queues.ids, queues.recovery
        self._committer = Committer(queues.database, queues.ids, group, queues.max_item_bytes)
        # In a context of its own: a write queue must not end with the time of the request that began it.
        self.task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def _run(self) -> None:
        """Write rounds until the queue is empty."""
        writes: list[Write] = []
        try:
            # No await after the queue was seen empty: a write that comes then starts another write queue.
            while (writes := self._take()) or self._written is not None:
                await self._round(writes)
        finally:
            self._queues.forget(self.group)
            for write in (*self._settled, *writes, *self.waiting):  # none, unless the write queue was cancelled
                write.done.cancel()

    async def _round(self, writes: list[Write]) -> None:
        """Finish the written batch and allocate ids for the next, look its items up meanwhile, and write it."""
        token, batch = uuid.uuid4().hex, None
        changes = {key: change for write in writes for key, change in write.changes.items() if key not in write.results}
        try:
            with time_budget(self._queues.seconds):
                looking = asyncio.ensure_future(self._committer.look_up(changes))
                try:
                    batch, document = await self._ids.turn(self.group, self._written, len(changes), token)
                    await self._finish(document)
                    stored = await looking
                except BaseException:
                    looking.cancel()
                    await asyncio.gather(looking, return_exceptions=True)
                    raise
                finally:
                    del looking  # its error holds this frame
            if batch is not None:
                comparing = self._queues.comparing.refresh(self.group, document)
                self._queues.rounds += 1
                with time_budget(self._queues.seconds):
                    plan, change = await self._committer.write(batch, writes, stored, comparing)
                self._written, self._settled = (batch, change), self._settle(writes, plan)
        except BatchEnded:
            self._write_again(writes)
        except Exception as error:
            await self._fail(writes, error, token, batch is not None)

    def _write_again(self, writes: list[Write]) -> None:
        """Queue the writes of the last batch again, before others: it was ended while this process was held up.

        What it saw may have landed after its end. So it may be taken for seen before a job that has begun since.
        """
        for write in self._settled:
            write.results.clear()
        self.waiting.extendleft(reversed([*self._settled, *writes]))
        self._written, self._settled = None, []

    async def _finish(self, document: dict[str, Any]) -> None:
        """Give the clients of the finished batch their results."""
        for write in self._settled:
            write.succeed()
        self._written, self._settled = None, []
        if document.get("waiting_bytes", 0) > _MAX_PENDING_BYTES:
            with contextlib.suppress(StoreError):  # moving counts must not fail a round
                await self._queues.jobs.collect(self.group)

    def _take(self) -> list[Write]:
        """Take the writes of one round from the queue; drop those whose client has gone.

        A write that shares a key with an earlier one goes into a later round; the writes after it do not wait.
        """
        writes: list[Write] = []
        later: list[Write] = []
        keys: set[str] = set()
        size = 0
        while self.waiting:
            write = self.waiting[0]
            full = len(keys) + len(write.changes) > _MAX_KEYS or size + write.size > MAX_BYTES or write.alone
            if writes and full:
                break
            self.waiting.popleft()
            if write.done.done():
                continue
            (later if keys.intersection(write.changes) else writes).append(write)
            keys.update(write.changes)
            size += write.size
            if write.alone:
                break
        self.waiting.extendleft(reversed(later))
        return writes

    async def _fail(self, writes: list[Write], error: Exception, token: str, begun: bool) -> None:
        """End a batch whose outcome is unknown, and let its writes be tried again or fail."""
        await self._recovery.recover(self.group, token, begun=begun)
        await asyncio.sleep(_RETRY_SECONDS)
        if isinstance(error, Misconfigured) or (len(writes) == 1 and not isinstance(error, StoreUnavailable)):
            for write in writes:
                write.fail(error)
        elif not isinstance(error, StoreUnavailable):
            # One of them may be the cause, and only its client must get the error.
            for write in writes:
                write.alone = True
        self.waiting.extendleft(reversed(writes))

    def _settle(self, writes: list[Write], plan: Plan) -> list[Write]:
        """Give each write its results; return those that only wait for the batch to be finished.

        A write that lost an item to another process goes back to the head of the queue.
        """
        complete = []
        for write in reversed(writes):
            results = {key: plan.results[key] for key in write.changes if key in plan.results}
            write.losses = write.losses + 1 if write.results.keys() >= results.keys() else 0
            write.results |= results
            if len(write.results) == len(write.changes):
                complete.append(write)
            elif write.losses < _MAX_LOSSES:
                self.waiting.appendleft(write)
            else:
                write.fail(StoreUnavailable("lost every race"))
        return complete
