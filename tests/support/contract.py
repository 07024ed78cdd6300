"""Checks responses against what is documented: the Marshmallow schema of the route and the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from marshmallow import Schema
from openapi_schema_validator import OAS31Validator

from schemas.errors import Error
from service.http.openapi import describe
from service.routes import ROUTES
from service.settings import Settings
from tests.support.api import Api, Response
from tests.support.routes import API_ROUTES

DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_DATES = {
    *("create_date", "update_date", "last_scraped_date", "review_date", "last_change"),
    *("first_write", "last_write", "finish_date", "switched_off", "last_attempt", "next_attempt"),
}
# Clients may put anything into these: the service adds no field below them.
_FREE = {"data", "tags", "file_metadata"}


class HeldApi(Api):
    """A caller who checks the form of every response."""

    async def request(self, method: str, path: str, **options: Any) -> Response:
        response = await super().request(method, path, **options)
        if response.json is not None:
            hold(method, path, response)
        return response


def hold(method: str, path: str, response: Response) -> None:
    """Check a response's body against its schema and its entry in the document."""
    template = template_of(method, path)
    if template is None:
        assert not Error().validate(response.json)
        return
    schema = schema_of(method, template) if response.status == 200 else Error()
    # A schema refuses fields that it does not name. With `fields` only some are there.
    some = "fields=" in path
    assert not schema.validate(response.json, partial=some), (method, path, response.status)
    if response.status not in (404, 405, 431):  # of every path: not repeated for each
        for error in validator(method, template, response.status).iter_errors(response.json):
            if some and error.validator == "required":
                continue
            raise AssertionError(f"{method} {path} {response.status}: {error.message[:300]} at {list(error.path)}")
    for name, value in served_fields(response.json):
        if name in _DATES or (name == "expires" and isinstance(value, str)):
            assert value is None or DATE.fullmatch(value), (name, value)


def served_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every field that the service gives."""
    if isinstance(value, list):
        for item in value:
            yield from served_fields(item)
    elif isinstance(value, dict):
        for name, below in value.items():
            yield name, below
            if name not in _FREE:
                yield from served_fields(below)


@cache
def document() -> dict[str, Any]:
    return describe(ROUTES, Settings().max_records)


def template_of(method: str, path: str) -> str | None:
    """Return the route's template for a path."""
    path = re.sub(r"^https?://[^/]+", "", path).partition("?")[0]
    for known, template, _, _ in API_ROUTES:
        if known == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
            return template
    return None


@cache
def schema_of(method: str, template: str) -> Schema:
    """Return the schema that the route's handler names for its success."""
    (handler,) = (handler for known, path, _, handler in API_ROUTES if (known, path) == (method, template))
    schema: Schema = handler.__apispec__["responses"]["200"]["schema"]  # type: ignore[attr-defined]
    return schema


@cache
def validator(method: str, template: str, status: int) -> OAS31Validator:
    """Return a validator of a body by the OpenAPI document."""
    responses = document()["paths"][template][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {template} does not document {status}"
    schema = responses[str(status)]["content"]["application/json"]["schema"]
    return OAS31Validator({**schema, "components": document()["components"]})
