"""Which version's layout a database has, and how an older one is brought to the present one.

Layout 2 keeps ids and counts per group. Layout 1, of version 0.1.0, kept them per organization, in
`sequences`; a service of that version cannot write once `sequences` refuses batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from pymongo import InsertOne, ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure

from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored, without_time_limit
from service.store.decoding import RAW, decoded_batches
from service.store.errors import DUPLICATE_KEY, LayoutError
from service.store.indexes import Indexes
from service.store.outputs import documents
from service.store.outputs.items import content_hash, filter_tags

VERSION = 2
_BATCH = 500
_NAMESPACE_EXISTS = 48
# Hex digits of a content hash of version 1.
_OLD_HASH = 64
_OLD_JOB_INDEX = "job_id"
_OLD_INDEXES = {
    "outputs": ("country", "region", "job_id", "tombstone", "updated"),
    "groups": ("group",),
    "jobs": ("job",),
}


class Layout:
    """The version marker of a database, in `meta`."""

    def __init__(self, database: Database, indexes: Indexes) -> None:
        self._database, self._indexes = database, indexes
        self._found: int | None = None  # when it was last looked at

    async def require(self) -> None:
        """Raise LayoutError if the database has another version's layout, which would be read as empty."""
        if self._found != VERSION:
            await self.check()

    def _collection(self, name: str) -> Collection:
        return self._database.get_collection(name, write_concern=DURABLE, read_concern=MAJORITY)

    @stored
    async def check(self) -> None:
        """Raise LayoutError unless the database has this version's layout; mark an empty one."""
        version = await self.version()
        if version is None:
            await self._refuse_old_writers()
            where = {"_id": "layout"}
            await self._collection("meta").update_one(where, {"$setOnInsert": {"version": VERSION}}, upsert=True)
            version = VERSION
        self._found = version
        if version != VERSION:
            self._indexes.forget()
        if version < VERSION:
            raise LayoutError(
                "the database was written by an older version of the service: export with that version, import with "
                "this one into another database"
            )
        if version > VERSION:
            raise LayoutError("the database was written by a newer version of the service: install that version")

    async def version(self) -> int | None:
        """Return the layout's version; None of an empty database."""
        marker = await self._collection("meta").find_one({"_id": "layout"})
        if marker is not None:
            return int(marker["version"])
        if await self._collection("sequences").find_one({"next": {"$exists": True}}, {"_id": 1}) is not None:
            return 1
        # Started with the first version and never written to: it has that version's indexes.
        return 1 if _OLD_JOB_INDEX in await self._database["outputs"].index_information() else None

    async def _refuse_old_writers(self) -> None:
        validator = {"open": {"$exists": False}}
        try:
            await self._database.create_collection("sequences", validator=validator, check_exists=False)
        except OperationFailure as error:
            # Not looked up before: another process may start on the same empty database.
            if error.code != _NAMESPACE_EXISTS:
                raise
            await self._database.command("collMod", "sequences", validator=validator)

    @stored
    @without_time_limit
    async def upgrade(self, progress: Callable[[int, int], None]) -> None:
        """Bring an older layout to this version; `progress` gets how many outputs are done, of how many.

        It may be stopped and begun again at any point.
        """
        if await self.version() == 1:
            await self._refuse_old_writers()
            for collection, names in _OLD_INDEXES.items():
                there = await self._database[collection].index_information()
                for name in names:
                    if name in there:
                        await self._database[collection].drop_index(name)
            async for organization in self._collection("sequences").find({"next": {"$exists": True}}):
                await self._fence(organization)
                await self._upgrade_groups(organization)
            await self._upgrade_outputs(progress)
            await self._collection("sequences").update_many({}, {"$unset": {"next": "", "now": "", "open": ""}})
            where = {"_id": "layout"}
            await self._collection("meta").update_one(where, {"$set": {"version": VERSION}}, upsert=True)
        await self.check()
        await self._indexes.ensure()

    async def _fence(self, organization: dict[str, Any]) -> None:
        """Put tombstones on the ids of batches in flight: whatever wrote them is of the old version."""
        tombstones = [
            InsertOne(
                {
                    "organization_id": organization["_id"],
                    "group_id": batch["group_id"],
                    "id": batch["from"] + offset,
                    "tombstone": organization["now"],
                }
            )
            for batch in organization.get("open", ())
            for offset in range(batch["n"])
        ]
        if tombstones:
            try:
                await self._collection("outputs").bulk_write(tombstones, ordered=False)
            except BulkWriteError as error:
                if any(failed["code"] != DUPLICATE_KEY for failed in error.details["writeErrors"]):
                    raise

    async def _groups_of(self, organization_id: int) -> AsyncIterator[str]:
        """Yield every group that has outputs; `distinct` would end at 16 MB of names."""
        pipeline: list[dict[str, Any]] = [
            {"$match": {"organization_id": organization_id}},
            # In the order of the index `id`, which is then read one entry per group.
            {"$sort": {"organization_id": 1, "group_id": 1}},
            {"$group": {"_id": "$group_id"}},
        ]
        # Small batches: a cursor that is not asked for 10 minutes is closed.
        found = self._collection("outputs").aggregate(pipeline, batchSize=_BATCH, allowDiskUse=True)
        async for group in found:
            yield group["_id"]

    async def _upgrade_groups(self, organization: dict[str, Any]) -> None:
        groups, jobs, days = (self._collection(name) for name in ("groups", "jobs", "days"))
        outputs = self._collection("outputs")
        async for group_id in self._groups_of(organization["_id"]):
            owner = {"organization_id": organization["_id"], "group_id": group_id}
            old = await groups.find_one(owner) or {}
            newest = await outputs.find_one({**owner, "key_hash": {"$exists": True}}, sort=[("id", -1)])
            past = old.get("days", {})
            if past:
                await days.bulk_write(
                    [
                        ReplaceOne({**owner, "date": date}, {**owner, "date": date, **counts}, upsert=True)
                        for date, counts in past.items()
                    ]
                )
            state = {
                "next": organization["next"],
                "now": organization["now"],
                "open": [],
                "last_id": newest["id"] if newest else 0,
                "last_change": newest["update_date"] if newest else organization["now"],
                "jobs": await jobs.count_documents(owner),
                "tombstones": await outputs.count_documents({**owner, "tombstone": {"$exists": True}}),
                "recount": True,
                "due": organization["now"],
            }
            await groups.update_one(owner, {"$set": state, "$unset": {"days": "", "counted": ""}}, upsert=True)
            moved: list[dict[str, Any]] = [
                {"$set": {"first_write": "$create_date", "last_write": "$create_date"}},
                {"$unset": ["create_date", "batch"]},
            ]
            await jobs.update_many({**owner, "create_date": {"$exists": True}}, moved)

    async def _upgrade_outputs(self, progress: Callable[[int, int], None]) -> None:
        outputs = self._collection("outputs")
        total, done = await outputs.estimated_document_count(), 0
        old = {"$expr": {"$eq": [{"$strLenCP": {"$ifNull": ["$content_hash", ""]}}, _OLD_HASH]}}
        found = outputs.with_options(codec_options=RAW).find(old, batch_size=_BATCH)
        async for items in decoded_batches(found, _BATCH):
            await outputs.bulk_write([_upgraded(item) for item in items], ordered=False)
            done += len(items)
            progress(done, max(total, done))


def _upgraded(item: dict[str, Any]) -> UpdateOne:
    """Return the update that gives an item its new content hash and the copies of its tags."""
    data, tags = documents.canonical(item["data"]), documents.canonical(item["tags"])
    # As a scraper sends them: without what the service has given them.
    sent = [{k: v for k, v in file.items() if k not in ("id", "create_date")} for file in item["files"]]
    files = documents.canonical(sent) if sent else b"[]"
    rest = (item["source_url"].encode(), item["value_hash"].encode(), files)
    changes = {"content_hash": content_hash(documents.sha256(data), tags, rest), **filter_tags(item["tags"])}
    where = {"_id": item["_id"], "organization_id": item["organization_id"], "group_id": item["group_id"]}
    return UpdateOne({**where, "id": item["id"]}, {"$set": changes})
