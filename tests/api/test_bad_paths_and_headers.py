"""Paths, queries and headers that are wrong or odd on purpose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import MakeApi
from tests.support.api import Api, Response, make_output, make_review


def raw_url(api: Api, target: str) -> Any:
    from yarl import URL

    return URL(f"http://{api.client.host}:{api.client.port}{target}", encoded=True)


async def get_raw(api: Api, target: str) -> Response:
    headers = {"Authorization": f"Bearer {api.token}"}
    async with api.client.session.get(raw_url(api, target), headers=headers) as response:
        body = await response.read()
        return Response(response.status, response.headers, body, json.loads(body))


BAD_NUMBERS = [
    *(("limit", value) for value in (
        "0", "1001", "-1", "1.9", "1.0", "1e2", "1_000", "１０", "٣", "0x10", " 10", "10 ", "ten", "true", "NaN",
        "9223372036854775808", "9" * 5000, "", "+", "--1", "²",
    )),
    *(("cursor", value) for value in ("-1", "-0.5", "1_000", "１", "9223372036854775808", "9" * 400, "", "null")),
]  # fmt: skip


async def test_invalid_or_out_of_range_numbers_are_refused(api: Api) -> None:
    for parameter, value in BAD_NUMBERS:
        response = await api.get("/v1/outputs/g", params={parameter: value})
        assert response.status == 422, (parameter, value)
        ((loc, kind),) = response.problems()
        assert loc == ["query", parameter], (parameter, value)
        assert kind in ("int_type", "greater_than_equal", "less_than_equal"), (parameter, value)


@pytest.mark.parametrize("cursor", ["0", "9223372036854775807", "00012"])
async def test_cursors_up_to_63_bits_are_fine(api: Api, cursor: str) -> None:
    assert (await get_raw(api, f"/v1/outputs/g?cursor={cursor}")).json["items"] == []


async def test_an_empty_nullable_parameter_counts_as_left_out(api: Api) -> None:
    for name in ["job_id", "created_after", "url", "country", "region"]:
        await api.ok("/v1/outputs/g", [make_output()])
        assert len((await get_raw(api, f"/v1/outputs/g?{name}=")).json["items"]) == 1, name
        assert len((await get_raw(api, f"/v1/outputs/g?{name}")).json["items"]) == 1, name


async def test_a_parameter_given_twice_is_refused(api: Api) -> None:
    for name in ["job_id", "created_after", "url", "limit", "cursor", "country", "region"]:
        response = await get_raw(api, f"/v1/outputs/g?{name}=1&{name}=1")
        assert (response.status, response.problems()) == (422, [(["query", name], "value_error")]), name


NOT_TEXT = [
    ("/v1/outputs/%ZZ", "path"),
    ("/v1/outputs/a%", "path"),
    ("/v1/outputs/a%2", "path"),
    ("/v1/outputs/%FF%FE", "path"),
    ("/v1/outputs/%C0%AF", "path"),
    ("/v1/outputs/%ED%A0%80", "path"),
    ("/v1/outputs/a%00b", "path"),
    ("/v1/outputs/g?job_id=%ZZ", "query"),
    ("/v1/outputs/g?job_id=%FF", "query"),
    ("/v1/outputs/g?job_id=%00", "query"),
    ("/v1/outputs/g?%FF=1", "query"),
    ("/v1/outputs/g?job_id=100%", "query"),
    ("/v1/cookies?domain=%c3%28", "query"),
    ("/v1/reviews/%u0041", "path"),
]


async def test_percent_encoding_that_is_not_text_is_refused(api: Api) -> None:
    for target, part in NOT_TEXT:
        response = await get_raw(api, target)
        assert (response.status, response.problems()) == (422, [([part], "value_error")]), target


GROUP_IDS = {
    "a slash": "a/b",
    "a question mark": "a?b=c",
    "a number sign": "a#b",
    "a percent sign": "100%",
    "what looks encoded": "a%2Fb",
    "what looks doubly encoded": "%252F",
    "braces": "{group_id}",
    "one brace": "a{",
    "a space": "a b",
    "a plus sign": "a+b",
    "dots": "...",
    "an operator": '{"$gt": ""}',
    "a dollar": "$where",
    "a quote": "'\"`",
    "a backslash": "a\\b",
    "a semicolon": "a;b=c",
    "an at sign": "user:pass@host",
    "Cyrillic": "группа",
    "an emoji": "😀",
    "a composed letter": "\u00e9",
    "a decomposed letter": "e\u0301",
    "a right-to-left mark": "\u202e",
    "a line feed": "a\nb",
    "a line separator": "a\u2028b",
    "256 letters": "x" * 256,
    "256 emojis": "😀" * 256,
    "a comma": "a,b",
    "null": "null",
    "a number": "0",
}


@pytest.mark.slow
async def test_any_text_can_be_a_group_id(make_api: MakeApi) -> None:
    from urllib.parse import quote

    for case in GROUP_IDS:
        api = await make_api()
        group = quote(GROUP_IDS[case], safe="")
        headers = {"Authorization": f"Bearer {api.token}"}
        for path, record in (("outputs", make_output()), ("outputs", make_output(2)), ("reviews", make_review())):
            async with api.client.session.post(
                raw_url(api, f"/v1/{path}/{group}"), json=[record], headers=headers
            ) as r:
                assert r.status == 200, await r.text()
        page = (await get_raw(api, f"/v1/outputs/{group}?limit=1")).json
        assert len(page["items"]) == 1
        next_target = page["metadata"]["next_url"].removeprefix(str(raw_url(api, "")))
        assert len((await get_raw(api, next_target)).json["items"]) == 1
        assert len((await get_raw(api, f"/v1/reviews/{group}")).json) == 1
        groups = [g["group_id"] for g in await api.ok("/v1/groups")]
        assert groups == [GROUP_IDS[case]]
        assert (await get_raw(api, f"/v1/groups/{group}/stats")).json["items"] == 2


async def test_letters_composed_and_decomposed_are_different_groups(api: Api) -> None:
    await api.ok("/v1/outputs/%C3%A9", [make_output()])
    assert (await get_raw(api, "/v1/outputs/e%CC%81")).json["items"] == []
    assert len((await get_raw(api, "/v1/outputs/%C3%A9")).json["items"]) == 1


@pytest.mark.parametrize("route", ["outputs", "reviews"])
async def test_a_group_id_over_256_characters_is_refused(api: Api, route: str) -> None:
    for response in (await api.get(f"/v1/{route}/{'x' * 257}"), await api.post(f"/v1/{route}/{'x' * 257}", [])):
        assert (response.status, response.problems()) == (422, [(["path", "group_id"], "string_too_long")])


@pytest.mark.parametrize(
    "value",
    [
        "a&b=c",
        "a+b",
        "a b",
        "100%",
        "%2B",
        "é",
        "e\u0301",
        "#frag",
        "?x=y&z",
        "https://shop.example/p?a=1&b=%20#c",
        "\n",
    ],
)
async def test_next_url_repeats_the_filters_exactly(api: Api, value: str) -> None:
    items = [make_output(n, source_url=value, tags={"country": value}, root_job_id=value) for n in range(3)]
    await api.ok("/v1/outputs/g", [*items, make_output(9)])
    for name in ("url", "country", "job_id"):
        page = await api.ok("/v1/outputs/g", params={name: value, "limit": "1"})
        seen = [page["items"][0]["id"]]
        while page["metadata"]["next_url"]:
            target = page["metadata"]["next_url"].removeprefix(str(raw_url(api, "")))
            page = (await get_raw(api, target)).json
            seen += [item["id"] for item in page["items"]]
        assert len(seen) == 3


NOWHERE = [
    "/v1/outputs/", "/v1/outputs", "/v1/outputs/g/", "/v1/outputs/g/h/i", "/v1/cookies/",
    "/v1//cookies", "//v1/cookies",
    "/V1/cookies", "/v1/Cookies", "/v1/cookies/../cookies/x", "/v2/cookies", "/v1", "/docs/static/../../setup.cfg",
    "/docs/static/%2e%2e/%2e%2e/setup.cfg", "/docs/static/..%2f..%2fsetup.cfg", "/docs/static//etc/passwd",
    "/docs/static/%2Fetc%2Fpasswd", "/docs/static/", "/docs/static", "/docs/static/nothing.js",
    "/docs/static/..\\x",
    "/.git/config", "/.env", "/openapi.json/", "/healthz/", "/admin", "/v1/cookies;x=y",
    "/v1/outputs/g/../h/../../..", "/v1/", "/x",
]  # fmt: skip


async def test_a_path_that_is_none_of_the_routes_is_not_found(api: Api) -> None:
    for target in NOWHERE:
        response = await get_raw(api, target)
        assert (response.status, response.problems()) == (404, [(["path"], "not_found")]), target


# -- headers -----------------------------------------------------------------------------------------


async def test_any_accept_header_gets_json(api: Api) -> None:
    for accept in [
        "",
        "nonsense",
        "*/*;q=0",
        "application/xml",
        "x" * 8000,
        ",,,;;;",
        "text/html, */*;q=0.1",
        "a/b;q=nan",
    ]:
        response = await api.get("/v1/outputs/g", headers={"Accept": accept})
        assert (response.status, response.headers["Content-Type"]) == (200, "application/json"), accept


async def test_a_request_id_that_is_not_plain_is_replaced(api: Api) -> None:
    for given in ["a b", "x" * 129, "ö", "<script>", "a;b", '"', "a\tb", "{}"]:
        response = await api.get("/v1/cookies", headers={"X-Request-ID": given})
        assert response.headers.getall("X-Request-ID") != [given], given
        assert len(response.headers["X-Request-ID"]) == 32, given


async def test_a_plain_request_id_comes_back(api: Api) -> None:
    response = await api.get("/v1/cookies", headers={"X-Request-ID": "job-1:run/2"})
    assert response.headers["X-Request-ID"] == "job-1:run/2"


async def test_no_if_none_match_breaks_the_service(api: Api) -> None:
    for etag in ["*", '"1"', "W/", 'W/"1", W/"2"', "x" * 8000, 'W/"99999999999999999999"', 'W/"-1"', "é"]:
        await api.ok("/v1/outputs/g", [make_output()])
        assert (await api.get("/v1/outputs/g", headers={"If-None-Match": etag})).status in (200, 304), etag
