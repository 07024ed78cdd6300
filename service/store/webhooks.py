"""Webhooks: the addresses that an organization's events are sent to, and the secrets that sign them."""

from __future__ import annotations

import base64
import secrets
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from service.store.connection import Database
from service.store.contract import stored
from service.store.deliveries import Deliveries
from service.store.errors import StoreError
from service.store.group import Group
from service.store.indexes import Indexes
from service.store.listing import Record
from service.store.messages import (
    GROUP_CHANGED,
    GROUP_SILENT,
    JOB_FAILED,
    JOB_FINISHED,
    Event,
    job_ended,
    pool_empty,
    session_changed,
)
from service.store.sealing import SealedRecords
from service.store.sessions import Pool, served_session
from service.store.vault import Vault

# The prefix of secrets in the Standard Webhooks specification.
SECRET_PREFIX = "whsec_"  # noqa: S105
_SECRET = 32  # bytes
# Bounded, as the sender looks at each of them every few seconds.
MAX_WEBHOOKS = 50


class TooManyWebhooks(StoreError):
    """The organization has the maximum number of webhooks."""


class Webhook(NamedTuple):
    """Where a message goes, and what signs it."""

    organization_id: int
    webhook_id: str
    url: str
    secret: str
    format: str


class Webhooks(SealedRecords):
    """The webhooks of an organization."""

    name = "webhooks"
    identity = ("webhook_id",)
    # A secret opens only with its own address: changing the address in the database does not redirect messages.
    bound = ("url",)

    def __init__(self, database: Database, vault: Vault, indexes: Indexes) -> None:
        super().__init__(database, vault, indexes)
        self.deliveries = Deliveries(database, indexes)

    @stored
    async def create(self, organization_id: int, webhook: Record) -> Record:
        """Make a webhook and return it with its secret, which is not shown again. Raises TooManyWebhooks."""
        self._indexes.require(self.name)
        if await self._records.count_documents({"organization_id": organization_id}) >= MAX_WEBHOOKS:
            raise TooManyWebhooks
        secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET)).decode()
        moment = await self.deliveries.now()
        record: Record = {
            "organization_id": organization_id,
            "webhook_id": str(uuid.uuid4()),
            **webhook,
            "create_date": moment,
            "value": secret,
            "switched_off": None,
            "last_result": None,
            "accepted": moment,
            "refused": 0,
            "dropped": 0,
            "since": moment,
            "due": moment,
        }
        await self._records.insert_one({**record, **self._sealed(record)})
        if await self._records.count_documents({"organization_id": organization_id}) > MAX_WEBHOOKS:
            # Others were made at the same time: all of these are refused, rather than none.
            await self._records.delete_one({name: record[name] for name in ("organization_id", "webhook_id")})
            raise TooManyWebhooks
        return {**_served(record), "secret": secret}

    @stored
    async def list(self, organization_id: int) -> list[Record]:
        """Return the webhooks, oldest first."""
        self._indexes.require(self.name)
        cursor = self._records.find({"organization_id": organization_id}).sort([("create_date", 1), ("webhook_id", 1)])
        return [_served(record) for record in await cursor.to_list(None)]

    @stored
    async def find(self, organization_id: int, webhook_id: str) -> Webhook | None:
        """Return where to send the messages of a webhook. Raises VaultError if its secret does not open."""
        self._indexes.require(self.name)
        record = await self._records.find_one({"organization_id": organization_id, "webhook_id": webhook_id})
        if record is None:
            return None
        return Webhook(organization_id, webhook_id, record["url"], self._open(record).value, _format(record))

    @stored
    async def exists(self, organization_id: int, webhook_id: str) -> bool:
        """Return whether an organization has this webhook."""
        self._indexes.require(self.name)
        where = {"organization_id": organization_id, "webhook_id": webhook_id}
        return await self._records.find_one(where, ["_id"]) is not None

    @stored
    async def delete(self, organization_id: int, webhook_id: str) -> bool:
        """Remove a webhook and its deliveries; return whether there was one."""
        self._indexes.require(self.name, "deliveries")
        owner = {"organization_id": organization_id, "webhook_id": webhook_id}
        result = await self._records.delete_one(owner)
        await self.deliveries.remove(owner)
        return bool(result.deleted_count)

    @stored
    async def job_finished(self, group: Group, job: dict[str, Any]) -> None:
        """Tell the webhooks of a group that a job has finished; telling the same again changes nothing.

        `job` is as the API serves it, with `job_id` and `finish_date`.
        """
        failed = "failed" in (job.get("state"), job.get("verdict"))
        for type in (JOB_FINISHED, JOB_FAILED) if failed else (JOB_FINISHED,):
            await self._add(group.organization_id, job_ended(type, group.group_id, job))

    @stored
    async def group_silent(self, group: Group, since: datetime, last_write: datetime | None, hours: int) -> None:
        """Tell the webhooks of a group that nothing was written since a moment; telling it again changes nothing."""
        data = {"group_id": group.group_id, "silent_hours": hours, "last_write": last_write}
        await self._add(group.organization_id, Event(GROUP_SILENT, group.group_id, since, data))

    @stored
    async def session_changed(self, organization_id: int, session: Record) -> None:
        """Tell the webhooks that a session waits for a login or is blocked; telling the same again changes nothing."""
        await self._add(organization_id, session_changed(session))

    async def session_lapsed(self, pool: Pool, session: Record) -> None:
        """Tell the webhooks what a lease that nobody has released has left of its session."""
        await self.session_changed(pool.organization_id, served_session(pool, session))

    @stored
    async def pool_empty(self, organization_id: int, pool: str, before: datetime) -> None:
        """Tell the webhooks that a pool had no session to lease, given when they were told before."""
        await self._add(organization_id, pool_empty(pool, before))

    @stored
    async def group_removed(self, group: Group, last_id: int) -> None:
        """Tell the webhooks of a group that its items are deleted: it is about to vanish from the changed groups."""
        if names := await self._of(group.organization_id, group.group_id, GROUP_CHANGED):
            await self.deliveries.add_change(group, names, last_id)

    async def _add(self, organization_id: int, event: Event) -> None:
        if ids := await self._of(organization_id, event.group_id, event.type):
            await self.deliveries.add(organization_id, ids, event)

    async def _of(self, organization_id: int, group_id: str | None, event: str) -> Sequence[str]:
        """Return the ids of the webhooks to tell about an event of a group, or of none."""
        self._indexes.require(self.name, "deliveries")
        where = {
            "organization_id": organization_id,
            "events": event,
            "switched_off": None,
            "group_id": {"$in": list({None, group_id})},
        }
        return [webhook["webhook_id"] for webhook in await self._records.find(where, ["webhook_id"]).to_list(None)]


def _format(record: Record) -> str:
    """Return the format of a webhook; those of earlier versions have none."""
    return str(record.get("format", "standard"))


def _served(record: Record) -> Record:
    served = {name: record[name] for name in ("webhook_id", "url", "events", "group_id", "label", "create_date")}
    served["format"] = _format(record)
    state = {name: record[name] for name in ("switched_off", "last_result")}
    return {**served, "active": record["switched_off"] is None, **state, "dropped": record.get("dropped", 0)}
