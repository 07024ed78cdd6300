"""The database that a command works on: the one of MONGO_URL, else the one of the data folder."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from service.command import command
from service.runtime.local_mongo import Folder, local_mongo
from service.settings import Settings, SettingsError
from service.store import Store, Vault

T = TypeVar("T")

_KEY_ID = "local"


@contextmanager
def database(settings: Settings, *, create: bool = False) -> Iterator[tuple[Settings, str]]:
    """Yield the settings with what the data folder adds to them, and the address of the database.

    Only `create` makes a data folder: in another working directory, a command would otherwise start a second, empty
    database beside the one of the running service.
    """
    if settings.mongo_url:
        yield settings, settings.mongo_url
        return
    folder = Folder(settings.data_path)
    if not (create or folder.is_used):
        raise SettingsError(
            f"There is no database in {settings.data_path}. Run this where the service was started, or set DATA_DIR to "
            f"its data folder or MONGO_URL to its database. A first `{command('serve')}` makes the folder."
        )
    with local_mongo(settings.data_path, cache_gb=settings.local_mongo_cache_gb, shared=create) as mongo:
        if not settings.secret_keys:
            keys = folder.secret_keys(lambda: Vault.new_key(_KEY_ID)) if create else folder.known_secret_keys()
            settings = dataclasses.replace(settings, secret_keys=keys)
        yield settings, mongo.url


def with_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Return what `work` returns when it is given the store."""

    async def run(settings: Settings, url: str) -> T:
        store = Store.connect(settings, url)
        try:
            return await work(store)
        finally:
            await store.close()

    with database(settings) as (settings, url):
        return asyncio.run(run(settings, url))
