"""Cookies: what scrapers set and what they get."""

from datetime import UTC, datetime
from typing import Any

from marshmallow import fields, pre_load

from schemas.base import Base, Date, Flag, PageQuery, QueryFlag, Text, messages, optional, parse_date, problem

YEAR_10000 = 253402300800  # Unix seconds; milliseconds of any date since 1978 are above
_SESSION = -1


class Expiry(Date):
    """A date, or whole Unix seconds as a cookie is read; -1 for a session cookie."""

    default_error_messages = {
        **messages("datetime_type", "Must be a date"),
        "type": problem("datetime_type", "Must be an ISO 8601 date, whole Unix seconds, or -1"),
        "invalid": problem(
            "datetime_invalid",
            "Must be ISO 8601, such as 2026-01-31T12:00:00Z, whole Unix seconds (not milliseconds), or -1",
        ),
    }
    json_types = str | int

    def moment(self, value: Any) -> datetime | None:
        if type(value) is str:
            return parse_date(value)
        if value == _SESSION:
            return None
        if not 0 <= value < YEAR_10000:
            raise ValueError("not Unix seconds")
        return datetime.fromtimestamp(value, UTC)


class CookieInput(Base):
    domain = Text(
        required=True,
        min_length=1,
        max_length=255,
        metadata={"description": "Cookie domain; a leading dot covers its subdomains too"},
    )
    name = Text(required=True, max_length=4096)
    # Browsers stop at 4 KiB for name and value together; 64 KiB leaves room for odd clients.
    value = Text(required=True, max_length=65536)
    secure = Flag(load_default=False)
    http_only = Flag(load_default=False)
    expires = Expiry(
        load_default=None,
        allow_none=True,
        metadata={"description": "A date, or what GET returns: whole Unix seconds, -1 or null for a session cookie"},
    )
    path = Text(load_default="", max_length=4096)

    @pre_load
    def leave_out_url(self, cookie: Any, **_: Any) -> Any:
        """Leave out the `url` of a cookie that is written back as it was read; another one is an unknown field."""
        if not isinstance(cookie, dict) or "url" not in cookie:
            return cookie
        given = {"secure": False, "path": "", "domain": "", **cookie}
        if not isinstance(given["path"], str) or not isinstance(given["domain"], str) or given["url"] != url_of(given):
            return cookie
        return {name: value for name, value in cookie.items() if name != "url"}


def url_of(cookie: dict[str, Any]) -> str:
    """Return the address of a cookie: its scheme, its domain without the leading dot, and its path."""
    scheme, path = "https" if cookie["secure"] else "http", cookie["path"]
    return f"{scheme}://{cookie['domain'].removeprefix('.')}{path if path.startswith('/') else f'/{path}'}"


class Cookie(Base):
    name = fields.String(required=True)
    value = fields.String(required=True)
    url = fields.String(required=True)
    domain = fields.String(required=True)
    path = fields.String(required=True)
    expires = fields.Integer(required=True, metadata={"description": "Unix seconds, -1 for a session cookie"})
    http_only = fields.Boolean(required=True, metadata={"default": False})
    secure = fields.Boolean(required=True, metadata={"default": False})


class StateQuery(PageQuery):
    """The filters of both cookies and local storage."""

    domain = optional(Text, max_length=255, description="Only this exact domain")
    active = QueryFlag(
        load_default=False,
        allow_none=True,
        metadata={"description": "true: only what has not expired"},
    )


class StateDeletion(Base):
    """The filters for deleting cookies and local storage."""

    domain = optional(Text, max_length=255, description="Only this exact domain")
    path = optional(Text, max_length=4096, description="Only this exact path")
    expired = QueryFlag(load_default=False, allow_none=True, metadata={"description": "true: only what has expired"})
    # Not `all`, which is a builtin.
    every = QueryFlag(
        data_key="all",
        load_default=False,
        allow_none=True,
        metadata={"description": "true: everything, if no other filter is given"},
    )


class CookiesDeletion(StateDeletion):
    name = optional(Text, max_length=4096, description="Only this name")


class Deleted(Base):
    deleted = fields.Integer(required=True)


class Counted(Base):
    created = fields.Integer(required=True)
    updated = fields.Integer(required=True)
