"""What handlers say about themselves in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp_apispec import docs, json_schema, querystring_schema, response_schema
from marshmallow import Schema

from schemas.errors import Error

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_ERRORS = {
    400: "The request could not be read",
    401: "The token is missing, malformed, unknown, expired or revoked",
    403: "The token does not have the scope",
    414: "The path and query are too long",
    422: "The input is faulty; nothing was stored",
    429: "Too many requests",
    431: "The headers are too large",
    500: "Something went wrong inside",
    503: "The database does not answer, or too many requests are in flight",
}
_OPEN_ERRORS = {status: _ERRORS[status] for status in (400, 500, 503)}
_BODY_ERRORS = {
    408: "The body took too long to arrive",
    413: "The body is too large",
    415: "Unsupported content type or encoding",
}


def endpoint(
    scope: str | None,
    summary: str,
    answer: Schema | None,
    *,
    query: type[Schema] | None = None,
    body: Schema | None = None,
    **extra: Any,
) -> Callable[[Handler], Handler]:
    """Say which scope a handler needs (None: no token) and, for the documentation, what it takes and gives."""
    errors = _OPEN_ERRORS if scope is None else {**_ERRORS, **(_BODY_ERRORS if body is not None else {})}

    def decorate(handler: Handler) -> Handler:
        handler.scope = scope  # type: ignore[attr-defined]
        handler = docs(
            summary=summary,
            description=handler.__doc__ or summary,
            security=[] if scope is None else [{"bearer": []}],
            operationId=f"{handler.__module__.rpartition('.')[2]}_{handler.__name__}",
            tags=[handler.__module__.rpartition(".")[2]],
            **extra,
        )(handler)
        if query is not None:
            handler = querystring_schema(query)(handler)
        if body is not None:
            handler = json_schema(body, required=True)(handler)
        if answer is None:
            handler = docs(responses={"200": {"description": "Success"}})(handler)
        else:
            handler = response_schema(answer, 200, description="Success")(handler)
        for status, text in errors.items():
            handler = response_schema(Error(), status, description=text)(handler)
        return handler

    return decorate
