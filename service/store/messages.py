"""Messages to webhooks as they are stored, and what their receivers answered."""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime
from typing import Any, NamedTuple

from service.store.clock import now
from service.store.listing import Record
from service.store.outputs.documents import dump

JOB_FINISHED, JOB_FAILED = "job.finished", "job.failed"
GROUP_CHANGED, GROUP_SILENT = "group.changed", "group.silent"
POOL_EMPTY, SESSION_BLOCKED, SESSION_NEEDS_LOGIN = "pool.empty", "session.blocked", "session.needs_login"
TEST = "webhook.test"
# A message of one of these replaces an older one about the same job that waits.
OF_JOBS = [JOB_FINISHED, JOB_FAILED]
MAX_RESPONSE = 200


class Outcome(NamedTuple):
    """The outcome of an attempt: status and beginning of the response, or the reason why there is none."""

    status: int | None
    response: str = ""
    error: str | None = None

    @property
    def is_success(self) -> bool:
        return self.error is None


class Message(NamedTuple):
    """One message: its id, its type and its body."""

    id: str
    type: str
    body: str
    attempts: int = 0


def new_message(type: str, data: dict[str, Any], id: str | None = None) -> Message:
    """Return a message that says something now, under a new id if none is given."""
    body = dump({"type": type, "timestamp": now(), "data": data}).decode()
    return Message(id or f"msg_{uuid.uuid4().hex}", type, body)


class Event(NamedTuple):
    """What happened to a group, job, pool or session. Of two about the same, that with the higher version counts."""

    type: str
    group_id: str | None
    version: int | datetime
    data: dict[str, Any]
    job_id: str | None = None
    pool: str | None = None
    session: str | None = None

    @property
    def subject(self) -> Record:
        """What the message is about, as it is stored with it."""
        return {name: getattr(self, name) for name in ("group_id", "job_id", "pool", "session")}

    @property
    def replaced(self) -> Record:
        """The filter for older messages about the same."""
        types = [self.type] if self.job_id is None else OF_JOBS
        return {**self.subject, "type": {"$in": types}, "version": {"$lt": self.version}}

    def record(self, organization_id: int, webhook_id: str, moment: datetime) -> Record:
        """Return the message to a webhook, with an id that is made from its content."""
        parts = [part for part in self.subject.values() if part is not None]
        id = _name(webhook_id, self.type, *parts, str(self.version))
        message = new_message(self.type, self.data, id)
        return {**new_record(organization_id, webhook_id, message, moment), **self.subject, "version": self.version}


def _name(*parts: str) -> str:
    """Return the id of a message with this content; different content gives a different id."""
    text = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
    return f"msg_{hashlib.sha256(text).hexdigest()[:32]}"


def group_changed(group_id: str, last_id: int) -> Event:
    """Return the event that a group has changed, up to an id."""
    return Event(GROUP_CHANGED, group_id, last_id, {"group_id": group_id, "last_id": last_id})


def job_ended(type: str, group_id: str, job: Record) -> Event:
    """Return an event about a job that has ended, as the API serves it: the later end counts."""
    return Event(type, group_id, job["finish_date"], {"group_id": group_id, "job": job}, job["job_id"])


def session_changed(session: Record) -> Event:
    """Return the event that a session waits for a login or is blocked, from the session as the API serves it."""
    type = SESSION_BLOCKED if session["state"] == "blocked" else SESSION_NEEDS_LOGIN
    data = {name: session[name] for name in ("pool", "name", "state")}
    return Event(type, None, session["update_date"], data, pool=session["pool"], session=session["name"])


def pool_empty(pool: str, before: datetime) -> Event:
    """Return the event that a pool had no session to lease, given when that was said before."""
    return Event(POOL_EMPTY, None, before, {"pool": pool}, pool=pool)


def new_record(organization_id: int, webhook_id: str, message: Message, moment: datetime) -> Record:
    """Return a message as it is stored, due at once."""
    return {
        "_id": message.id,
        "organization_id": organization_id,
        "webhook_id": webhook_id,
        "type": message.type,
        "group_id": None,
        "body": message.body,
        "size": len(message.body.encode()),
        "create_date": moment,
        "state": "pending",
        "attempts": message.attempts,
        "last_attempt": None,
        "status": None,
        "response": "",
        "error": None,
        "due": moment,
    }


def attempted(message: Message, outcome: Outcome, moment: datetime) -> Record:
    """Return what an attempt changes of a message."""
    return {
        "state": "delivered" if outcome.is_success else "failed",
        "attempts": message.attempts + 1,
        "last_attempt": moment,
        "status": outcome.status,
        "response": outcome.response[:MAX_RESPONSE],
        "error": outcome.error,
    }


def result_of(message: Message, outcome: Outcome, moment: datetime) -> Record:
    """Return what a webhook shows of its newest attempt."""
    return {
        "date": moment,
        "type": message.type,
        "delivered": outcome.is_success,
        "status": outcome.status,
        "error": outcome.error,
    }


def served(record: Record) -> Record:
    """Return a message as the list of deliveries shows it."""
    names = ("type", "group_id", "create_date", "state", "attempts", "last_attempt", "status", "response", "error")
    shown = {name: record[name] for name in names}
    return {"delivery_id": record["_id"], **shown, "next_attempt": record.get("due")}
