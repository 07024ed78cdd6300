"""Cookies: one for each organization, domain, path and name."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from service.store.browser_state import BrowserState, Counts
from service.store.contract import stored

SESSION = -1  # what Playwright and CDP use for a cookie that ends with its session


class Cookies(BrowserState):
    """The cookies of an organization."""

    name = "cookies"
    # `path_key` is the path with "" and "/" the same; `path` stays as it was sent.
    identity = ("domain", "path_key", "name")
    session = SESSION

    @stored
    async def set(self, organization_id: int, cookies: list[dict[str, Any]]) -> Counts:
        """Store each cookie, replacing the one of the same identity; the last of several wins."""
        records = {}
        for cookie in cookies:
            record = self._record(organization_id, cookie)
            records[self._key(record)] = record
        operations = []
        for record in records.values():
            identity = {key: record[key] for key in ("organization_id", *self.identity)}
            value = self._vault.seal(record["value"], *self._belongs_to(record))
            operations.append(UpdateOne(identity, {"$set": {**record, "value": value}}, upsert=True))
        return await self._upsert(operations)

    @staticmethod
    def _record(organization_id: int, cookie: dict[str, Any]) -> dict[str, Any]:
        scheme = "https" if cookie["secure"] else "http"
        path = cookie["path"]
        absolute = path if path.startswith("/") else f"/{path}"
        return {
            "organization_id": organization_id,
            "name": cookie["name"],
            "value": cookie["value"],
            "url": f"{scheme}://{cookie['domain'].removeprefix('.')}{absolute}",
            "domain": cookie["domain"],
            "path": path,
            "path_key": path or "/",
            "expires": unix_seconds(cookie["expires"]),
            "http_only": cookie["http_only"],
            "secure": cookie["secure"],
            "extra": cookie.get("extra", {}),
        }

    def _at(self, moment: datetime) -> int:
        return unix_seconds(moment)

    def _served(self, record: dict[str, Any], extra: bool) -> dict[str, Any]:
        cookie = {
            "name": record["name"],
            "value": self._vault.open(record["value"], *self._belongs_to(record)),
            "url": record["url"],
            "domain": record["domain"],
            "path": record["path"],
            "expires": record["expires"],
            "http_only": record["http_only"],
            "secure": record["secure"],
        }
        if extra:
            cookie["extra"] = record.get("extra", {})
        return cookie


def unix_seconds(moment: datetime | None) -> int:
    """Return whole seconds; before 1970 is 0, long expired, so that -1 means a session only."""
    return SESSION if moment is None else max(0, int(moment.timestamp()))
