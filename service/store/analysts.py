"""Analysts: users of the database itself, who may read the collections that hold no secrets."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from pymongo.errors import OperationFailure

from service.command import command
from service.settings import Settings
from service.store.connection import Database, PoolUse, connect
from service.store.contract import stored
from service.store.errors import StoreError

ROLE = "scrapingAnalyst"
READABLE = ("outputs", "versions", "reviews", "groups", "jobs", "days")
WITHHELD = "cookies"

_ACTIONS = ["find", "collStats", "listIndexes"]
# The names of all collections, as `show collections` asks for them; no content.
_NAMES = ["listCollections"]
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
_ONE_ROLE = re.compile(rf"{ROLE}(\d+)?")


class AnalystError(StoreError):
    """Raised with the reason why an analyst cannot be made or removed, and the fix."""


class Analyst(NamedTuple):
    """A read-only user: of one organization, or of all."""

    name: str
    organization_id: int | None


def _role(organization_id: int | None) -> str:
    return ROLE if organization_id is None else f"{ROLE}{organization_id}"


def _readable(organization_id: int | None) -> tuple[str, ...]:
    """Return what an analyst reads: the collections, or the views on one organization's part of them."""
    return READABLE if organization_id is None else tuple(f"{name}_{organization_id}" for name in READABLE)


class Analysts:
    """The read-only users of the service's database."""

    def __init__(self, settings: Settings, database: Database, url: str) -> None:
        self._settings = settings
        self._database = database
        self._url = url

    @stored
    async def create(self, name: str, organization_id: int | None = None) -> str:
        """Make a user who may read `READABLE`, or views on one organization's part of it; return the password."""
        if not _NAME.fullmatch(name):
            raise AnalystError("The name of an analyst is 1 to 64 letters, digits, dots, dashes and underscores.")
        password = secrets.token_urlsafe(24)
        async with self._explained():
            await self._grant(organization_id)
            try:
                await self._command("createUser", name, pwd=password, roles=[_role(organization_id)])
            except OperationFailure as error:
                if error.code != _USER_EXISTS:
                    raise
                raise AnalystError(
                    f"There is a user {name} already. Choose another name, or: {command(f'analyst remove {name}')}"
                ) from None
        try:
            is_confined = await self._is_confined(name, password, organization_id)
        except BaseException:
            await self._command("dropUser", name)
            raise
        if not is_confined:
            await self._command("dropUser", name)
            raise AnalystError(
                "This MongoDB does not check what its users may do: whoever reaches it can read everything. Start it "
                "with authentication (--auth, or --keyFile for a replica set), then make the analyst."
            )
        return password

    @stored
    async def list(self) -> list[Analyst]:
        """Return the analysts in the order of their names."""
        async with self._explained():
            return sorted(await self._find(1), key=lambda analyst: analyst.name)

    @stored
    async def remove(self, name: str) -> bool:
        """Remove an analyst, never another user; return whether there was one."""
        async with self._explained():
            analysts = await self._find(name)
            if not analysts:
                return False
            await self._command("dropUser", name)
            organization_id = analysts[0].organization_id
            if organization_id is not None and organization_id not in {
                one.organization_id for one in await self._find(1)
            }:
                await self._command("dropRole", _role(organization_id))
                for view in _readable(organization_id):
                    await self._database.drop_collection(view)
            return True

    async def _find(self, name: str | int) -> tuple[Analyst, ...]:
        """Return the analyst of this name, if any; 1 instead of a name returns all."""
        users = (await self._database.command("usersInfo", name))["users"]
        roles = ((user["user"], _ONE_ROLE.fullmatch(user["roles"][0]["role"])) for user in users if self._has_one(user))
        return tuple(Analyst(user, int(role[1]) if role[1] else None) for user, role in roles if role)

    @stored
    async def address(self, name: str, password: str) -> str:
        """Return the address that an analyst connects to."""
        match = _URL.fullmatch(self._url)
        assert match, "checked by the settings"
        scheme, hosts, query = match.groups()
        options = [part for part in re.split("[&;]", query or "") if part.partition("=")[0].lower() in _KEPT]
        names = {part.partition("=")[0].lower() for part in options}
        if scheme == "mongodb://" and not names & {"replicaset", "directconnection", "loadbalanced"}:
            set_name = (await self._database.command("hello")).get("setName")  # mongos has none
            options += [f"replicaSet={quote(set_name, safe='')}"] if set_name else []
        source = quote(self._database.name, safe="")
        query = "&".join([f"authSource={source}", *options])
        return f"{scheme}{quote(name, safe='')}:{quote(password, safe='')}@{hosts}/{source}?{query}"

    async def _grant(self, organization_id: int | None) -> None:
        """Make the role and its views, or bring the role up to date."""
        name, role = self._database.name, _role(organization_id)
        readable = _readable(organization_id)
        privileges = [{"resource": {"db": name, "collection": one}, "actions": _ACTIONS} for one in readable]
        privileges.append({"resource": {"db": name, "collection": ""}, "actions": _NAMES})
        if organization_id is not None:
            await self._make_views(organization_id)
        try:
            await self._command("createRole", role, privileges=privileges, roles=[])
        except OperationFailure as error:
            if error.code != _ROLE_EXISTS:
                raise
            await self._command("updateRole", role, privileges=privileges, roles=[])

    async def _make_views(self, organization_id: int) -> None:
        is_own = {"$eq": ["$organization_id", organization_id]}
        pipeline = [
            {"$match": {"organization_id": organization_id}},  # served by the indexes, which begin with it
            # MongoDB joins an analyst's $match to that of the view and may evaluate it first: on every organization's
            # documents, whose values its errors quote. Over $redact it moves only comparisons, which cannot fail.
            {"$redact": {"$cond": [is_own, "$$KEEP", "$$PRUNE"]}},
        ]
        views = {view["name"]: view["options"] async for view in await self._database.list_collections()}
        for view, source in zip(_readable(organization_id), READABLE, strict=True):
            if views.get(view, {}).get("pipeline") != pipeline:
                await self._database.drop_collection(view)  # of an earlier version
                await self._database.command("create", view, viewOn=source, pipeline=pipeline, writeConcern=_DURABLE)

    async def _is_confined(self, name: str, password: str, organization_id: int | None) -> bool:
        """Try the new user at its own address: reading outputs must work, reading anything else must not."""
        client = connect(self._settings, await self.address(name, password), PoolUse())
        try:
            database = client[self._database.name]
            await database[_readable(organization_id)[0]].find_one({}, {"_id": 1})
            await database[WITHHELD if organization_id is None else READABLE[0]].find_one({}, {"_id": 1})
            return False
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            return True
        finally:
            client.close()

    def _has_one(self, user: dict[str, Any]) -> bool:
        """Return whether a user has one role, of this database."""
        return [role["db"] for role in user["roles"]] == [self._database.name]

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
