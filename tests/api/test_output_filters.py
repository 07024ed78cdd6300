"""Query parameters of outputs: defaults, bounds and what each filter keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import Api, Response, make_output
from tests.support.contract import HeldApi
from tests.support.outputs import ODD, PATH, items, tick


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


FAULTY = [
    ("limit=0", "limit", "greater_than_equal"),
    ("limit=-1", "limit", "greater_than_equal"),
    ("limit=1001", "limit", "less_than_equal"),
    ("limit=abc", "limit", "int_type"),
    ("limit=1e3", "limit", "int_type"),
    ("limit=1.0", "limit", "int_type"),
    ("limit=1_000", "limit", "int_type"),
    ("limit=%2B5", "limit", "int_type"),
    ("limit=+5", "limit", "int_type"),
    ("limit=5%0A", "limit", "int_type"),
    ("limit=0x10", "limit", "int_type"),
    ("limit=%EF%BC%91", "limit", "int_type"),  # a full-width 1
    ("limit=%D9%A3", "limit", "int_type"),  # an Arabic 3
    ("limit=true", "limit", "int_type"),
    ("limit=null", "limit", "int_type"),
    ("limit=", "limit", "int_type"),
    ("limit=9999999999999999999999", "limit", "less_than_equal"),
    ("limit=5&limit=6", "limit", "value_error"),
    ("limit=5&limit=5", "limit", "value_error"),
    ("cursor=-1", "cursor", "greater_than_equal"),
    ("cursor=9223372036854775808", "cursor", "less_than_equal"),
    (f"cursor={2**70}", "cursor", "less_than_equal"),
    ("cursor=abc", "cursor", "int_type"),
    ("cursor=", "cursor", "int_type"),
    ("cursor=1.5", "cursor", "int_type"),
    ("cursor=1&cursor=2", "cursor", "value_error"),
    ("created_after=yesterday", "created_after", "datetime_invalid"),
    ("created_after=2026-02-30", "created_after", "datetime_invalid"),
    ("created_after=2026-1-1", "created_after", "datetime_invalid"),
    ("created_after=20260131", "created_after", "datetime_invalid"),
    ("created_after=2026-01-31T", "created_after", "datetime_invalid"),
    ("created_after=2026-01-31T25:00:00Z", "created_after", "datetime_invalid"),
    ("created_after=2026-01-31T12:00:00%2B99:00", "created_after", "datetime_invalid"),
    ("created_after=0000-01-01", "created_after", "datetime_invalid"),
    ("created_after=10000-01-01", "created_after", "datetime_invalid"),
    ("created_after=0001-01-01T00:00:00%2B01:00", "created_after", "datetime_invalid"),
    ("created_after=1769860800", "created_after", "datetime_invalid"),
    ("created_after=2026-01-31&created_after=2026-01-31", "created_after", "value_error"),
    ("job_id=" + "j" * 257, "job_id", "string_too_long"),
    ("job_id=a&job_id=a", "job_id", "value_error"),
    ("url=a&url=", "url", "value_error"),
    ("country=" + "c" * 1025, "country", "string_too_long"),
    ("country=a&country=b", "country", "value_error"),
    ("region=" + "r" * 1025, "region", "string_too_long"),
    ("region=a&region=b", "region", "value_error"),
]


async def test_faulty_query_parameters_are_named(api: Api) -> None:
    for query, name, kind in FAULTY:
        response = await api.client.get(f"{PATH}?{query}", headers={"Authorization": f"Bearer {api.token}"})
        held = Response(response.status, response.headers, await response.read(), await response.json())
        assert (held.status, held.problems()) == (422, [(["query", name], kind)]), query


async def test_all_faulty_query_parameters_are_reported(api: Api) -> None:
    response = await api.get(f"{PATH}?limit=0&cursor=-1&created_after=x")
    assert sorted(loc[1] for loc, _ in response.problems()) == ["created_after", "cursor", "limit"]


async def test_limit_is_10_unless_given(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(12)])
    page = await api.ok(PATH)
    assert [item["key_hash"] for item in page["items"]] == [f"key-{n}" for n in range(10)]


@pytest.mark.slow
async def test_limit_goes_from_1_to_1000(make_api: MakeApi) -> None:
    api = await make_api()
    await api.ok(PATH, [make_output(n) for n in range(1000)])
    await api.ok(PATH, [make_output(1000)])
    for limit in (1, 2, 999, 1000):
        page = await api.ok(f"{PATH}?limit={limit}")
        assert len(page["items"]) == limit
        assert page["metadata"]["next_cursor"] == page["items"][-1]["id"]
    assert len(await items(api, "limit=0001")) == 1


async def test_cursor_is_0_unless_given_and_goes_up_to_63_bits(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(3)])
    everything = await items(api)
    assert await items(api, "cursor=0") == everything
    assert await items(api, f"cursor={everything[0]['id']}") == everything[1:]
    assert await items(api, f"cursor={everything[-1]['id']}") == []
    assert await items(api, f"cursor={2**63 - 1}") == []


async def test_empty_filters_count_as_left_out(api: Api) -> None:
    await api.ok(PATH, [make_output(), make_output(2, tags={})])
    everything = await items(api)
    for name in ("job_id", "created_after", "url", "country", "region"):
        assert await items(api, f"{name}=") == everything
    assert await items(api, "job_id=&created_after=&url=&country=&region=") == everything


async def test_job_id_filters_by_root_job_exactly(api: Api) -> None:
    jobs = ["job-1", "job-11", "Job-1", "null", ODD]
    await api.ok(PATH, [make_output(n, root_job_id=job) for n, job in enumerate(jobs)])
    for job in jobs:
        assert [i["root_job_id"] for i in await items(api, urlencode({"job_id": job}))] == [job]
    assert await items(api, "job_id=job") == []


@pytest.mark.slow
async def test_url_filters_by_source_url_byte_for_byte(api: Api) -> None:
    urls = [
        "https://shop.example/p",
        "https://shop.example/p/",
        "https://shop.example/P",
        "https://SHOP.example/p",
        "http://shop.example/p",
        "https://shop.example:443/p",
        "https://shop.example/p?a=1&b=2",
        "https://shop.example/p?b=2&a=1",
        "https://shop.example/p?a=1+2",
        "https://shop.example/p?a=1%202",
        "https://shop.example/p?a=1 2",
        "https://shop.example/p#part",
        "https://shop.example/%C3%BC",
        "https://shop.example/%c3%bc",
        "https://shop.example/ü",
        "https://shop.example/u\u0308",  # the same sign, composed
        "https://shop.example/a/../p",
        "not a URL",
        ODD,
    ]
    await api.ok(PATH, [make_output(n, source_url=url) for n, url in enumerate(urls)])
    for url in urls:
        for encoded in (urlencode({"url": url}), "url=" + quote(url, safe="")):
            assert [i["source_url"] for i in await items(api, encoded)] == [url]
    assert await items(api, "url=https%3A%2F%2Fshop.example%2F") == []
    # What needs no encoding may come without.
    assert len(await items(api, "url=https://shop.example/p?a=1")) == 0
    assert len(await items(api, "url=https://shop.example/p/")) == 1


@pytest.mark.parametrize("name", ["country", "region"])
async def test_country_and_region_filter_by_their_tag_exactly(api: Api, name: str) -> None:
    values = ["Germany", "germany", "Germany ", "DE-BE", "Côte d’Ivoire", ODD]
    others: list[Any] = [1, None, ["Germany"], ["Germany", "France"], {"Germany": 1}, [["Germany"]]]
    tags: list[dict[str, Any]] = [{name: value} for value in values + others]
    tags += [{}, {"nested": {name: "Germany"}}, {"other": "Germany"}]
    await api.ok(PATH, [make_output(n, tags=tag) for n, tag in enumerate(tags)])
    for value in values:
        assert [i["tags"] for i in await items(api, urlencode({name: value}))] == [{name: value}]
    for value in ("Germ", "1", "null", "^G"):
        assert await items(api, urlencode({name: value})) == []


async def test_created_after_keeps_what_was_created_or_updated_then_or_later(api: Api) -> None:
    for n in range(3):
        await tick(await stored_last(api, make_output(n)))
    first, second, third = await items(api)

    async def keys(moment: str) -> list[str]:
        return [i["key_hash"] for i in await items(api, urlencode({"created_after": moment}))]

    # On or after: the very millisecond is in, the next is not.
    assert await keys(first["update_date"]) == ["key-0", "key-1", "key-2"]
    assert await keys(second["update_date"]) == ["key-1", "key-2"]
    assert await keys(third["update_date"]) == ["key-2"]
    after = datetime.fromisoformat(second["update_date"]) + timedelta(milliseconds=1)
    assert await keys(after.isoformat()) == ["key-2"]
    # The same moment in another zone, and without one.
    there = datetime.fromisoformat(second["update_date"]).astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert await keys(there.isoformat()) == ["key-1", "key-2"]
    assert await keys(second["update_date"].removesuffix("Z")) == ["key-1", "key-2"]
    # An item that changes is created or updated later than it was.
    await api.ok(PATH, [make_output(0, is_approved=True)])
    assert await keys(third["update_date"]) == ["key-2", "key-0"]


async def stored_last(api: Api, output: dict[str, Any]) -> dict[str, Any]:
    await api.ok(PATH, [output])
    return (await items(api))[-1]


async def test_created_after_takes_dates_and_date_times(api: Api) -> None:
    await api.ok(PATH, [make_output()])
    for form, found in [
        ("2026-01-31", 1),
        ("2026-01-31T12:00:00Z", 1),
        ("2026-01-31T12:00:00.000Z", 1),
        ("2026-01-31T12:00:00", 1),
        ("2026-01-31T12:00:00%2B02:00", 1),
        ("2026-01-31T12:00:00-05:00", 1),
        ("0001-01-01", 1),
        ("2999-12-31", 0),
        ("2999-12-31T23:59:59Z", 0),
        ("9999-12-31T23:59:59.999Z", 0),
    ]:
        response = await api.client.get(
            f"{PATH}?created_after={form}", headers={"Authorization": f"Bearer {api.token}"}
        )
        assert response.status == 200, form
        assert len((await response.json())["items"]) == found, form


async def test_a_plain_date_is_midnight_utc(api: Api, store: Store) -> None:
    await api.ok(PATH, [make_output(n) for n in range(2)])
    midnight = datetime(2026, 1, 31, tzinfo=UTC)
    for n, moment in enumerate([midnight - timedelta(milliseconds=1), midnight]):
        where = {"organization_id": api.organization_id, "key_hash": f"key-{n}"}
        await store.database["outputs"].update_one(where, {"$set": {"update_date": moment}})
    assert [item["key_hash"] for item in await items(api, "created_after=2026-01-31")] == ["key-1"]
    assert len(await items(api, "created_after=2026-01-30")) == 2
