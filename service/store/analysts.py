"""Analysts: users of the database itself, who may read the collections that hold no secrets."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from pymongo.errors import OperationFailure

from service.settings import Settings
from service.store.connection import Database, PoolUse, connect
from service.store.contract import stored
from service.store.errors import StoreError

ROLE = "scrapingAnalyst"
READABLE = ("outputs", "reviews", "groups", "jobs", "days")
WITHHELD = "cookies"

_ACTIONS = ["find", "collStats", "listIndexes"]
_DURABLE = {"w": "majority"}
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_URL = re.compile(r"(mongodb(?:\+srv)?://)(?:[^@/]*@)?([^/?]+)(?:/[^?]*)?(?:\?(.*))?")
# The options of MONGO_URL that say how to reach the server. Others may hold secrets, or are the service's own.
_KEPT = {
    "directconnection",
    "loadbalanced",
    "replicaset",
    "srvmaxhosts",
    "srvservicename",
    "ssl",
    "tls",
    "tlsallowinvalidcertificates",
    "tlsallowinvalidhostnames",
    "tlscafile",
    "tlsinsecure",
}
# Error codes of the server.
_UNAUTHORIZED, _AUTHENTICATION_FAILED, _NOT_ALLOWED = 13, 18, 8000
_ROLE_EXISTS, _USER_EXISTS = 51002, 51003


class AnalystError(StoreError):
    """Raised with the reason why an analyst cannot be made or removed, and the fix."""


class Analysts:
    """The read-only users of the service's database."""

    def __init__(self, settings: Settings, database: Database, url: str) -> None:
        self._settings = settings
        self._database = database
        self._url = url

    @stored
    async def create(self, name: str) -> str:
        """Make a user who may read `READABLE` and nothing else; return the password."""
        if not _NAME.fullmatch(name):
            raise AnalystError("The name of an analyst is 1 to 64 letters, digits, dots, dashes and underscores.")
        password = secrets.token_urlsafe(24)
        async with self._explained():
            await self._grant()
            try:
                await self._command("createUser", name, pwd=password, roles=[ROLE])
            except OperationFailure as error:
                if error.code != _USER_EXISTS:
                    raise
                raise AnalystError(
                    f"There is a user {name} already. Choose another name, or: python -m service analyst remove {name}"
                ) from None
        if not await self._is_confined(name, password):
            await self._command("dropUser", name)
            raise AnalystError(
                "This MongoDB does not check what its users may do: whoever reaches it can read everything. Start it "
                "with authentication (--auth, or --keyFile for a replica set), then make the analyst."
            )
        return password

    @stored
    async def list(self) -> list[str]:
        """Return the names of the analysts, in order."""
        async with self._explained():
            found = await self._database.command("usersInfo", 1)
        return sorted(user["user"] for user in found["users"] if self._is_analyst(user))

    @stored
    async def remove(self, name: str) -> bool:
        """Remove an analyst, never another user; return whether there was one."""
        async with self._explained():
            found = await self._database.command("usersInfo", name)
            if not any(self._is_analyst(user) for user in found["users"]):
                return False
            await self._command("dropUser", name)
            return True

    @stored
    async def address(self, name: str, password: str) -> str:
        """Return the address that an analyst connects to."""
        match = _URL.fullmatch(self._url)
        assert match, "checked by the settings"
        scheme, hosts, query = match.groups()
        options = [part for part in re.split("[&;]", query or "") if part.partition("=")[0].lower() in _KEPT]
        given = {part.partition("=")[0].lower() for part in options}
        if scheme == "mongodb://" and not given & {"replicaset", "directconnection", "loadbalanced"}:
            set_name = (await self._database.command("hello")).get("setName")
            options += [f"replicaSet={quote(set_name, safe='')}"] if set_name else []
        source = quote(self._database.name, safe="")
        query = "&".join([f"authSource={source}", *options])
        return f"{scheme}{quote(name, safe='')}:{quote(password, safe='')}@{hosts}/{source}?{query}"

    async def _grant(self) -> None:
        """Make the role, or bring it up to date."""
        name = self._database.name
        privileges = [{"resource": {"db": name, "collection": one}, "actions": _ACTIONS} for one in READABLE]
        try:
            await self._command("createRole", ROLE, privileges=privileges, roles=[])
        except OperationFailure as error:
            if error.code != _ROLE_EXISTS:
                raise
            await self._command("updateRole", ROLE, privileges=privileges, roles=[])

    async def _is_confined(self, name: str, password: str) -> bool:
        """Try the new user at its own address: reading outputs must work, reading cookies must not."""
        client = connect(self._settings, await self.address(name, password), PoolUse())
        try:
            database = client[self._database.name]
            await database[READABLE[0]].find_one({}, {"_id": 1})
            await database[WITHHELD].find_one({}, {"_id": 1})
            return False
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            return True
        finally:
            client.close()

    def _is_analyst(self, user: dict[str, Any]) -> bool:
        return bool(user["roles"] == [{"role": ROLE, "db": self._database.name}])

    async def _command(self, name: str, value: str, **options: Any) -> None:
        await self._database.command(name, value, writeConcern=_DURABLE, **options)

    @asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """Turn a refusal of the server into what the operator can do about it."""
        try:
            yield
        except OperationFailure as error:
            name = self._database.name
            if error.code == _AUTHENTICATION_FAILED:
                raise AnalystError("MongoDB refuses the user and password in MONGO_URL: correct them.") from None
            if error.code not in (_UNAUTHORIZED, _NOT_ALLOWED):
                raise
            raise AnalystError(
                f"The user in MONGO_URL may not manage users. Give it the role userAdmin on the database {name}, or "
                "run this command with the MONGO_URL of an administrator."
            ) from None
