"""Path and query parameters in."""

from __future__ import annotations

import difflib
import re
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import HttpVersion10, HttpVersion11, web
from marshmallow import Schema, ValidationError, fields

from service.http.errors import MAX_NAME, MAX_PROBLEMS, ApiError, invalid, invalid_fields, problem
from service.http.keys import ORGANIZATION
from service.store import Group

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MAX_ID = 256
# What other APIs, or the fields of an item, call these parameters.
_ELSEWHERE = {"source_url": "url", "root_job_id": "job_id", "page": "cursor", "offset": "cursor", "sort": "order"}
# Looking for the nearest name takes up to a millisecond.
_MAX_SUGGESTIONS = 5
_CLOSE = {"Connection": "close"}
_WITHOUT_BODY = ("GET", "HEAD", "DELETE", "OPTIONS")
_EMPTY = {"msg": "Must not be empty: give a value, or leave the parameter out", "type": "value_error"}
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


def check_framing(request: web.Request) -> None:
    """Reject a body that a proxy could read as another request (request smuggling), and close the connection."""
    if request.version not in (HttpVersion10, HttpVersion11):
        raise ApiError(400, [problem("bad_request", "Use HTTP/1.1")], _CLOSE)
    codings = request.headers.getall("Transfer-Encoding", None)
    if codings is not None and (
        len(codings) > 1 or codings[0].strip().lower() != "chunked" or request.version < HttpVersion11
    ):
        message = "Only chunked is supported, with HTTP/1.1"
        raise ApiError(400, [problem("bad_request", message, "header", "Transfer-Encoding")], _CLOSE)
    # Without a route the response is 404 or 405.
    if request.body_exists and request.method in _WITHOUT_BODY and request.match_info.http_exception is None:
        raise ApiError(400, [problem("bad_request", f"A {request.method} request has no body", "body")], _CLOSE)


def check_target(request: web.Request) -> None:
    """Refuse a path or query whose percent-encoding is not UTF-8 text without NUL, and an invalid Host."""
    hosts = request.headers.getall("Host", [])
    if len(hosts) > 1 or not (_HOST.fullmatch(hosts[0]) if hosts else request.version < HttpVersion11):
        raise ApiError(400, [problem("bad_request", "Exactly one valid Host header is required", "header", "Host")])
    target = request.raw_path
    if "%" not in target and target.isascii():
        return
    path, _, query = target.partition("?")
    for name, text in (("path", path), ("query", query)):
        try:
            if _BROKEN_ESCAPE.search(text) or b"\0" in unquote_to_bytes(text):
                raise ValueError
            unquote_to_bytes(text).decode()
        except ValueError:
            raise invalid("value_error", "Must be percent-encoded UTF-8 without NUL", name) from None


def check_parameters(request: web.Request) -> None:
    """Refuse parameters that the route does not have: a misspelled filter must not return everything."""
    # As `endpoint` has noted them; any parameter is ignored where it has not.
    if not request.rel_url.raw_query_string:
        return
    names: frozenset[str] | None = getattr(request.match_info.handler, "parameters", None)
    if names is not None:
        unknown = [name for name in dict.fromkeys(request.query) if name not in names][:MAX_PROBLEMS]
        if unknown:
            raise ApiError(422, [_unknown(name, names, place) for place, name in enumerate(unknown)])


def _unknown(name: str, known: frozenset[str], place: int) -> dict[str, Any]:
    near = [_ELSEWHERE[name]] if _ELSEWHERE.get(name) in known else []
    if not near and place < _MAX_SUGGESTIONS and len(name) <= MAX_NAME:
        near = difflib.get_close_matches(name.lower(), known, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    return problem("unknown_parameter", f"Unknown parameter{hint}", "query", name)


def path_id(request: web.Request, name: str, max_length: int = _MAX_ID) -> str:
    """Return an identifier of the path."""
    value = request.match_info[name]
    if len(value) > max_length:
        raise invalid("string_too_long", f"Must be at most {max_length} characters", "path", name)
    return value


def path_group(request: web.Request) -> Group:
    """Return the group in the path, in the organization of the token."""
    return Group(request[ORGANIZATION], path_id(request, "group_id"))


class QueryLoader:
    """Reads the parameters that a schema describes.

    Field by field: a whole `schema.load` was an eighth of the time of a short page.
    """

    def __init__(self, schema: Schema, *, refuse_empty: bool = False) -> None:
        self._refuse_empty = refuse_empty  # for deletions: an empty filter would delete more
        self._defaults = {attribute: field.load_default for attribute, field in schema.fields.items()}
        self._fields = {field.data_key or attribute: (attribute, field) for attribute, field in schema.fields.items()}

    def load(self, request: web.Request) -> dict[str, Any]:
        """Return the query's parameters; empty ones count as left out, or are refused.

        `check_parameters` refuses unknown ones.
        """
        query = request.query
        loaded = dict(self._defaults)
        problems: dict[str, Any] = {}
        for name, text in query.items():
            attribute, field = self._fields[name]
            value: Any = text
            if isinstance(field, fields.List):
                value = [one for one in query.getall(name) if one or self._refuse_empty]
            elif len(query.getall(name)) > 1:
                raise invalid("value_error", "Must be given only once", "query", name)
            if not text and self._refuse_empty:
                problems[name] = [_EMPTY]
            elif text or not field.allow_none:
                try:
                    loaded[attribute] = field.deserialize(value, name, query)
                except ValidationError as error:
                    problems[name] = error.messages
        if problems:
            raise invalid_fields(problems, "query")
        return loaded
