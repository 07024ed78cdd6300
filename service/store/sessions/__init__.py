"""Sessions: browser identities in pools, leased to one worker at a time."""

from __future__ import annotations

from service.store.capacity import Capacity
from service.store.connection import Client, Database
from service.store.indexes import Indexes
from service.store.sessions.leases import (
    LeaseInUse,
    LeaseLost,
    Leases,
    Release,
    SessionLease,
    Wanted,
    served_session,
    wanted,
)
from service.store.sessions.pools import Pool, Pools, TooManySessions
from service.store.sessions.queue import PoolDeleted, Queue
from service.store.sessions.receipts import Receipts
from service.store.sessions.records import Records, VersionConflict
from service.store.sessions.secrets import KINDS, Secrets
from service.store.sessions.watch import SessionWatch
from service.store.vault import Vault

__all__ = [
    "KINDS",
    "LeaseInUse",
    "LeaseLost",
    "Pool",
    "PoolDeleted",
    "Release",
    "SessionLease",
    "Sessions",
    "TooManySessions",
    "VersionConflict",
    "Wanted",
    "served_session",
    "wanted",
]


class Sessions:
    """The sessions of all organizations: their pools, records, secrets and leases."""

    def __init__(self, client: Client, database: Database, vault: Vault, indexes: Indexes, capacity: Capacity) -> None:
        receipts = Receipts(database)
        self.pools = Pools(client, database, receipts, indexes)
        self.secrets = Secrets(database, vault, indexes, capacity)
        self.records = Records(client, database, self.pools, self.secrets, receipts)
        self.leases = Leases(client, database, self.pools, self.secrets, receipts, indexes)
        self.queue = Queue(self.pools, self.leases, SessionWatch(database))
        self.records.freed = self.leases.freed = self.queue.wake
