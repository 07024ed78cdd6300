"""The only part of a request's path that knows Motor and PyMongo.

Other code imports what this file names, never a submodule.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from service.settings import Settings
from service.store.actor import ACTOR
from service.store.analysts import AnalystError, Analysts
from service.store.backup import Backup
from service.store.browser_state import BrowserState, Selection
from service.store.capacity import Capacity, Work
from service.store.clock import now
from service.store.connection import Client, PoolUse, close, connect
from service.store.contract import stored
from service.store.cookies import Cookies
from service.store.counters import Counters
from service.store.crawls import Crawls
from service.store.deliveries import Lease
from service.store.errors import (
    CursorExpired,
    CursorInvalid,
    DatabaseRefused,
    ItemExists,
    Misconfigured,
    StoreError,
    StoreUnavailable,
)
from service.store.figures import Figures, InFlight
from service.store.group import Group
from service.store.groups import Groups
from service.store.indexes import Indexes
from service.store.jobs import Jobs
from service.store.judging import Judging
from service.store.layout import Layout
from service.store.listing import Chunk, Key, Listing
from service.store.local_storage import LocalStorage
from service.store.messages import TEST, Message, Outcome, new_message
from service.store.missing_items import Deletable, MissingItems
from service.store.organizations import Organizations
from service.store.origins import Origins
from service.store.outputs import Outputs, Page, Patch, Place, Query
from service.store.outputs.comparing import ComparingCache
from service.store.outputs.documents import PageText, render_page
from service.store.outputs.documents import dump as render_json
from service.store.outputs.encode import ItemTooLarge
from service.store.outputs.fields import is_filled
from service.store.outputs.live import Behind, Form, Gate, Part
from service.store.outputs.missing import Missing
from service.store.outputs.paths import Paths
from service.store.outputs.query import SERVED as OUTPUT_FIELDS
from service.store.readiness import Readiness
from service.store.reviews import Reviews
from service.store.sealing import Rotation, SealedRecords
from service.store.sessions import KINDS as SESSION_SECRETS
from service.store.sessions import (
    LeaseInUse,
    LeaseLost,
    PoolDeleted,
    Release,
    SessionLease,
    Sessions,
    TooManySessions,
    VersionConflict,
    Wanted,
    served_session,
    wanted,
)
from service.store.sessions import Pool as SessionPool
from service.store.silence import Silence
from service.store.time_budget import in_time, response_has_begun, time_budget
from service.store.tokens import (
    DEFAULT_SCOPES,
    GRANTABLE,
    MAX_TOKENS,
    SCOPES,
    TOKEN_PREFIX,
    Token,
    Tokens,
    TooManyTokens,
    hash_token,
    is_token,
    new_secret,
)
from service.store.upkeep import Upkeep
from service.store.vault import Vault, VaultError
from service.store.watch import Watch
from service.store.webhooks import MAX_WEBHOOKS, SECRET_PREFIX, TooManyWebhooks, Webhook, Webhooks

__all__ = [
    "ACTOR",
    "DEFAULT_SCOPES",
    "GRANTABLE",
    "MAX_TOKENS",
    "MAX_WEBHOOKS",
    "OUTPUT_FIELDS",
    "SCOPES",
    "SECRET_PREFIX",
    "SESSION_SECRETS",
    "TEST",
    "TOKEN_PREFIX",
    "AnalystError",
    "Behind",
    "BrowserState",
    "Chunk",
    "Crawls",
    "CursorExpired",
    "CursorInvalid",
    "DatabaseRefused",
    "Deletable",
    "Form",
    "Group",
    "Groups",
    "InFlight",
    "ItemExists",
    "ItemTooLarge",
    "Key",
    "Lease",
    "LeaseInUse",
    "LeaseLost",
    "Listing",
    "Message",
    "Misconfigured",
    "Missing",
    "Outcome",
    "Outputs",
    "Page",
    "PageText",
    "Part",
    "Patch",
    "Place",
    "PoolDeleted",
    "Query",
    "Readiness",
    "Release",
    "Rotation",
    "SealedRecords",
    "Selection",
    "SessionLease",
    "SessionPool",
    "Sessions",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Token",
    "Tokens",
    "TooManySessions",
    "TooManyTokens",
    "TooManyWebhooks",
    "Vault",
    "VaultError",
    "VersionConflict",
    "Wanted",
    "Webhook",
    "Webhooks",
    "hash_token",
    "in_time",
    "is_filled",
    "is_token",
    "new_message",
    "new_secret",
    "now",
    "render_json",
    "render_page",
    "response_has_begun",
    "served_session",
    "time_budget",
    "wanted",
]

log = logging.getLogger("service.store")

# A dead writer blocks the readers of its group for the lease plus this, at most.
REAP_SECONDS = 2.0
_RETRY_SECONDS = 1.0
# The collections whose indexes the upkeep of groups needs: that of other collections may be missing.
_LOOKED_AFTER = ("groups", "outputs", "jobs", "days", "versions")


class Store:
    """All resources on one database. Every method takes the organization or the group it works for."""

    def __init__(self, settings: Settings, client: Client, pool: PoolUse | None = None, url: str = "") -> None:
        database = client[settings.mongo_database]
        vault = Vault.parse(settings.secret_keys, settings.sealed_only)
        counters = Counters(database)
        self._capacity = Capacity()
        self.client = client
        self.pool = pool or PoolUse()
        self.database = database
        self.encrypts = vault.active
        self.indexes = Indexes(database)
        self.layout = Layout(database, self.indexes)
        self.watch = Watch(database)
        self.jobs = Jobs(database, self.indexes)
        comparing = ComparingCache(database, settings.history_days)
        self.groups = Groups(database, self.jobs, comparing, self.indexes, settings.history_days)
        self.outputs = Outputs(database, self.jobs, comparing, self.indexes, self.watch, self._capacity, settings)
        self.paths = Paths(database, self.indexes)
        self.cookies = Cookies(database, vault, self.indexes)
        self.local_storage = LocalStorage(database, vault, counters, self.indexes)
        self.origins = Origins(database, vault, self.indexes)
        self.reviews = Reviews(database, counters, self.indexes)
        self.sessions = Sessions(client, database, vault, self.indexes, self._capacity)
        self.webhooks = Webhooks(database, vault, self.indexes)
        self.sessions.pools.lapsed = self.webhooks.session_lapsed
        self.tokens = Tokens(database)
        self.organizations = Organizations(database)
        self.analysts = Analysts(settings, database, url)
        self.backup = Backup(client, database, self.layout)
        judging = Judging(database, settings.mongo_timeout)
        self.missing = MissingItems(database, self.jobs, self.outputs, self.indexes)
        ids = self.outputs.ids
        self.crawls = Crawls(database, self.jobs, self.groups, self.webhooks, ids, self.indexes, self.missing, judging)
        self.silence = Silence(database, self.jobs, self.webhooks)
        late = self.crawls.notify_late, self.missing.continue_deletions, self.silence.notify
        self.upkeep = Upkeep(client, database, self.jobs, self.outputs.deletion, late, settings)
        self.figures = Figures(database, self.upkeep, self.sessions.pools)
        self._closed = False
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._building: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    def connect(cls, settings: Settings, url: str) -> Store:
        """Return the store of the database at `url`; it connects when used."""
        pool = PoolUse()
        return cls(settings, connect(settings, url, pool), pool, url)

    def within(self, current_work: Callable[[], Work | None], gate: Gate) -> None:
        """Set where requests and live pages reserve capacity for what they read."""
        self._capacity.current_work, self.outputs.live_pages.gate = current_work, gate

    async def ensure_indexes(self) -> None:
        """Check the layout and make all indexes; cheap when they exist already."""
        await self.layout.check()
        self.outputs.ids.first = await self.layout.first_id()
        await self.indexes.ensure()

    @property
    def browser_state(self) -> tuple[BrowserState, ...]:
        """The collections that scrapers' browsers are loaded with."""
        return (self.cookies, self.local_storage, self.origins)

    @property
    def sealed(self) -> tuple[SealedRecords, ...]:
        """The collections that hold secrets."""
        return (*self.browser_state, self.sessions.secrets, self.webhooks)

    @stored
    async def ping(self) -> bool:
        """Return whether the database responds and all indexes exist."""
        await self.database.command("ping")
        return self.indexes.are_ready

    @property
    def failures(self) -> int:
        """Return how often the upkeep of this process failed."""
        return self._failures + self.upkeep.failures

    def start_upkeep(self) -> None:
        """Make the indexes as soon as the database responds, then run the upkeep until cancelled."""
        self._task = asyncio.create_task(self._keep_up())

    async def close(self) -> None:
        """Wait for the writes under way, then disconnect; closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        for task in (self._task, self._building, self._looking):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        await self.watch.close()
        await self.sessions.queue.close()
        await self.outputs.write_queues.close()
        await close(self.client)

    def _look_after_groups(self) -> None:
        """Run the upkeep beside the reaper: a large group must not delay the recovery of dead batches."""
        if self._looking is not None and not self._looking.done():
            return
        done, self._looking = self._looking, asyncio.create_task(self.upkeep.run())
        if done is not None:
            done.result()  # raises its exception

    async def _build_indexes(self) -> bool:
        """Build the indexes beside everything else; return whether all exist. Raises StoreError if one cannot be."""
        if self._building is None:
            self._building = asyncio.create_task(self.ensure_indexes())
        done, _ = await asyncio.wait({self._building}, timeout=_RETRY_SECONDS)
        if done:
            build, self._building = self._building, None
            build.result()
        return bool(done)

    async def _keep_up(self) -> None:
        indexed, refused = False, ""
        while True:
            try:
                failed: StoreError | None = None
                try:
                    if indexed:
                        await self.indexes.verify()
                    else:
                        indexed = await self._build_indexes()
                except StoreError as error:
                    failed = error
                # Also if an index of another collection cannot be made.
                if self.indexes.have("groups", "outputs") and (ended := await self.outputs.recovery.reap()):
                    log.warning("ended batches of dead writers", extra={"batches": ended})
                if not isinstance(failed, DatabaseRefused):
                    if self.indexes.have(*_LOOKED_AFTER):
                        self._look_after_groups()
                    await self.sessions.pools.purge()
                if failed is not None:
                    raise failed
            except DatabaseRefused as error:
                if str(error) != refused:  # once, not every second
                    log.error(str(error))
                indexed, refused = False, str(error)
            except StoreError as error:
                log.warning("upkeep waits for the database", extra={"error": str(error)})
                self._failures += 1
                indexed = False  # the database that comes back may be restored or new
            except Exception as error:
                # Without upkeep, a dead writer would block the readers of its group for ever.
                log.error("upkeep failed", extra={"error": type(error).__name__})
                self._failures += 1
            # At random, so that processes do not all ask at once.
            pause = REAP_SECONDS if indexed else _RETRY_SECONDS
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
