"""Cookies: one for each organization, domain, path and name."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from schemas.cookies import url_of
from service.store.browser_state import BrowserState, Counts
from service.store.contract import stored
from service.store.listing import Record
from service.store.vault import Sealed

SESSION = -1  # what Playwright and CDP use for a cookie that ends with its session


class Cookies(BrowserState):
    """The cookies of an organization."""

    name = "cookies"
    # `path_key` is the path with "" and "/" the same; `path` stays as it was sent.
    identity = order = ("domain", "path_key", "name")
    bound = ("path", "expires", "http_only", "secure")
    path_field = "path_key"
    served = ("name", "value", "url", "domain", "path", "expires", "http_only", "secure")
    session = SESSION

    @stored
    async def set(self, organization_id: int, cookies: list[dict[str, Any]]) -> Counts:
        """Store each cookie, replacing the one of the same identity; the last of several wins."""
        self._indexes.require(self.name)
        return await self._store([_record(organization_id, cookie) for cookie in cookies])

    def _update(self, record: Record) -> Record:
        return {"$set": {**record, **self._sealed(record)}}

    def _expiry(self, moment: datetime) -> int:
        return unix_seconds(moment)

    def _served(self, record: Record, opened: Sealed) -> Record:
        return super()._served({**record, "url": url_of(record)}, opened)


def _record(organization_id: int, cookie: dict[str, Any]) -> Record:
    path_key, expires = cookie["path"] or "/", unix_seconds(cookie["expires"])
    return {"organization_id": organization_id, **cookie, "path_key": path_key, "expires": expires}


def unix_seconds(moment: datetime | None) -> int:
    """Return whole seconds; before 1970 is 0, long expired, so that -1 means a session only."""
    return SESSION if moment is None else max(0, int(moment.timestamp()))
