"""POST and GET /v1/local-storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.api import Api, make_entry
from tests.support.capacity import bytes_held, held_at
from tests.support.contract import HeldApi
from tests.support.fault_proxy import FaultProxy

PATH = "/v1/local-storage"


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


async def stored(api: Api, **changes: Any) -> dict[str, Any]:
    """Set one entry and return it as it is listed, alone."""
    await api.delete(f"{PATH}?all=true")
    await api.ok(PATH, [make_entry(**changes)])
    (entry,) = await api.ok(PATH)
    assert isinstance(entry, dict)
    return entry


@pytest.mark.parametrize(("end", "width"), [("", 1), ("é", 1), ("я", 2), ("😀", 4)])
async def test_a_body_is_counted_in_the_memory_of_requests_until_it_is_stored(
    wired_api: Api, wire: FaultProxy, end: str, width: int
) -> None:
    """One emoji makes every character of its text take four bytes."""
    held = held_at(wire, wired_api.client.app, "update", "local_storage")
    await wired_api.ok(PATH, [make_entry(value="x" * 100_000 + end)])
    assert held[0] >= width * 100_000
    assert bytes_held(wired_api.client.app) == 0


async def test_an_entry_comes_out_with_exactly_the_fields_of_the_contract(api: Api) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    entry = await stored(api)
    created, updated = entry.pop("create_date"), entry.pop("update_date")
    assert before <= datetime.fromisoformat(created) <= datetime.now(UTC)
    assert created == updated
    assert entry == {
        "organization_id": api.organization_id,
        "domain": "shop.example",
        "key": "theme",
        "value": "dark",
        "expires": "2030-01-31T12:00:00.000Z",
        "id": 1,
        "group_id": 0,
        "path": "/",
    }


async def test_an_organization_without_entries_has_an_empty_list(api: Api) -> None:
    assert await api.ok(PATH) == []


@pytest.mark.parametrize("field", ["domain", "key", "value"])
async def test_required_fields_are_required(api: Api, field: str) -> None:
    entry = make_entry()
    del entry[field]
    response = await api.post(PATH, [make_entry(key="fine"), entry])
    assert (response.status, response.problems()) == (422, [(["body", "1", field], "missing")])
    assert await api.ok(PATH) == []


@pytest.mark.parametrize(("field", "default"), [("path", "/"), ("expires", None)])
async def test_fields_left_out_have_their_defaults(api: Api, field: str, default: Any) -> None:
    entry = make_entry()
    del entry[field]
    await api.ok(PATH, [entry])
    (found,) = await api.ok(PATH)
    assert found[field] == default


FAULTY: list[tuple[str, Any, str]] = [
    ("domain", 1, "string_type"),
    ("domain", "", "string_too_short"),
    ("domain", "d" * 256, "string_too_long"),
    ("key", None, "string_type"),
    ("key", "k" * 8193, "string_too_long"),
    ("value", {"a": 1}, "string_type"),
    ("value", "é" * (5 * 512 * 1024) + "x", "string_too_long"),
    ("path", 0, "string_type"),
    ("path", "p" * 4097, "string_too_long"),
    ("expires", 0, "datetime_type"),
    ("expires", "never", "datetime_invalid"),
    ("id", 7, "unknown_field"),
    ("organization_id", 7, "unknown_field"),
    ("group_id", 7, "unknown_field"),
    ("create_date", "2030-01-31", "unknown_field"),
    ("update_date", "2030-01-31", "unknown_field"),
]


@pytest.mark.slow
async def test_faulty_fields_are_named(api: Api) -> None:
    for field, value, kind in FAULTY:
        response = await api.post(PATH, [make_entry(key="fine"), make_entry(**{field: value})])
        assert (response.status, response.problems()) == (422, [(["body", "1", field], kind)]), field
        assert await api.ok(PATH) == [], field


@pytest.mark.slow
async def test_fields_come_out_as_they_went_in(api: Api) -> None:
    for field, value in [
        ("domain", "d" * 255),
        ("key", "k" * 8192),
        ("key", ""),
        ("value", "é" * (5 * 512 * 1024)),
        ("value", ""),
        ("value", '{"a": "ü 漢字"}'),
        ("path", "/" + "p" * 4095),
        ("path", ""),
    ]:
        assert (await stored(api, **{field: value}))[field] == value, (field, value)


@pytest.mark.parametrize(
    ("sent", "out"),
    [
        ("2030-01-31T12:00:00Z", "2030-01-31T12:00:00.000Z"),
        ("2030-01-31T14:00:00+02:00", "2030-01-31T12:00:00.000Z"),
        ("2030-01-31T12:00:00", "2030-01-31T12:00:00.000Z"),
        ("2030-01-31T12:00:00.1239Z", "2030-01-31T12:00:00.123Z"),
        ("2030-01-31", "2030-01-31T00:00:00.000Z"),
        ("0001-01-01", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
        (None, None),
    ],
)
async def test_expires_comes_out_in_utc_with_milliseconds(api: Api, sent: str | None, out: str | None) -> None:
    assert (await stored(api, expires=sent))["expires"] == out


async def test_setting_an_entry_again_keeps_id_and_create_date_and_moves_update_date(api: Api) -> None:
    first = await stored(api)
    while datetime.now(UTC) - datetime.fromisoformat(first["update_date"]) < timedelta(milliseconds=2):
        pass
    assert await api.ok(PATH, [make_entry(value="light", expires=None)]) == {"created": 0, "updated": 1}
    (second,) = await api.ok(PATH)
    assert second["update_date"] > first["update_date"]
    assert second == first | {"value": "light", "expires": None, "update_date": second["update_date"]}


async def test_ids_increase_and_stay(api: Api) -> None:
    for keys in (["b"], ["a", "c"], ["b", "d"], ["a"], ["e"]):
        await api.ok(PATH, [make_entry(key=key, value=str(keys)) for key in keys])
    ids = {entry["key"]: entry["id"] for entry in await api.ok(PATH)}
    assert sorted(ids, key=lambda key: ids[key]) == ["b", "a", "c", "d", "e"]
    assert len(set(ids.values())) == 5
    assert all(type(id) is int and id > 0 for id in ids.values())


@pytest.mark.parametrize("other", [{"domain": ".shop.example"}, {"path": ""}, {"path": "/a"}, {"key": "Theme"}])
async def test_another_domain_path_or_key_is_another_entry(api: Api, other: dict[str, str]) -> None:
    await api.ok(PATH, [make_entry(value="kept")])
    assert await api.ok(PATH, [make_entry(value="new", **other)]) == {"created": 1, "updated": 0}
    assert sorted(entry["value"] for entry in await api.ok(PATH)) == ["kept", "new"]


async def test_inside_one_array_the_last_one_wins_and_counts_once(api: Api) -> None:
    entries = [make_entry(value=value) for value in "123"]
    assert await api.ok(PATH, entries) == {"created": 1, "updated": 0}
    assert await api.ok(PATH, [*entries, make_entry(key="other")]) == {"created": 1, "updated": 1}
    assert {entry["key"]: entry["value"] for entry in await api.ok(PATH)} == {"theme": "3", "other": "dark"}


async def test_an_empty_array_changes_nothing(api: Api) -> None:
    assert await api.ok(PATH, []) == {"created": 0, "updated": 0}


async def test_entries_are_listed_by_domain_path_and_key(api: Api) -> None:
    places = [(d, p, k) for d in ("a.example", "b.example") for p in ("/", "/x") for k in ("a", "b")]
    await api.ok(PATH, [make_entry(domain=d, path=p, key=k) for d, p, k in reversed(places)])
    assert [(e["domain"], e["path"], e["key"]) for e in await api.ok(PATH)] == places


@pytest.mark.slow
async def test_a_thousand_entries_are_taken_at_once_and_one_more_is_not(api: Api) -> None:
    entries = [make_entry(key=f"k{n:04}") for n in range(1001)]
    response = await api.post(PATH, entries)
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])
    assert await api.ok(PATH, entries[:1000]) == {"created": 1000, "updated": 0}
    await api.ok(PATH, entries[1:])
    assert [entry["key"] for entry in await api.ok(PATH)] == [entry["key"] for entry in entries]


async def test_expired_entries_are_listed_unless_only_active_ones_are_asked_for(api: Api) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    past = (datetime.now(UTC) - timedelta(milliseconds=5)).isoformat()
    entries = [("active", soon), ("expired", past), ("lasting", None)]
    await api.ok(PATH, [make_entry(key=key, expires=expires) for key, expires in entries])

    async def keys(query: str) -> list[str]:
        return [entry["key"] for entry in await api.ok(PATH + query)]

    assert await keys("?active=true") == ["active", "lasting"]
    for query in ("", "?active=false", "?active="):
        assert await keys(query) == ["active", "expired", "lasting"]


async def test_domain_filters_by_the_exact_domain(api: Api) -> None:
    domains = [".shop.example", "other.example", "shop.example", "www.shop.example"]
    await api.ok(PATH, [make_entry(domain=domain) for domain in domains])
    for domain in domains:
        assert [entry["domain"] for entry in await api.ok(f"{PATH}?domain={domain}")] == [domain]
    assert await api.ok(f"{PATH}?domain=example") == []
    assert len(await api.ok(f"{PATH}?domain=")) == 4


FAULTY_QUERIES = [
    ("active=on", "active", "bool_type"),
    ("active=true&active=false", "active", "value_error"),
    ("domain=a&domain=a", "domain", "value_error"),
]


async def test_faulty_query_parameters_are_named(api: Api) -> None:
    for query, name, kind in FAULTY_QUERIES:
        response = await api.get(f"{PATH}?{query}")
        assert (response.status, response.problems()) == (422, [(["query", name], kind)]), query
