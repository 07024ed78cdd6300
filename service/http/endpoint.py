"""How handlers are described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from aiohttp.typedefs import Handler
from aiohttp_apispec import docs, json_schema, querystring_schema, response_schema
from marshmallow import Schema


def endpoint(
    summary: str,
    response: Schema | None,
    *,
    query: type[Schema] | None = None,
    body: Schema | None = None,
    **extra: Any,
) -> Callable[[Handler], Handler]:
    """Document what a handler takes and returns.

    `headers` are the request headers that it reads, with descriptions; `takes` and `gives` are further content types of
    the request and the response; `response_headers` are headers of the response; `not_found` means that 404 is
    possible; `responses` are further ones.
    """

    def decorate(handler: Handler) -> Handler:
        resource = handler.__module__.rpartition(".")[2]
        handler = docs(
            summary=summary,
            description=cleandoc(handler.__doc__ or summary),
            operationId=f"{resource}_{handler.__name__}",
            tags=[resource],
            **extra,
        )(handler)
        if query is not None:
            handler = querystring_schema(query)(handler)
        if body is not None:
            handler = json_schema(body, required=True)(handler)
        names = query().fields.items() if query is not None else ()
        handler.parameters = frozenset(field.data_key or name for name, field in names)  # type: ignore[attr-defined]
        if response is None:
            handler = docs(responses={"200": {"description": "Success"}})(handler)
        else:
            handler = response_schema(response, 200, description="Success")(handler)
        return handler

    return decorate
