"""The OpenAPI document, made from the route table."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import orjson
from aiohttp import web
from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from marshmallow import fields

import service
from schemas.base import PageQuery
from schemas.cookies import Expiry
from schemas.errors import Error
from schemas.examples import EXAMPLES
from schemas.sessions import LEASE_ID, NAME_LENGTH
from service.http.output.parquet import PARQUET
from service.http.routing import Route

DOCUMENT = web.AppKey("openapi", bytes)

_LINES = {"type": "string"}
_BINARY = {"type": "string", "format": "binary"}
_TEXT = {"schema": {"type": "string"}}
_PATH_ID = {"type": "string", "minLength": 1, "maxLength": 256}
_NAME = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH}
# The variables of paths that are not just any id.
_NARROWER = {"pool": _NAME, "name": _NAME, "lease_id": {"type": "string", "pattern": f"^{LEASE_ID}$"}}
# What the variables of paths mean.
_IN_PATHS = {
    "group_id": "The ID of the scraping group",
    "output_id": "The output_id of the item",
    "job_id": "The root_job_id of the items of the crawl",
    "webhook_id": "The webhook_id of the webhook",
    "token_id": "The token_id of the token",
    "pool": "The name of the pool",
    "name": "The name of the session in its pool; not `lease`",
    "lease_id": "The lease_id of the lease",
}
# Members of a handler's documentation that are read here instead of being copied.
_OURS = ("schemas", "produces", "gives", "takes", "headers", "not_found", "response_headers")

_LICENSE = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
_CONTACT = {"name": "The operator of this service"}
_ABOUT = (
    "Cookies, local storage, reviews and outputs of scrapers. Every call except health and "
    "metrics needs `Authorization: Bearer <token>`; everything belongs to the token's organization. "
    "Dates are ISO 8601 in UTC. "
    'Every error has the same body: `{"detail": [{"loc", "msg", "type"}]}`. '
    "Bodies may be compressed: `Content-Encoding: gzip` or `deflate`. A body has at most 16 MiB after decompression, "
    "unless the service is set up otherwise; that of a group's settings, a job or a webhook 256 KiB."
)
# In the order in which they are shown.
_TAGS = {
    "outputs": "What scrapers found: written by key, read in the order of change with a cursor that misses nothing.",
    "output": "One output: read it, approve or tag it, delete it.",
    "export": "Everything that matches, as one stream: NDJSON, CSV, JSON or server-sent events.",
    "groups": "What a group holds: counts, days, jobs, and how well each field is filled.",
    "jobs": "One crawl of a group: begun, finished, compared with the one before and judged.",
    "reviews": "What people think of a job: the latest review counts.",
    "cookies": "Cookies for the scrapers' browsers, one for each domain, path and name.",
    "local_storage": "Local-storage entries for the scrapers' browsers, one for each domain, path and key.",
    "storage_state": "Cookies and local storage in one file, as Playwright saves and loads them.",
    "sessions": "Browser identities, many on one site: in pools, leased to one worker at a time.",
    "leases": "The time for which one worker has a session to itself.",
    "webhooks": "URLs that get a message when a crawl finishes or a group changes; signed as Standard Webhooks says.",
    "token": "The access token itself: whose it is and what it may do.",
    "tokens": "The tokens of the organization: listed, made and revoked with the scope admin.",
    "health": "For load balancers and orchestration; needs no token.",
    "metrics": "For Prometheus; needs no token.",
}

_ERRORS = {
    400: "The request could not be read",
    401: "The token is missing, malformed, unknown, expired or revoked",
    414: "The path and query are too long",
    422: "The input is invalid; nothing was stored",
    429: "Too many requests",
    431: "The headers are too large",
    500: "Internal server error",
    503: "The database does not respond, or too many requests are in flight",
}
_PUBLIC_ERRORS = {status: _ERRORS[status] for status in (400, 422, 500, 503)}
_BODY_ERRORS = {
    408: "The body took too long to arrive",
    413: "The body is too large",
    415: "Unsupported content type or encoding",
}


# What the headers of responses say.
_HEADERS = {
    "ETag": "For If-None-Match and If-Match",
    "Link": 'The next page, with rel="next"; none on the last one',
    "Retry-After": "Seconds to wait before the request is sent again",
    "WWW-Authenticate": "How to authenticate: Bearer",
    "X-Cursor": "The id up to which the filters were applied; a reader that found nothing new continues from here. "
    "Not with order=desc",
    "X-Request-ID": "Names the request in the service's log",
}
# The headers that responses have by their status.
_BY_STATUS = {
    "304": ["ETag"],
    "401": ["WWW-Authenticate"],
    "409": ["Retry-After"],
    "429": ["Retry-After"],
    "503": ["Retry-After"],
}


def describe(routes: Iterable[Route], max_records: int, base_url: str = "") -> dict[str, Any]:
    """Return the OpenAPI document of a table of routes; a handler without documentation is left out."""
    plugin = MarshmallowPlugin()
    spec = APISpec(
        title="Scraping Data Service",
        version=service.__version__,
        openapi_version="3.1.0",
        info={"description": _ABOUT, "license": _LICENSE, "contact": _CONTACT},
        servers=[{"url": base_url.rstrip("/") or "/"}],
        plugins=[plugin],
    )
    assert plugin.converter is not None
    plugin.converter.add_attribute_function(_whole_number)  # type: ignore[no-untyped-call]
    plugin.converter.add_attribute_function(_date_or_seconds)  # type: ignore[no-untyped-call]
    spec.components.security_scheme("bearer", {"type": "http", "scheme": "bearer"})
    for name, description in _TAGS.items():
        spec.tag({"name": name, "description": description})
    for route in routes:
        if hasattr(route.handler, "__apispec__"):
            operation = _operation(route, route.handler.__apispec__, max_records)
            spec.path(path=route.path, operations={route.method.lower(): operation})
    document: dict[str, Any] = spec.to_dict()
    for name, schema in document["components"]["schemas"].items():
        if name in EXAMPLES:
            schema["examples"] = [EXAMPLES[name]]
    schemas = _input_schemas(document)
    for name, schema in document["components"]["schemas"].items():
        if name in schemas:
            _tell_defaults(schema)
        elif schema.get("additionalProperties") is False:  # a later version may return more
            del schema["additionalProperties"]
    for method, operation in (operation for path in document["paths"].values() for operation in path.items()):
        for parameter in operation["parameters"]:
            if method == "delete":  # an empty value is refused there: it would delete more
                _refuse_null(parameter["schema"])
            elif "null" in parameter["schema"]["type"]:
                parameter["allowEmptyValue"] = True  # an empty value means none
    return document


def _refuse_null(schema: dict[str, Any]) -> None:
    """Take null, and the default, out of the schema of a parameter."""
    schema.pop("default", None)
    if isinstance(schema["type"], list):
        (schema["type"],) = (name for name in schema["type"] if name != "null")
    if "enum" in schema:
        schema["enum"] = [choice for choice in schema["enum"] if choice is not None]


def _input_schemas(document: dict[str, Any]) -> set[str]:
    """Return the names of the schemas of request bodies."""
    names: set[str] = set()

    def visit(value: Any) -> None:
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            visit(part)
        if isinstance(value, dict) and isinstance(name := value.get("$ref"), str):
            name = name.rpartition("/")[2]
            if name not in names:
                names.add(name)
                visit(document["components"]["schemas"][name])

    for path in document["paths"].values():
        visit([operation.get("requestBody") for operation in path.values()])
    return names


def _tell_defaults(schema: dict[str, Any]) -> None:
    """Move defaults into the descriptions: TypeScript generators make a field with a default required."""
    for field in schema.get("properties", {}).values():
        default = field.pop("default", None)
        if default is not None:
            text = f"Default: {orjson.dumps(default).decode()}"
            field["description"] = f"{field['description']}. {text}" if field.get("description") else text


def _whole_number(self: Any, field: fields.Field[Any], ret: dict[str, Any]) -> dict[str, Any]:
    """Say that whole numbers need 64 bits: many generators take 32."""
    return {"format": "int64"} if "integer" in ret.get("type", "") else {}


def _date_or_seconds(self: Any, field: fields.Field[Any], ret: dict[str, Any]) -> dict[str, Any]:
    """Describe a date that may also be a number."""
    if not isinstance(field, Expiry):
        return {}
    text = {name: ret.pop(name) for name in ("type", "format")}
    return {"anyOf": [text, {"type": "integer", "format": "int64", "minimum": -1}]}


def _operation(route: Route, said: dict[str, Any], max_records: int) -> dict[str, Any]:
    operation = {key: value for key, value in said.items() if key not in _OURS}
    operation["security"] = [] if route.scope == "public" else [{"bearer": []}]
    operation["parameters"] = [
        {
            "in": "path",
            "name": name,
            "required": True,
            "description": _IN_PATHS[name],
            "schema": _NARROWER.get(name, _PATH_ID),
        }
        for name in (part[1:-1] for part in route.path.split("/") if part.startswith("{"))
    ]
    errors = _PUBLIC_ERRORS
    if route.scope != "public":
        errors = {**_ERRORS, 403: f"The token does not have the scope {' and '.join(route.scope.split())}"}
    told = list(said.get("response_headers", ()))
    for used in said["schemas"]:
        if used["location"] == "json":
            schema = used["schema"]
            array = {"type": "array", "items": type(schema)(), "maxItems": max_records}
            content: dict[str, Any] = {"application/json": {"schema": array if schema.many else schema}}
            content |= {kind: {"schema": _LINES} for kind in said.get("takes", ())}
            operation["requestBody"] = {"required": True, "content": content}
            errors = {**errors, **_BODY_ERRORS}
        else:
            operation["parameters"].append({"in": "query", "schema": used["schema"]})
            if isinstance(used["schema"], PageQuery):
                told.append("Link")
    operation["parameters"] += [
        {"in": "header", "name": name, "required": False, "description": text, **_TEXT}
        for name, text in said.get("headers", {}).items()
    ]
    if said.get("not_found"):
        errors = {**errors, 404: "There is no such record"}
    responses = {**said["responses"], **{str(code): {"description": text} for code, text in errors.items()}}
    headers = {**_BY_STATUS, "200": told}
    operation["responses"] = {}
    for status, response in responses.items():
        names = ["X-Request-ID", *headers.get(status, [])]
        described = {name: {"description": _HEADERS[name], **_TEXT} for name in names}
        operation["responses"][status] = {"description": response["description"], "headers": described}
        if (schema := Error() if status >= "400" else response.get("schema")) is not None:
            operation["responses"][status]["content"] = {"application/json": {"schema": schema}}
    # Generated clients take the first type that they know: text, which fits all of them.
    success = operation["responses"]["200"]
    contents = {kind: {"schema": _BINARY if kind == PARQUET else _LINES} for kind in said.get("gives", ())}
    success["content"] = {**contents, **success.get("content", {})}
    return operation


@functools.cache  # tests make many applications
def document(routes: tuple[Route, ...], max_records: int, base_url: str) -> bytes:
    """Return the OpenAPI document as JSON."""
    return orjson.dumps(describe(routes, max_records, base_url))
