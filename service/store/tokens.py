"""Access tokens: only their SHA-256 is kept."""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from service.store.clock import now
from service.store.connection import DURABLE, Collection, Database
from service.store.contract import stored
from service.store.errors import StoreError

# A prefix and a checksum let secret scanners find a leaked token without false alarms.
TOKEN_PREFIX = "sds_"  # noqa: S105
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM = 40  # base-62 digits, 238 bits
_CHECK = 6
_ID = 12  # hex digits
_ID_TEXT = re.compile(rf"[0-9a-f]{{{_ID}}}")
# What a token may grant to another one; `admin` is given on the command line only.
GRANTABLE = ("read", "write", "delete", "state")
SCOPES = (*GRANTABLE, "admin")
DEFAULT_SCOPES = ("read", "write", "state")
# Tokens without it were made when `state` was part of the other scopes, and keep it.
_FORMAT = 2
# Tokens of an organization that has made some itself; older ones that no longer work give way.
MAX_TOKENS = 1000
# A token's last use is stored at most so often.
_USE_SECONDS = 60


class TooManyTokens(StoreError):
    """The organization has the maximum number of tokens, all of which work."""


@dataclass(frozen=True)
class Token:
    """The organization and scopes that a token gives access to. `id` is safe to show."""

    id: str
    organization_id: int
    scopes: frozenset[str]
    label: str
    create_date: datetime
    expires: datetime | None
    revoked: datetime | None
    last_used: datetime | None
    digest: str = field(repr=False)  # of its text

    def valid_at(self, moment: datetime) -> bool:
        return self.revoked is None and (self.expires is None or moment < self.expires)


def new_secret() -> str:
    """Return a new token's text."""
    body = "".join(secrets.choice(_DIGITS) for _ in range(_RANDOM))
    return TOKEN_PREFIX + body + _checksum(body)


def is_token(secret: str) -> bool:
    """Return whether a text can be a token at all, without asking the database."""
    body = secret[len(TOKEN_PREFIX) : -_CHECK]
    has_form = secret.startswith(TOKEN_PREFIX) and secret.isascii() and len(body) == _RANDOM
    return has_form and secret[-_CHECK:] == _checksum(body)


def hash_token(secret: str) -> str:
    """Return the digest by which a token is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


Tokens_ = list[Token]  # inside the class, `list` is a method


class Tokens:
    """The tokens of all organizations."""

    def __init__(self, database: Database) -> None:
        # Read as the primary has it now: after a failover its committed snapshot may for a moment be
        # older than a revocation that was acknowledged.
        self._tokens: Collection = database.get_collection("tokens", write_concern=DURABLE)

    @stored
    async def create(
        self,
        organization_id: int,
        scopes: Iterable[str],
        label: str = "",
        expires: datetime | None = None,
    ) -> str:
        """Make a token and return its text, which is not stored."""
        secret = new_secret()
        document = {
            "_id": hash_token(secret),
            "organization_id": organization_id,
            "scopes": sorted(set(scopes)),
            "format": _FORMAT,
            "label": label,
            "create_date": now(),
            "expires": expires,
            "revoked": None,
        }
        await self._tokens.insert_one(document)
        return secret

    @stored
    async def make_room(self, organization_id: int) -> None:
        """Remove the oldest token that no longer works if the organization has MAX_TOKENS. Raises TooManyTokens."""
        owner = {"organization_id": organization_id}
        if await self._tokens.count_documents(owner, limit=MAX_TOKENS, hint="organization") < MAX_TOKENS:
            return
        ended = {**owner, "$or": [{"revoked": {"$ne": None}}, {"expires": {"$ne": None, "$lte": now()}}]}
        if await self._tokens.find_one_and_delete(ended, sort=[("create_date", 1)]) is None:
            raise TooManyTokens

    @stored
    async def note_use(self, token: Token) -> bool:
        """Store that a token is being used, unless that was noted a moment ago; return whether it is the first time."""
        moment = now()
        if token.last_used is not None and moment - token.last_used < timedelta(seconds=_USE_SECONDS):
            return False
        # Not an exact match of the last use: several processes note it at the same time.
        since = {"$set": {"last_used": moment}}
        where = {"organization_id": token.organization_id, "_id": token.digest}
        if token.last_used is not None:
            await self._tokens.update_one(where, since)
            return False
        return bool((await self._tokens.update_one({**where, "last_used": None}, since)).modified_count)

    @stored
    async def find(self, digest: str) -> Token | None:
        """Return the token whose text has this digest, valid or not."""
        document = await self._tokens.find_one({"_id": digest})
        return None if document is None else _token(document)

    @stored
    async def list(self, organization_id: int | None = None) -> list[Token]:
        """Return the tokens, of one organization or all, oldest first."""
        where = {} if organization_id is None else {"organization_id": organization_id}
        documents = await self._tokens.find(where).sort("create_date", 1).to_list(None)
        return [_token(document) for document in documents]

    @stored
    async def newest(self, organization_id: int) -> Tokens_:
        """Return the newest MAX_TOKENS tokens of an organization, the newest first."""
        cursor = self._tokens.find({"organization_id": organization_id}, hint="organization")
        documents = await cursor.sort("create_date", -1).limit(MAX_TOKENS).to_list(None)
        return [_token(document) for document in documents]

    @stored
    async def of_id(self, organization_id: int, id: str) -> Token | None:
        """Return an organization's token by its id."""
        if not _ID_TEXT.fullmatch(id):
            return None
        document = await self._tokens.find_one({"organization_id": organization_id, "_id": _of_id(id)})
        return None if document is None else _token(document)

    @stored
    async def revoke(self, id: str) -> bool:
        """Revoke a token by its id or its text; return whether one was found that was not revoked before."""
        digest = _of_id(id) if _ID_TEXT.fullmatch(id) else hash_token(id)
        return await self._revoke({"_id": digest})

    @stored
    async def end(self, token: Token) -> bool:
        """Revoke a token; return whether it was not revoked before."""
        return await self._revoke({"organization_id": token.organization_id, "_id": token.digest})

    async def _revoke(self, where: dict[str, Any]) -> bool:
        result = await self._tokens.update_one({**where, "revoked": None}, {"$set": {"revoked": now()}})
        return bool(result.modified_count)


def _of_id(id: str) -> dict[str, str]:
    return {"$regex": f"^{id}"}


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECK):
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits


def _token(document: dict[str, Any]) -> Token:
    return Token(
        document["_id"][:_ID],
        document["organization_id"],
        frozenset(document["scopes"] if "format" in document else [*document["scopes"], "state"]),
        document["label"],
        document["create_date"],
        document["expires"],
        document["revoked"],
        document.get("last_used"),
        document["_id"],
    )
