"""Playwright's storageState: cookies and local storage as a browser saves them."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from marshmallow import INCLUDE, ValidationError, fields, post_load

from schemas.base import Base, Flag, ListOf, Text, messages, optional, problem
from schemas.cookies import YEAR_10000, Counted


class UnixSeconds(fields.Float):
    """Unix seconds, or -1 for a session cookie."""

    default_error_messages = {
        **messages("float_type", "Must be a number"),
        "invalid": problem("float_type", "Must be a number of seconds since 1970, or -1"),
    }

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> float:
        if type(value) not in (int, float):
            raise self.make_error("invalid")
        if value >= YEAR_10000:
            text = "Must be seconds since 1970; this looks like milliseconds or microseconds"
            raise ValidationError([problem("value_error", text)])
        if value < 0 and value != -1:
            raise ValidationError([problem("value_error", "Must be -1 or seconds since 1970")])
        return float(value)


class Open(Base):
    """A schema that keeps unknown members: browsers add new ones with each release."""

    class Meta:
        unknown = INCLUDE


class BrowserCookie(Open):
    name = Text(required=True, max_length=4096)
    value = Text(required=True, max_length=65536)
    domain = Text(required=True, min_length=1, max_length=255)
    path = Text(load_default="/", max_length=4096)
    expires = UnixSeconds(
        load_default=-1.0,
        metadata={"anyOf": [{"enum": [-1]}, {"minimum": 0, "exclusiveMaximum": YEAR_10000}]},
    )
    httpOnly = Flag(load_default=False)
    secure = Flag(load_default=False)

    @post_load
    def to_cookie(self, loaded: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Return the cookie as the store keeps it: members that the API does not have go into `extra`."""
        expires = loaded.pop("expires")
        cookie = {
            **{name: loaded.pop(name) for name in ("name", "value", "domain", "path", "secure")},
            "http_only": loaded.pop("httpOnly"),
            "expires": None if expires == -1 else datetime.fromtimestamp(expires, UTC),
        }
        if expires != int(expires):
            loaded["expires"] = expires  # the API has whole seconds
        return {**cookie, "extra": loaded}


class StoredName(Base):
    name = Text(required=True, max_length=8192)
    value = Text(required=True, max_bytes=5 * 1024 * 1024)


class OriginName(Text):
    """Scheme, host and port, as browsers write them."""

    pattern = r"https?://(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"

    def __init__(self) -> None:
        super().__init__(required=True, max_length=255, metadata={"pattern": f"^{self.pattern}$"})

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            if re.fullmatch(self.pattern, text):
                urlsplit(text).port  # noqa: B018 - raises for one over 65535, and for an address that is none
                return text
        except ValueError:
            pass
        raise ValidationError([problem("value_error", "Must be an http or https origin")])


class OriginInput(Open):
    origin = OriginName()
    localStorage = ListOf(StoredName, load_default=list)


class StorageStateInput(Base):
    cookies = ListOf(BrowserCookie, load_default=list)
    origins = ListOf(OriginInput, load_default=list)


class Origin(Open):
    # Entries set through /v1/local-storage may have any text for a domain.
    origin = fields.String(required=True)
    localStorage = ListOf(StoredName, required=True)


class StorageState(Base):
    cookies = ListOf(BrowserCookie, required=True)
    origins = ListOf(Origin, required=True)


class StorageStateWritten(Base):
    cookies = fields.Nested(Counted, required=True)
    local_storage = fields.Nested(Counted, required=True)


class StorageStateQuery(Base):
    domain = optional(Text, max_length=255, description="Only this domain and its subdomains")
