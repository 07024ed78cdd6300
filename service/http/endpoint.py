"""How handlers are described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

from aiohttp_apispec import docs, json_schema, querystring_schema, response_schema
from marshmallow import Schema

Handler = TypeVar("Handler", bound=Callable[..., Any])


def endpoint(
    summary: str,
    response: Schema | None,
    *,
    query: type[Schema] | None = None,
    body: Schema | None = None,
    operation: str = "",
    **extra: Any,
) -> Callable[[Handler], Handler]:
    """Document what a handler takes and returns.

    `operation` is resource and name, such as `outputs_patch`, if they are not those of the module and the handler.
    `headers` are the request headers that it reads, with descriptions; `takes` and `gives` are further content types of
    the request and the response; `response_headers` are headers of the response; `not_found` means that 404 is
    possible; `responses` are further ones.
    """

    def decorate(handler: Handler) -> Handler:
        name = operation or f"{handler.__module__.rpartition('.')[2]}_{handler.__name__}"
        handler = docs(
            summary=summary,
            description=cleandoc(handler.__doc__ or summary),
            operationId=name,
            tags=[name.rpartition("_")[0] if operation else handler.__module__.rpartition(".")[2]],
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
