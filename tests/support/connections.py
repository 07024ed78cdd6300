"""One driver client for the stores of a test process: a client of its own costs a test 40 ms of CPU."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pymongo import AsyncMongoClient

from service.settings import Settings
from service.store import Store, connection
from service.store.indexes import INDEXES
from service.store.layout import VERSION


def use_pymongo() -> bool:
    """Put PyMongo's own asyncio client in the place of Motor's, if `TEST_DRIVER=pymongo` asks for it."""
    if os.environ.get("TEST_DRIVER") != "pymongo":
        return False
    connection.client_class = lambda threads: AsyncMongoClient
    return True


_CLIENTS = 4


@contextmanager
def shared_client(url: str) -> Iterator[None]:
    """Let `Store.connect` to this server lend a client that stays open between tests."""
    if use_pymongo():  # its clients belong to an event loop, and each test has its own
        yield
        return
    connect = Store.connect
    owners: dict[tuple[float, int], Store] = {}

    def lend(settings: Settings, address: str) -> Store:
        if address != url:
            return connect(settings, address)
        options = settings.mongo_timeout, settings.mongo_pool  # the settings that a client depends on
        if options not in owners:
            if len(owners) == _CLIENTS:  # each has threads that ask the server how it is
                owners.pop(next(iter(owners))).client.close()
            owners[options] = connect(settings, url)
        owner = owners[options]
        store = Store(settings, _lent(owner.client), owner.pool, url)
        if (url, store.database.name) in _indexed:
            _have_indexes(store)
        return store

    with patch.object(Store, "connect", lend), patch("service.store.close", _close):
        yield
    for owner in owners.values():
        owner.client.close()


def _lent(client: Any) -> Any:
    """Return a client of the same connections: for the event loop that uses it first, and `close` leaves them open."""
    lent = copy.copy(client)
    lent._io_loop = None
    lent.__class__ = type("LentClient", (type(client),), {"close": lambda self: None, "is_lent": True})
    return lent


async def _close(client: Any) -> None:
    """Close a client unless it is lent: the thread that waits for the database takes half a millisecond."""
    if not getattr(type(client), "is_lent", False):
        await connection.close(client)


_indexed: set[tuple[str, str]] = set()


async def make_indexes_once(store: Store, url: str) -> None:
    """Make the indexes of a database that is kept for the whole run; looking for them takes ten round trips."""
    database = url, store.database.name
    if database not in _indexed:
        await store.ensure_indexes()
        _indexed.add(database)
    _have_indexes(store)


def _have_indexes(store: Store) -> None:
    store.indexes._ready.update(INDEXES)
    store.indexes._all_ready.set()
    store.layout._found = VERSION

    async def nothing() -> None:
        """Leave them as they are."""

    def start_upkeep(start: Callable[[], None] = store.start_upkeep) -> None:
        store.ensure_indexes = nothing  # type: ignore[method-assign]
        start()

    store.ensure_indexes = nothing  # type: ignore[method-assign]
    store.start_upkeep = start_upkeep  # type: ignore[method-assign]
    begin_if_wanted(store, "_keep_up", "upkeep")


class Background:
    """Which work beside requests begins. The upkeep would look after the groups of all the tests before."""

    wanted: set[str] = set()


def begin_if_wanted(owner: object, method: str, name: str) -> None:
    """Let a background task begin only in tests that use the fixture of its name."""
    work = getattr(owner, method)

    async def begin() -> None:
        if name not in Background.wanted:
            await asyncio.Event().wait()
        await work()

    setattr(owner, method, begin)
