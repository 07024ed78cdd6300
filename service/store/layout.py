"""The layout version of a database. Other versions are refused: data are moved by export and import."""

from __future__ import annotations

from datetime import UTC, datetime

from service.store.connection import DURABLE, MAJORITY, Collection, Database
from service.store.contract import stored
from service.store.errors import DatabaseRefused
from service.store.indexes import Indexes

# 3: the identity of an output is its `_id`.
VERSION = 3
_MOVE = "export the outputs with the version that wrote it, and import them with this one (docs/operations.md)"
_NO_REPLICA_SET = (
    "MONGO_URL is a MongoDB without a replica set: start mongod with --replSet rs0, and run rs.initiate() in mongosh, "
    "once; one member is enough, and the data stay (docs/operations.md)"
)


class Layout:
    """The version marker of a database and the first id of its groups, in `meta`."""

    def __init__(self, database: Database, indexes: Indexes) -> None:
        self._database, self._indexes = database, indexes
        self._found: int | None = None  # as of the last check
        self._meta: Collection = database.get_collection("meta", write_concern=DURABLE, read_concern=MAJORITY)

    async def require(self) -> None:
        """Raise DatabaseRefused if the database has another version's layout, which would be read as empty."""
        if self._found != VERSION:
            await self.check()

    @stored
    async def check(self) -> None:
        """Raise DatabaseRefused unless the database is a replica set with this version's layout; mark an empty one."""
        hello = await self._database.command("hello")
        if "setName" not in hello and hello.get("msg") != "isdbgrid":  # mongos
            raise DatabaseRefused(_NO_REPLICA_SET)
        version = await self.version()
        if version is None:
            marker = {"$setOnInsert": {"version": VERSION}}
            await self._meta.update_one({"_id": "layout"}, marker, upsert=True)
            version = VERSION
        self._found = version
        if version != VERSION:
            self._indexes.forget()
            age = "an older" if version < VERSION else "a newer"
            raise DatabaseRefused(f"the database was written by {age} version of the service: {_MOVE}")

    @stored
    async def first_id(self) -> int:
        """Return the first id of a group that has none yet."""
        ids = await self._meta.find_one({"_id": "ids"})
        return 1 if ids is None else int(ids["first"])

    @stored
    async def raise_first_id(self) -> None:
        """Let groups begin above all ids that they may have had before a restore: consumers know their old ones."""
        first = int(datetime.now(UTC).timestamp() * 1000)
        await self._meta.update_one({"_id": "ids"}, {"$max": {"first": first}}, upsert=True)

    async def version(self) -> int | None:
        """Return the version of a database's layout; None if the database is empty."""
        marker = await self._meta.find_one({"_id": "layout"})
        if marker is not None:
            return int(marker["version"])
        # The first version had no marker, and kept the ids of an organization here.
        first = await self._database["sequences"].find_one({"next": {"$exists": True}}, {"_id": 1})
        return None if first is None else 1
