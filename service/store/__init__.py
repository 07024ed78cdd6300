"""The only place that knows Motor and PyMongo; one file a resource."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from pymongo.errors import PyMongoError

from service.settings import Settings
from service.store.browser_state import BrowserState, now
from service.store.connection import Client, PoolUse, connect
from service.store.contract import stored
from service.store.cookies import Cookies
from service.store.documents import dump as render_json
from service.store.errors import StoreError, StoreUnavailable
from service.store.groups import Groups
from service.store.items import ItemTooLarge, prepare
from service.store.local_storage import LocalStorage
from service.store.origins import Origins
from service.store.outputs import Outputs, Page, Query
from service.store.reviews import Reviews
from service.store.sequences import InFlight, Sequences
from service.store.time_budget import in_time, time_budget
from service.store.tokens import SCOPES, TOKEN_PREFIX, Token, Tokens, hash_token, is_token
from service.store.vault import Vault

__all__ = [
    "SCOPES",
    "TOKEN_PREFIX",
    "InFlight",
    "ItemTooLarge",
    "Page",
    "Query",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Token",
    "Tokens",
    "hash_token",
    "in_time",
    "is_token",
    "now",
    "prepare",
    "render_json",
    "time_budget",
]

log = logging.getLogger("service.store")

# A dead writer holds up its group for the lease and this at most.
REAP_SECONDS = 2.0
SWEEP_SECONDS = 3600.0
RETRY_SECONDS = 1.0
IN_FLIGHT_SECONDS = 1.0


class Store:
    """All resources on one database. Every method takes the organization it works for."""

    def __init__(self, settings: Settings, client: Client, pool: PoolUse | None = None) -> None:
        database = client[settings.mongo_database]
        vault = Vault.parse(settings.secret_keys)
        self.client = client
        self.pool = pool or PoolUse()
        self.database = database
        self.encrypts = vault.active
        self.sequences = Sequences(database, settings.lease_seconds)
        self.groups = Groups(database)
        self.outputs = Outputs(database, self.sequences, self.groups, settings)
        self.cookies = Cookies(database, vault)
        self.local_storage = LocalStorage(database, vault, self.sequences)
        self.origins = Origins(database, vault)
        self.reviews = Reviews(database, self.sequences)
        self.tokens = Tokens(database)
        self.sealed = (self.cookies, self.local_storage, self.origins)
        self._ready = False
        self._upkeep: asyncio.Task[None] | None = None

    @classmethod
    def connect(cls, settings: Settings, url: str) -> Store:
        """Return the store of the database at `url`; it connects when used."""
        try:
            pool = PoolUse()
            return cls(settings, connect(settings, url, pool), pool)
        except PyMongoError as error:
            # Its message may quote the address, which may hold a password.
            hint = "it is mongodb://host:port, with user name and password percent-encoded"
            raise StoreError(f"MONGO_URL cannot be used ({type(error).__name__}): {hint}") from None

    @stored
    async def ensure_indexes(self) -> None:
        """Make all indexes; costs nothing where they are there."""
        part: Outputs | Groups | Reviews
        for part in (self.outputs, self.groups, self.reviews):
            await part.ensure_indexes()
        for state in self.browser_state:
            await state.ensure_indexes()
        self._ready = True

    @property
    def browser_state(self) -> tuple[BrowserState, ...]:
        """The collections that hold secrets."""
        return (self.cookies, self.local_storage, self.origins)

    @stored
    async def ping(self) -> bool:
        """Return whether the database answers and all indexes are there."""
        await self.database.command("ping")
        return self._ready

    async def in_flight(self) -> InFlight | None:
        """Return the batches in flight, or None if the database does not say within a second."""
        try:
            with time_budget(IN_FLIGHT_SECONDS):
                return await self.sequences.in_flight()
        except StoreError:
            return None

    def start_upkeep(self) -> None:
        """Make the indexes as soon as the database answers, then end dead writers' batches."""
        self._upkeep = asyncio.create_task(self._keep_up())

    async def close(self) -> None:
        """Wait for the writes under way, then disconnect."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._upkeep
        await self.outputs.close()
        self.client.close()

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        next_sweep = loop.time() + random.uniform(0, SWEEP_SECONDS)
        indexed = self._ready
        while True:
            try:
                if not indexed:
                    await self.ensure_indexes()
                    indexed = True
                ended = await self.outputs.reap()
                if ended:
                    log.warning("ended batches of dead writers", extra={"batches": ended})
                if loop.time() > next_sweep:
                    next_sweep = loop.time() + SWEEP_SECONDS
                    await self.sequences.sweep()
            except StoreError as error:
                log.warning("upkeep waits for the database", extra={"error": str(error)})
                indexed = False  # what comes back may be another one, restored or new
            except Exception as error:
                # Without upkeep a dead writer would hold up its group for good.
                log.error("upkeep failed", extra={"error": type(error).__name__})
            # Apart from each other, so that processes do not all ask at once.
            pause = REAP_SECONDS if indexed else RETRY_SECONDS
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
