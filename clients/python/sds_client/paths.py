"""The paths and queries of requests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit


def outputs_path(group: str, output_id: str | None = None) -> str:
    path = f"/v1/outputs/{quote(group, safe='')}"
    return path if output_id is None else f"{path}/{quote(output_id, safe='')}"


def group_path(group: str, part: str = "") -> str:
    return f"/v1/groups/{quote(group, safe='')}{part}"


def webhook_path(webhook_id: str, part: str = "") -> str:
    return f"/v1/webhooks/{quote(webhook_id, safe='')}{part}"


def job_path(group: str, job_id: str, part: str = "") -> str:
    return group_path(group, f"/jobs/{quote(job_id, safe='')}{part}")


def reviews_path(group: str) -> str:
    return f"/v1/reviews/{quote(group, safe='')}"


def session_path(pool: str | None = None, name: str | None = None) -> str:
    return "/".join(["/v1/sessions", *(quote(part, safe="") for part in (pool, name) if part is not None)])


def lease_path(lease_id: str) -> str:
    return f"/v1/leases/{quote(lease_id, safe='')}"


# A query: of `where`, which may be given several times, a list.
Parameters = dict[str, str | list[str]]

_FILTERS = ("job_id", "url", "country", "region", "is_approved", "change", "missing", "where", "rejected")
_READ = (*_FILTERS, "created_after", "key_hash", "fields")
_DELETE = (*_FILTERS, "key_hash", "scraped_before", "max_id", "all")


def read_query(options: Mapping[str, Any]) -> Parameters:
    """Return the query of a read; what is None or empty is left out. Raises TypeError for an unknown filter."""
    _check_names(options, _READ)
    return {name: _parameter(name, value) for name, value in options.items() if value not in (None, "", [], ())}


def walk_query(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the part of a page's `next_url` that makes the next page one of the same walk."""
    query = parse_qsl(urlsplit(metadata["next_url"] or "").query)
    return {name: value for name, value in query if name == "walk"}


def delete_query(filters: Mapping[str, Any]) -> Parameters:
    """Return the query of a deletion. Raises ValueError without a filter, or for an empty one."""
    _check_names(filters, _DELETE)
    for name, value in filters.items():
        if value in (None, "", [], ()) or (name == "all" and value is not True):  # it would select more than was meant
            raise ValueError(f"{name} is {value!r}: give a value, or leave it out")
    if not filters:
        raise ValueError(f"name what to delete with at least one of {', '.join(_DELETE)}")
    return {name: _parameter(name, value) for name, value in filters.items()}


def state_query(domain: str | None, active: bool) -> dict[str, str]:
    return ({} if domain is None else {"domain": domain}) | ({"active": "true"} if active else {})


def state_delete_query(**filters: str | bool | None) -> dict[str, str]:
    """Return the query that deletes cookies or local storage; what is None or False is left out."""
    if "name" in filters and filters.get("path") == "":  # a cookie: its paths "" and "/" are the same
        filters["path"] = "/"
    for name, value in filters.items():
        if value == "":
            raise ValueError(f"{name} is empty: give a value, or leave it out")
    query = {name: _text(value) for name, value in filters.items() if value not in (None, False)}
    if not query:
        raise ValueError(f"name what to delete with at least one of {', '.join(filters)}")
    return query


def _check_names(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := set(given) - set(known):
        raise TypeError(f"unknown filter: {', '.join(sorted(unknown))}; known are {', '.join(known)}")


def _parameter(name: str, value: Any) -> str | list[str]:
    """Return the text of a parameter, or the texts of the one that may be given several times."""
    return list(map(str, value)) if name == "where" and isinstance(value, (list, tuple)) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise ValueError(f"{value} has no time zone: give it one, as datetime.now(UTC) does")
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value)
