"""The connection to MongoDB: how it is opened, and what durable and committed mean."""

from __future__ import annotations

import os
from typing import Any

from pymongo import WriteConcern
from pymongo.read_concern import ReadConcern

from service.settings import Settings

# Motor reads this at import and takes 5 x cores otherwise: fewer threads than connections would
# let a few slow operations hold up all others.
os.environ.setdefault("MOTOR_MAX_WORKERS", "64")

from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
)

type_ = dict[str, Any]
Client = AsyncIOMotorClient[type_]
Database = AsyncIOMotorDatabase[type_]
Collection = AsyncIOMotorCollection[type_]

# `j` matters on a single server, where a majority is itself; a replica set journals it anyway.
DURABLE = WriteConcern(w="majority", j=True)
# For what the reaper makes good if a crash takes it back.
COMMITTED = WriteConcern(w="majority")
MAJORITY = ReadConcern("majority")


def connect(settings: Settings, url: str) -> Client:
    """Return a client that gives up on an operation after `mongo_timeout`; connects when used."""
    return AsyncIOMotorClient(
        url,
        tz_aware=True,
        maxPoolSize=settings.mongo_pool,
        timeoutMS=int(settings.mongo_timeout * 1000),
        serverSelectionTimeoutMS=int(settings.mongo_timeout * 1000),
        connectTimeoutMS=int(settings.mongo_timeout * 1000),
        appname="scraping-data-service",
    )
