"""The OpenAPI document and the page that shows it. Other tests check every response against it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp_apispec import docs, json_schema, querystring_schema, response_schema
from marshmallow import Schema, fields
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from schemas.examples import EXAMPLES
from service.http.openapi import describe
from service.routes import ROUTES
from service.store import Store
from tests.support.api import Api
from tests.support.contract import document
from tests.support.routes import API_ROUTES


@pytest.fixture
def store(mock_store: Store) -> Store:
    return mock_store


def test_the_decorators_of_aiohttp_apispec_leave_what_the_document_is_made_from() -> None:
    """All that is used of the library. It is a pre-release of 2022: whatever takes its place has to do this."""

    class Query(Schema):
        limit = fields.Integer()

    class Body(Schema):
        name = fields.String()

    async def handler(request: Any) -> Any:
        """Do something."""

    decorated = docs(summary="Sum", tags=["a"], responses={"404": {"description": "Gone"}})(handler)
    decorated = querystring_schema(Query)(decorated)
    decorated = json_schema(Body(many=True), required=True)(decorated)
    decorated = response_schema(Body(), 200, description="Success")(decorated)
    assert decorated is handler  # a mark on the handler, and nothing around it
    left = handler.__apispec__
    assert (left["summary"], left["tags"], left["parameters"]) == ("Sum", ["a"], [])
    assert left["responses"]["404"] == {"description": "Gone"}
    assert isinstance(left["responses"]["200"]["schema"], Body)
    assert left["responses"]["200"]["description"] == "Success"
    query, body = left["schemas"]
    assert (query["location"], body["location"]) == ("querystring", "json")
    assert isinstance(query["schema"], Query)
    assert (body["schema"].many, body["options"]) == (True, {"required": True})


# Beside those that every route with a token has.
MORE_ERRORS = {
    ("GET", "/v1/outputs/{group_id}"): {"410"},
    ("GET", "/v1/outputs/{group_id}/export"): {"410"},
    ("GET", "/v1/cookies"): {"410"},
    ("GET", "/v1/local-storage"): {"410"},
    ("GET", "/v1/outputs/{group_id}/{output_id}"): {"404"},
    ("PATCH", "/v1/outputs/{group_id}/{output_id}"): {"404", "412"},
    ("DELETE", "/v1/outputs/{group_id}"): {"404", "409"},
    ("DELETE", "/v1/outputs/{group_id}/{output_id}"): {"404", "412"},
    ("POST", "/v1/outputs/{group_id}/{output_id}/restore"): {"404", "409"},
    ("GET", "/v1/groups/{group_id}/jobs/{job_id}"): {"404"},
    ("GET", "/v1/groups/{group_id}/jobs/{job_id}/changes"): {"404"},
    ("PUT", "/v1/groups/{group_id}/jobs/{job_id}"): {"404"},
    ("GET", "/v1/sessions/{pool}"): {"404"},
    ("DELETE", "/v1/sessions/{pool}"): {"404"},
    ("POST", "/v1/sessions/{pool}/lease"): {"404", "409"},
    ("GET", "/v1/sessions/{pool}/{name}"): {"404"},
    ("PUT", "/v1/sessions/{pool}/{name}"): {"412"},
    ("DELETE", "/v1/sessions/{pool}/{name}"): {"404"},
    ("PUT", "/v1/leases/{lease_id}"): {"409"},
    ("POST", "/v1/leases/{lease_id}/release"): {"409"},
    ("DELETE", "/v1/webhooks/{webhook_id}"): {"404"},
    ("POST", "/v1/webhooks/{webhook_id}/test"): {"404"},
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"): {"404"},
    ("DELETE", "/v1/tokens/{token_id}"): {"404", "409"},
}


def operations() -> dict[tuple[str, str], Any]:
    return {
        (method.upper(), path): operation
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    }


def parameters(method: str, path: str) -> dict[str, Any]:
    return {parameter["name"]: parameter for parameter in operations()[method, path]["parameters"]}


def properties(name: str) -> dict[str, Any]:
    return dict(document()["components"]["schemas"][name]["properties"])


async def test_the_document_is_served_as_it_is(api: Api) -> None:
    response = await api.client.get("/openapi.json")
    assert response.status == 200
    assert await response.json() == document()


def test_the_document_is_valid_openapi() -> None:
    validate(document())
    assert document()["openapi"].startswith("3.1")


def test_every_route_is_in_the_document() -> None:
    assert set(operations()) == {(method, path) for method, path, _, _ in API_ROUTES}


def test_routes_with_a_scope_need_the_bearer_scheme_and_the_others_nothing() -> None:
    assert document()["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    for method, path, scope, _ in API_ROUTES:
        expected: list[Any] = [] if scope == "public" else [{"bearer": []}]
        assert operations()[method, path]["security"] == expected, (method, path)


def test_every_operation_has_a_summary_an_id_of_its_own_and_the_errors_it_can_give() -> None:
    ids = [operation["operationId"] for operation in operations().values()]
    assert len(set(ids)) == len(ids)
    for (method, path), operation in operations().items():
        assert operation["summary"] and operation["description"]
        expected = {"200", "400", "422", "500", "503"}
        if operation["security"]:
            expected |= {"401", "403", "429"}
        if "requestBody" in operation:
            expected |= {"408", "413", "415"}
        expected |= MORE_ERRORS.get((method, path), set())
        assert set(operation["responses"]) - {"304", "414", "431"} == expected, (method, path)
        for status, response in operation["responses"].items():
            if status not in ("200", "304"):
                (content,) = response["content"].values()
                assert content["schema"] == {"$ref": "#/components/schemas/Error"}


def test_the_parameters_of_outputs_have_the_types_defaults_and_bounds_of_the_contract() -> None:
    found = parameters("GET", "/v1/outputs/{group_id}")
    assert found["group_id"]["in"] == "path"
    assert found["group_id"]["required"] is True
    names = {"job_id", "created_after", "url", "limit", "cursor", "country", "region"}
    assert names <= set(found)
    for name in names:
        assert found[name]["in"] == "query"
        assert found[name]["required"] is False
    limit, cursor = found["limit"]["schema"], found["cursor"]["schema"]
    assert (limit["type"], limit["minimum"], limit["maximum"], limit["default"]) == ("integer", 1, 1000, 10)
    assert (cursor["type"], cursor["minimum"], cursor["default"]) == ("integer", 0, 0)
    for name in names - {"limit", "cursor"}:
        assert found[name]["schema"]["type"] == ["string", "null"]
    assert found["created_after"]["schema"]["format"] == "date-time"


def test_every_parameter_says_what_it_means() -> None:
    for (method, path), operation in operations().items():
        assert [one["name"] for one in operation["parameters"] if not one.get("description")] == [], (method, path)
    found = parameters("GET", "/v1/outputs/{group_id}")
    for name, meaning in {
        "group_id": "scraping group",
        "job_id": "of all jobs",
        "created_after": "2026-01-31 or 2026-01-31T12:00:00Z",
        "url": "protocol and path",
        "country": "name",
        "region": "ISO 3166-2",
    }.items():
        assert meaning in found[name]["description"]


# The tables of the interface: type -> fields, in their order. What follows `files` and `comment` is an extension.
CONTRACT: dict[str, list[tuple[str, str]]] = {
    "CookieInput": [
        ("string", "domain name value"),
        ("boolean", "secure http_only"),
        ("date-time|integer", "expires"),
        ("string", "path"),
    ],
    "Cookie": [("string", "name value url domain path"), ("integer", "expires"), ("boolean", "http_only secure")],
    "LocalStorageInput": [("string", "domain key value path"), ("date-time", "expires")],
    "LocalStorageEntry": [
        ("integer", "organization_id"),
        ("string", "domain key value"),
        ("date-time", "expires"),
        ("integer", "id group_id"),
        ("string", "path"),
        ("date-time", "create_date update_date"),
    ],
    "Review": [("string", "job_id review_id"), ("date-time", "review_date"), ("string", "status comment author")],
    "Output": [
        ("string", "source_url"),
        ("object", "data"),
        ("integer", "id"),
        ("string", "output_id root_job_id"),
        ("date-time", "create_date update_date last_scraped_date"),
        ("string", "key_hash value_hash"),
        ("boolean", "is_approved"),
        ("object", "tags"),
        ("array of File", "files"),
        ("boolean", "deleted"),
        ("string", "approved_by"),
        ("date-time", "approved_date"),
    ],
    "File": [
        ("string", "id field url_etag_hash blob_key blob_url source_url"),
        ("date-time", "create_date"),
        ("string", "file_url file_type file_checksum"),
        ("object", "file_metadata"),
    ],
    "Pagination": [("string", "next_url"), ("integer", "next_cursor")],
    "OutputsPage": [("Pagination", "metadata"), ("array of Output", "items")],
    "Error": [("array of Problem", "detail")],
    "Problem": [("array of string", "loc"), ("string", "msg type")],
}


def type_of(schema: dict[str, Any]) -> str:
    """Return the type of a field in the words of the interface."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return "|".join(map(type_of, schema["anyOf"]))
    if schema["type"] == "array":
        return f"array of {type_of(schema['items'])}"
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    (kind,) = (name for name in types if name != "null")
    return "date-time" if schema.get("format") == "date-time" else str(kind)


@pytest.mark.parametrize("schema", CONTRACT)
def test_schemas_have_the_fields_of_the_contract_with_their_types_in_its_order(schema: str) -> None:
    expected = [(name, kind) for kind, names in CONTRACT[schema] for name in names.split()]
    assert [(name, type_of(field)) for name, field in properties(schema).items()] == expected


def test_required_input_fields_are_those_decided() -> None:
    schemas = document()["components"]["schemas"]
    assert set(schemas["CookieInput"]["required"]) == {"domain", "name", "value"}
    assert set(schemas["LocalStorageInput"]["required"]) == {"domain", "key", "value"}
    assert set(schemas["ReviewInput"]["required"]) == {"job_id", "status"}
    assert set(schemas["OutputInput"]["required"]) == {"source_url", "data", "root_job_id"}
    assert set(schemas["OutputsPage"]["required"]) == {"metadata", "items"}


def test_input_schemas_tell_their_defaults_in_words() -> None:
    """A field with a `default` counts as required in the request types of openapi-typescript."""
    cookie = properties("CookieInput")
    assert [cookie[name]["description"] for name in ("secure", "http_only", "path")] == [
        "Default: false",
        "Default: false",
        'Default: ""',
    ]
    assert properties("LocalStorageInput")["path"]["description"].endswith('Default: "/"')
    schemas = document()["components"]["schemas"]
    for name in ("CookieInput", "LocalStorageInput", "ReviewInput", "OutputInput", "FileInput", "OutputPatchOf"):
        assert [field for field in schemas[name]["properties"].values() if "default" in field] == []


def test_the_flags_of_a_cookie_are_false_by_default() -> None:
    cookie = properties("Cookie")
    assert cookie["http_only"]["default"] is cookie["secure"]["default"] is False


def test_empty_values_are_for_reading_only() -> None:
    for (method, path), operation in operations().items():
        empty = {one["name"] for one in operation["parameters"] if one.get("allowEmptyValue")}
        nullable = {one["name"] for one in operation["parameters"] if "null" in one["schema"]["type"]}
        assert empty == nullable == (set() if method == "DELETE" else empty), (method, path)


def test_headers_that_lead_on_are_told() -> None:
    headers = {key: set(operation["responses"]["200"]["headers"]) for key, operation in operations().items()}
    assert headers["GET", "/v1/outputs/{group_id}"] == {"X-Request-ID", "ETag", "X-Cursor"}
    cursor = operations()["GET", "/v1/outputs/{group_id}"]["responses"]["200"]["headers"]["X-Cursor"]
    assert cursor["description"].endswith("Not with order=desc")  # as tests/api/test_paging.py has it
    not_modified = operations()["GET", "/v1/outputs/{group_id}"]["responses"]["304"]["headers"]
    assert set(not_modified) == {"X-Request-ID", "ETag"}
    linked = ("/v1/cookies", "/v1/local-storage", "/v1/reviews/{group_id}", "/v1/groups", "/v1/sessions/{pool}")
    assert {path for (_, path), names in headers.items() if "Link" in names} == set(linked)


def test_bounds_of_lists_and_texts_are_told() -> None:
    assert properties("GroupSettings")["rules"]["maxItems"] == 100
    assert properties("OutputInput")["files"]["maxItems"] == 1000
    assert properties("LocalStorageInput")["value"]["maxLength"] == 5 * 1024 * 1024


def test_outputs_are_written_as_json_or_ndjson() -> None:
    body = document()["paths"]["/v1/outputs/{group_id}"]["post"]["requestBody"]
    assert list(body["content"]) == ["application/json", "application/x-ndjson"]


def test_input_schemas_tell_their_lengths() -> None:
    cookie = properties("CookieInput")
    assert cookie["expires"]["anyOf"][0]["format"] == "date-time"
    assert (cookie["domain"]["minLength"], cookie["domain"]["maxLength"]) == (1, 255)
    assert properties("ReviewInput")["status"]["maxLength"] == 64
    assert properties("OutputInput")["source_url"]["maxLength"] == 8192
    assert properties("OutputInput")["key_hash"]["maxLength"] == 256


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/cookies"),
        ("POST", "/v1/local-storage"),
        ("POST", "/v1/reviews/{group_id}"),
        ("POST", "/v1/outputs/{group_id}"),
        ("PATCH", "/v1/outputs/{group_id}"),
    ],
)
def test_bodies_are_arrays_of_at_most_1000_records(method: str, path: str) -> None:
    body = operations()[method, path]["requestBody"]
    assert body["required"] is True
    schema = body["content"]["application/json"]["schema"]
    assert (schema["type"], schema["maxItems"]) == ("array", 1000)


def test_outputs_that_have_not_changed_are_documented() -> None:
    assert set(operations()["GET", "/v1/outputs/{group_id}"]["responses"]["304"]) == {"description", "headers"}


def test_every_route_has_one_type_but_the_export_the_metrics_and_writes_of_outputs() -> None:
    """Generated clients have one type per route; one that they do not know is a warning."""
    for (method, path), operation in operations().items():
        given = set(operation["responses"]["200"]["content"])
        match path:
            case "/v1/outputs/{group_id}/export":
                types = ["application/x-ndjson", "text/csv", "text/event-stream", "application/json"]
                types.append("application/vnd.apache.parquet")
                assert given == set(types)
            case "/metrics":
                assert given == {"text/plain"}
            case _:
                assert given == {"application/json"}, (method, path)
        if "requestBody" in operation:
            lines = {"application/x-ndjson"} if (method, path) == ("POST", "/v1/outputs/{group_id}") else set()
            assert set(operation["requestBody"]["content"]) == {"application/json", *lines}


def test_an_export_is_text_unless_it_is_parquet_or_one_array() -> None:
    given = operations()["GET", "/v1/outputs/{group_id}/export"]["responses"]["200"]["content"]
    *lines, (binary, file), (last, array) = given.items()
    assert all(content["schema"] == {"type": "string"} for _, content in lines)
    assert (binary, file["schema"]["format"]) == ("application/vnd.apache.parquet", "binary")
    expected = {"type": "array", "items": {"$ref": "#/components/schemas/Output"}}
    assert (last, array["schema"]) == ("application/json", expected)


@pytest.mark.parametrize(
    ("method", "path", "header"),
    [
        ("GET", "/v1/outputs/{group_id}", "If-None-Match"),
        ("PATCH", "/v1/outputs/{group_id}/{output_id}", "If-Match"),
        ("DELETE", "/v1/outputs/{group_id}/{output_id}", "If-Match"),
        ("GET", "/v1/outputs/{group_id}/export", "Last-Event-ID"),
    ],
)
def test_headers_that_a_route_reads_are_parameters(method: str, path: str, header: str) -> None:
    found = parameters(method, path)[header]
    assert (found["in"], found["required"], found["schema"]) == ("header", False, {"type": "string"})


def test_the_document_has_the_etag_of_an_output() -> None:
    for method in ("GET", "PATCH"):
        assert "ETag" in operations()[method, "/v1/outputs/{group_id}/{output_id}"]["responses"]["200"]["headers"]


def test_descriptions_are_text_without_indentation() -> None:
    for operation in operations().values():
        assert "\n " not in operation["description"]


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        (
            "GET",
            "/v1/outputs/{group_id}",
            "job_id created_after url limit cursor country region is_approved key_hash order "
            "deleted wait walk fields change missing where rejected",
        ),
        (
            "GET",
            "/v1/outputs/{group_id}/export",
            "job_id created_after url limit cursor country region is_approved key_hash order "
            "deleted fields walk change missing where rejected format "
            "follow safe",
        ),
        (
            "DELETE",
            "/v1/outputs/{group_id}",
            "job_id url country region is_approved key_hash change missing where rejected scraped_before max_id all "
            "dry_run cursor",
        ),
        ("GET", "/v1/groups/{group_id}/fields", "job_id limit"),
    ],
)
def test_every_filter_is_a_parameter(method: str, path: str, names: str) -> None:
    found = {name for name, parameter in parameters(method, path).items() if parameter["in"] == "query"}
    assert found == set(names.split())


def test_the_document_names_a_server_a_license_and_a_contact() -> None:
    """Without a public address the API lies where the document does."""
    assert document()["servers"] == [{"url": "/"}]
    assert document()["info"]["license"] == {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
    assert document()["info"]["contact"]


def test_no_default_lies_outside_of_its_choices() -> None:
    for operation in operations().values():
        for schema in (parameter["schema"] for parameter in operation["parameters"]):
            if "default" in schema and "enum" in schema:
                assert schema["default"] in schema["enum"], operation["operationId"]


async def test_swagger_ui_has_all_its_assets_here(api: Api) -> None:
    async with api.client.get("/docs") as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        page = await response.text()
    assert "://" not in page
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) >= 3
    for asset in assets:
        async with api.client.get(asset) as response:
            assert response.status == 200, asset
            assert await response.read()


def test_every_tag_is_explained_and_no_description_is_indented() -> None:
    explained = {tag["name"]: tag["description"] for tag in document()["tags"]}
    for operation in operations().values():
        assert all(explained[tag] for tag in operation["tags"])
        assert "\n   " not in operation["description"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_fits_its_schema(name: str) -> None:
    schemas = document()["components"]["schemas"]
    assert schemas[name]["examples"] == [EXAMPLES[name]]
    resolved = {**schemas[name], "components": {"schemas": schemas}}
    OAS31Validator(resolved, format_checker=OAS31Validator.FORMAT_CHECKER).validate(EXAMPLES[name])


def test_whole_numbers_have_64_bits() -> None:
    assert properties("Output")["id"]["format"] == "int64"
    assert parameters("GET", "/v1/outputs/{group_id}")["cursor"]["schema"]["format"] == "int64"


def test_later_versions_may_return_more_but_take_no_more() -> None:
    schemas = document()["components"]["schemas"]
    assert "additionalProperties" not in schemas["Output"] and "additionalProperties" not in schemas["Error"]
    assert schemas["OutputInput"]["additionalProperties"] is schemas["FileInput"]["additionalProperties"] is False


def test_each_operation_names_the_scopes_that_it_needs() -> None:
    for (method, path), operation in operations().items():
        scope = next(route.scope for route in ROUTES if (route.method, route.path) == (method, path))
        if scope != "public":
            assert operation["responses"]["403"]["description"].endswith(f"scope {' and '.join(scope.split())}")


def test_the_document_names_the_public_address() -> None:
    assert describe(ROUTES, 1000, "https://data.example/api")["servers"] == [{"url": "https://data.example/api"}]


def test_a_record_that_may_be_null_is_that_or_null() -> None:
    review = properties("Job")["review"]
    assert review["anyOf"] == [{"$ref": "#/components/schemas/Review"}, {"type": "null"}]
