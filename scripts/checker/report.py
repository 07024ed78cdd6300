"""What was acknowledged against what is stored against what was seen."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from scripts.checker.calls import Client
from scripts.checker.crawler import Crawled, check
from scripts.checker.plan import ALL_GROUPS, Plan, fingerprint, matches
from scripts.checker.reader import Read
from scripts.checker.services import ORGANIZATION
from scripts.checker.writer import Acknowledged, Content, Written

# How much longer than its lease a batch may be in flight: the pause of the reaper and a busy machine.
_HELD_UP_SECONDS = 10.0
# With failovers: until the services have found the new primary too, which the reaper needs.
_HELD_UP_BY_FAILOVER_SECONDS = 60.0
_MAX_EXAMPLES = 3

Key = tuple[str, str]


class Watch:
    """Measures how long batches are in flight, which is how long they delay the readers of their group."""

    def __init__(self, database: Any, lease: float) -> None:
        self._database, self._lease = database, timedelta(seconds=lease)
        self.longest = 0.0

    def look(self) -> int:
        """Return how many batches are in flight, or 1 while the database does not say."""
        with suppress(PyMongoError):
            where = {"organization_id": ORGANIZATION, "open.0": {"$exists": True}}
            batches = [batch for group in self._database["groups"].find(where, {"open": 1}) for batch in group["open"]]
            now = datetime.now(UTC)  # the database is on this machine
            for batch in batches:
                self.longest = max(self.longest, (now - batch["deadline"] + self._lease).total_seconds())
            return len(batches)
        return 1

    def is_recounting(self) -> bool:
        """Return whether counts are still to be set right after writers that died, or the database does not say."""
        with suppress(PyMongoError):
            where = {"organization_id": ORGANIZATION, "recount": {"$exists": True}}
            return self._database["groups"].find_one(where, {"_id": 1}) is not None
        return True


def stored(database: Any) -> Iterator[dict[str, Any]]:
    """Yield the outputs of a database, as far as they are compared, and the tombstones among them."""
    fields = ["group_id", "key_hash", "id", "first_id", "output_id", "data", "source_url", "root_job_id", "tags"]
    outputs = database.get_collection("outputs", read_concern=ReadConcern("majority"))
    yield from outputs.find({"organization_id": ORGANIZATION}, [*fields, "is_approved", "deleted", "tombstone"])


class Report:
    """The outcome of one run."""

    def __init__(
        self,
        options: argparse.Namespace,
        plan: Plan,
        written: list[Written],
        read: list[Read],
        documents: Iterable[dict[str, Any]],
    ) -> None:
        self.options, self.plan, self.written, self.read = options, plan, written, read
        self.documents = self.tombstones = 0
        self.stored: dict[Key, dict[str, Any]] = {}
        self.deleted = set[Key]()
        for document in documents:
            if "tombstone" in document:
                self.tombstones += 1
                continue
            self.documents += 1
            key = document["group_id"], document["key_hash"]
            if document.get("deleted"):
                self.deleted.add(key)
            else:
                self.stored[key] = document

    def faults(self, faults: Counter[str]) -> None:
        """Print the injected faults, and the results of the requests."""
        counts = sum((written.counts for written in self.written), Counter[str]())
        reading = sum((read.counts for read in self.read), Counter[str]())
        for kind in ("cut", "connection lost", "timeout", "429", "503"):
            faults[f"clients: {kind}"] += counts.pop(kind, 0) + reading[kind]
        print("faults:  " + ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()) if count))
        results = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count)
        print(f"results: {results}; {self.tombstones} tombstones")

    def verdict(self, settled: bool, held_up: float) -> int:
        """Print the outcome and return the exit code."""
        versions = sum(written.versions for written in self.written)
        lost, overtaken = self._lost()
        duplicated = self.documents - len(self.stored) - len(self.deleted)
        missed = sum(self._print_examples(read, "missed", self._missed(read)) for read in self.read)
        differing = sum(self._print_examples(read, "has another copy of", self._differing(read)) for read in self.read)
        left_out = sum(self._print_examples(read, "left out in a walk", self._left_out(read)) for read in self.read)
        wrong = [problem for written in self.written for problem in written.wrong]
        misread = sum(read.backwards + read.foreign for read in self.read)
        miscounted = self._miscounted()
        crawled = [written for written in self.written if isinstance(written, Crawled)]
        miscrawled = [problem for each in crawled for problem in check(self.plan, each)]
        print(f"readers: {len(self.read)} ({', '.join(read.kind for read in self.read)})")
        print(f"items: {len(self.stored)}  deleted: {len(self.deleted)}  versions acknowledged: {versions}")
        for example in lost[:_MAX_EXAMPLES]:
            print(f"  lost {example}")
        print(f"missed: {missed}  lost: {len(lost)}  duplicated: {duplicated}  out of order or foreign: {misread}")
        print(f"differing in a copy: {differing}  left out in a walk: {left_out}")
        print(f"wrong results: {len(wrong)} {wrong[:_MAX_EXAMPLES] or ''}")
        print(f"abandoned requests done late: {overtaken}  miscounted: {', '.join(miscounted) or 0}")
        if crawled:
            jobs = sum(len(each.jobs) for each in crawled)
            earlier = sum(len(versions) for each in crawled for versions in each.earlier.values())
            examples = miscrawled[:_MAX_EXAMPLES] or ""
            print(f"finished jobs: {jobs}  earlier versions: {earlier}  wrong of these: {len(miscrawled)} {examples}")
        allowed = self.options.lease + (_HELD_UP_BY_FAILOVER_SECONDS if self.options.failovers else _HELD_UP_SECONDS)
        print(f"longest that a batch held up its group: {held_up:.1f} s (allowed: {allowed:.1f} s)")
        stall = max((read.longest_stall for read in self.read if read.kind == "plain"), default=0.0)
        print(f"longest without anything new for a plain reader: {stall:.1f} s")
        if not settled:
            print("batches were still in flight at the end")
        bad = missed or lost or duplicated or misread or differing or left_out or wrong or miscounted or miscrawled
        failed = bad or not settled or held_up > allowed or not versions
        print("FAILED" if failed else "ok")
        return 1 if failed else 0

    def _print_examples(self, read: Read, what: str, keys: list[Key]) -> int:
        if keys:
            print(f"  {read.kind} {what} {len(keys)} of {read.items} read, for example {keys[:_MAX_EXAMPLES]}")
        return len(keys)

    def _lost(self) -> tuple[list[str], int]:
        """Return acknowledged items that are not stored so, and count those where a cut-off request came last."""
        lost: list[str] = []
        overtaken = 0
        for written in self.written:
            for key, expected in written.own.items():
                found = self._found(key)
                if found == expected:
                    continue
                if found.content is not None and (*key, found.content.version) in written.abandoned:
                    overtaken += 1
                    continue
                lost.append(f"{key}: acknowledged {expected}, stored {found}")
            for key, id_ in written.shared.items():
                found = self._found(key)
                if found.id is None or found.id < id_:
                    lost.append(f"{key}: acknowledged id {id_}, stored {found}")
        return lost, overtaken

    def _found(self, key: Key) -> Acknowledged:
        stored = self.stored.get(key)
        return Acknowledged(None, None) if stored is None else Acknowledged(stored["id"], Content.of(stored))

    def _missed(self, read: Read) -> list[Key]:
        """Return the keys whose last version the reader has not seen last."""
        return [
            key
            for key, item in self.stored.items()
            if matches(read.kind, item)
            and read.seen.get(key) != (item["id"], item["data"]["writer"], item["data"]["version"])
        ]

    def _differing(self, read: Read) -> list[Key]:
        """Return the keys that a reader's copy has and the database has not, or not so, or the other way round."""
        if read.kind != "copy":
            return []
        stored = {key: fingerprint(item) for key, item in self.stored.items()}
        return [key for key in stored.keys() | read.copy.keys() if stored.get(key) != read.copy.get(key)]

    def _left_out(self, read: Read) -> list[Key]:
        """Return the keys that a walk has not returned although they were there all the time; `first_id` says so."""
        stored = ((key, newest, self.stored.get(key)) for key, newest in read.left_out)
        return [key for key, newest, item in stored if item is not None and item["first_id"] <= newest]

    def _miscounted(self) -> list[str]:
        """Return the service's counts that differ from the stored items."""
        client = Client(self.plan.ports, self.plan.token)
        items = Counter(group for group, _ in self.stored)
        approved = Counter(group for (group, _), item in self.stored.items() if item["is_approved"])
        jobs = Counter((group, item["root_job_id"]) for (group, _), item in self.stored.items())
        off: dict[str, int] = {}
        for group in ALL_GROUPS:
            counted = client.done("GET", f"/v1/groups/{group}/stats").json
            off[f"items of {group}"] = counted["items"] - items[group]
            off[f"approved of {group}"] = counted["approved"] - approved[group]
            listed = client.done("GET", f"/v1/groups/{group}/jobs").json
            counts = Counter({(group, job["job_id"]): job["items"] for job in listed})
            counts.subtract({job: count for job, count in jobs.items() if job[0] == group})
            off |= {f"items of job {job} of {group}": count for (_, job), count in counts.items()}
        return [f"{name} by {number}" for name, number in off.items() if number]
