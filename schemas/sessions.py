"""Sessions: pools of browser identities, and the leases on them."""

from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields

from schemas.base import Base, Choice, Flag, JsonObject, PageQuery, Text, WholeNumber, optional, problem
from schemas.storage_state import StorageState, StorageStateInput

NAME_LENGTH = 128
LEASE_ID = r"[A-Za-z0-9_-]{22,64}"
STATES = ("ready", "resting", "leased", "needs_login", "blocked", "retired")
MARKS = ("ready", "needs_login", "blocked", "retired")
OUTCOMES = ("good", "bad", "blocked", "logged_out", "interrupted", "unused")

_MAX_LEASE = 3600
_DAY = 86_400


# What a storage state has at least, whatever was sent: browsers and tools rely on it.
_COOKIE = {"path": "/", "expires": -1, "httpOnly": False, "secure": False}
_ORIGIN: dict[str, Any] = {"localStorage": []}


class BrowserStorage(fields.Nested):
    """A storage state as Playwright writes it: checked, and kept as it was sent, with defaults for what is left out."""

    default_error_messages = {
        "null": problem("dict_type", "Must be an object, not null"),
        "type": problem("dict_type", "Must be an object"),
    }

    def __init__(self) -> None:
        super().__init__(StorageStateInput, metadata={"description": "Playwright's storageState, up to 4 MiB of JSON"})

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, *args: Any, **kwargs: Any
    ) -> Any:
        super()._deserialize(value, attr, data, *args, **kwargs)
        cookies, origins = value.get("cookies", []), value.get("origins", [])
        return {
            "cookies": [{**_COOKIE, **cookie} for cookie in cookies],
            "origins": [{**_ORIGIN, **origin} for origin in origins],
        }


def _user_data() -> JsonObject:
    return JsonObject(metadata={"description": "Any object, up to 64 KiB: user agent, proxy, account name"})


class LeaseId(Text):
    """The id of a lease, which its client may choose."""

    def __init__(self, **kwargs: Any) -> None:
        metadata = {"pattern": f"^{LEASE_ID}$", **kwargs.pop("metadata", {})}
        super().__init__(min_length=22, max_length=64, metadata=metadata, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        if not all(character.isascii() and (character.isalnum() or character in "_-") for character in text):
            raise ValidationError([problem("value_error", "Must have only A-Z a-z 0-9 _ -")])
        return text


class PoolSettings(Base):
    """The settings of a pool; those that are left out stay unchanged."""

    lease_seconds = WholeNumber(
        minimum=10, maximum=_MAX_LEASE, metadata={"description": "How long a lease lasts. Initially 300"}
    )
    max_lease_seconds = WholeNumber(
        minimum=10,
        maximum=7 * _DAY,
        metadata={"description": "How long a lease can be renewed, from when it was taken. Initially 14400"},
    )
    rest_seconds = WholeNumber(
        minimum=0, maximum=_DAY, metadata={"description": "How long a session rests after each use. Initially 0"}
    )
    max_errors = WholeNumber(
        minimum=1, maximum=100, metadata={"description": "Errors at which a session becomes blocked. Initially 3"}
    )
    max_uses = WholeNumber(
        minimum=1,
        allow_none=True,
        metadata={"description": "Uses after which a session is retired; null, the initial value: never"},
    )
    max_age_days = WholeNumber(
        minimum=1,
        maximum=36_500,
        allow_none=True,
        metadata={"description": "Age of a storage state at which a session is retired; null, initially: never"},
    )
    blocked_rest_seconds = WholeNumber(
        minimum=0,
        maximum=365 * _DAY,
        allow_none=True,
        metadata={"description": "How long a blocked session rests; null: it is retired. Initially 3600"},
    )


class SessionCounts(Base):
    """The number of sessions by state."""

    ready = fields.Integer(required=True)
    resting = fields.Integer(required=True)
    leased = fields.Integer(required=True)
    needs_login = fields.Integer(required=True)
    blocked = fields.Integer(required=True)
    retired = fields.Integer(required=True)


class Pool(Base):
    pool = fields.String(required=True)
    lease_seconds = fields.Integer(required=True)
    max_lease_seconds = fields.Integer(required=True)
    rest_seconds = fields.Integer(required=True)
    max_errors = fields.Integer(required=True)
    max_uses = fields.Integer(required=True, allow_none=True)
    max_age_days = fields.Integer(required=True, allow_none=True)
    blocked_rest_seconds = fields.Integer(required=True, allow_none=True)
    sessions = fields.Nested(SessionCounts, required=True)


class Session(Base):
    """A session without its secrets."""

    pool = fields.String(required=True)
    name = fields.String(required=True)
    state = fields.String(required=True, metadata={"enum": list(STATES)})
    note = fields.String(required=True)
    version = fields.Integer(
        required=True, metadata={"description": "Raised by PUT and by saves, not by taking; begins with 1"}
    )
    uses = fields.Integer(required=True)
    errors = fields.Float(required=True, metadata={"description": "In halves: a good use takes half an error off"})
    create_date = fields.DateTime(required=True)
    update_date = fields.DateTime(required=True)
    last_used = fields.DateTime(required=True, allow_none=True, metadata={"description": "When the last use ended"})
    rest_until = fields.DateTime(
        required=True, allow_none=True, metadata={"description": "While it rests or is blocked"}
    )
    owner = fields.String(required=True, allow_none=True, metadata={"description": "While it is leased"})
    lease_expires = fields.DateTime(required=True, allow_none=True, metadata={"description": "While it is leased"})


class SessionWithSecrets(Session):
    storage_state = fields.Nested(StorageState, required=True, allow_none=True)
    user_data = fields.Dict(required=True, allow_none=True)


class SessionInput(Base):
    """What a person or a tool puts; what is left out stays unchanged."""

    storage_state = BrowserStorage()
    user_data = _user_data()
    note = Text(max_length=1000)
    state = Choice(
        *MARKS, metadata={"description": "With a new storage_state: ready, and uses, age, errors and rest restart"}
    )
    if_version = WholeNumber(
        minimum=0,
        metadata={"description": "412 unless this is the present version; 0: the session must not exist"},
    )


class SessionsQuery(PageQuery):
    state = optional(Choice, *STATES, description="Only sessions in this state")


class LeaseInput(Base):
    lease_id = LeaseId(
        metadata={"description": "Chosen by the client, at random: the same request sent again returns the same lease"}
    )
    owner = Text(load_default="", max_length=NAME_LENGTH, metadata={"description": "Who works with the session"})
    seconds = WholeNumber(
        minimum=10, maximum=_MAX_LEASE, metadata={"description": "How long; without it, the pool's lease_seconds"}
    )
    name = Text(min_length=1, max_length=NAME_LENGTH, metadata={"description": "This session and no other"})
    wait = WholeNumber(
        load_default=0,
        minimum=0,
        maximum=60,
        metadata={"description": "Seconds to wait until a session is ready"},
    )
    shared = Flag(load_default=False, metadata={"description": "For reading only, beside up to 99 others"})


class Lease(Base):
    lease_id = fields.String(required=True)
    seconds = fields.Integer(
        required=True, metadata={"description": "How long the lease lasts, from when the request was sent"}
    )
    expires = fields.DateTime(required=True)
    session = fields.Nested(SessionWithSecrets, required=True)


class LeaseRenewal(Base):
    seconds = WholeNumber(minimum=10, maximum=_MAX_LEASE, metadata={"description": "Without it, the pool's"})
    storage_state = BrowserStorage()
    user_data = _user_data()


class LeaseRenewed(Base):
    seconds = fields.Integer(required=True)
    expires = fields.DateTime(required=True)
    saved = fields.Boolean(required=True)


class LeaseRelease(Base):
    outcome = Choice(*OUTCOMES, required=True)
    storage_state = BrowserStorage()
    user_data = _user_data()
    rest_seconds = WholeNumber(
        minimum=0, maximum=_DAY, metadata={"description": "How long the session rests; without it, the pool's"}
    )
    note = Text(max_length=1000)


class SessionReleased(Session):
    saved = fields.Boolean(required=True)


class SessionsDeleted(Base):
    deleted = fields.Integer(required=True)
