"""The parameters of outputs as the store's query."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from service.http.errors import invalid
from service.http.keys import STORE
from service.store import Group, Missing, Query


async def query_of(request: web.Request, group: Group, loaded: dict[str, Any]) -> Query:
    """Return the store's query for loaded parameters."""
    newest_first, kept = loaded.pop("order") == "desc", loaded.pop("kept")
    return Query(fields=kept, newest_first=newest_first, **await select_jobs(request, group, loaded))


async def select_jobs(request: web.Request, group: Group, loaded: dict[str, Any]) -> dict[str, Any]:
    """Return loaded filters with `change=missing` as what is missing from the job: nothing, for an unknown one."""
    if loaded["change"] is None:
        return loaded
    if loaded["job_id"] is None:
        raise invalid("missing", "change needs job_id", "query", "job_id")
    if loaded["change"] != "missing":
        return loaded
    missing = await request.app[STORE].missing.of(group, loaded["job_id"])
    return {**loaded, "job_id": None, "change": None, "missing_from": missing or Missing(loaded["job_id"], None, 0, ())}
