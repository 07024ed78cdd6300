"""POST and GET /v1/cookies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.api import Api, make_cookie
from tests.support.contract import HeldApi

PATH = "/v1/cookies"


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


async def stored(api: Api, **changes: Any) -> dict[str, Any]:
    """Set one cookie and return it as it is listed, alone."""
    await api.delete(f"{PATH}?all=true")
    await api.ok(PATH, [make_cookie(**changes)])
    (cookie,) = await api.ok(PATH)
    assert isinstance(cookie, dict)
    return cookie


async def refused(api: Api, cookie: dict[str, Any]) -> list[tuple[list[str], str]]:
    """Try to set one cookie, see that nothing was stored, and return the problems."""
    response = await api.post(PATH, [make_cookie(name="fine"), cookie])
    assert response.status == 422
    assert await api.ok(PATH) == []
    return response.problems()


async def test_a_cookie_comes_out_with_exactly_the_fields_of_the_contract(api: Api) -> None:
    assert await stored(api) == {
        "name": "session",
        "value": "s3cret",
        "url": "https://shop.example/",
        "domain": ".shop.example",
        "path": "/",
        "expires": 1896091200,
        "http_only": True,
        "secure": True,
    }


async def test_an_organization_without_cookies_has_an_empty_list(api: Api) -> None:
    assert await api.ok(PATH) == []


@pytest.mark.parametrize("field", ["domain", "name", "value"])
async def test_required_fields_are_required(api: Api, field: str) -> None:
    cookie = make_cookie()
    del cookie[field]
    assert await refused(api, cookie) == [(["body", "1", field], "missing")]


@pytest.mark.parametrize(("field", "default"), [("secure", False), ("http_only", False), ("path", ""), ("expires", -1)])
async def test_fields_left_out_have_their_defaults(api: Api, field: str, default: Any) -> None:
    cookie = make_cookie()
    del cookie[field]
    await api.ok(PATH, [cookie])
    (found,) = await api.ok(PATH)
    assert found[field] == default
    assert type(found[field]) is type(default)


FAULTY: list[tuple[str, Any, str]] = [
    ("domain", 1, "string_type"),
    ("domain", None, "string_type"),
    ("domain", "", "string_too_short"),
    ("domain", "d" * 256, "string_too_long"),
    ("name", ["a"], "string_type"),
    ("name", "n" * 4097, "string_too_long"),
    ("value", 1.5, "string_type"),
    ("value", "v" * 65537, "string_too_long"),
    ("secure", "true", "bool_type"),
    ("secure", 1, "bool_type"),
    ("http_only", None, "bool_type"),
    ("expires", 1896091200.5, "datetime_type"),
    ("expires", True, "datetime_type"),
    ("expires", -2, "datetime_invalid"),
    ("expires", 1896091200000, "datetime_invalid"),
    ("expires", 2**62, "datetime_invalid"),
    ("expires", "tomorrow", "datetime_invalid"),
    ("expires", "2030-02-30", "datetime_invalid"),
    ("path", False, "string_type"),
    ("path", "p" * 4097, "string_too_long"),
    ("url", "https://shop.example", "unknown_field"),
    ("httpOnly", True, "unknown_field"),
]


async def test_faulty_fields_are_named(api: Api) -> None:
    for field, value, kind in FAULTY:
        assert await refused(api, make_cookie(**{field: value})) == [(["body", "1", field], kind)], field


async def test_fields_come_out_as_they_went_in(api: Api) -> None:
    for field, value in [
        ("domain", "d" * 255),
        ("domain", "localhost"),
        ("name", "n" * 4096),
        ("name", ""),
        ("value", "v" * 65536),
        ("value", ""),
        ("value", 'a=b; c="ü 漢字 🍪"'),
        ("secure", False),
        ("http_only", False),
        ("path", "/" + "p" * 4095),
        ("path", "/a b/ü"),
    ]:
        assert (await stored(api, **{field: value}))[field] == value, (field, value)


EXPIRES = [
    ("2030-01-31T12:00:00Z", 1896091200),
    ("2030-01-31T12:00:00z", 1896091200),
    ("2030-01-31T14:00:00+02:00", 1896091200),
    ("2030-01-31T06:30:00-0530", 1896091200),
    ("2030-01-31T12:00:00", 1896091200),
    ("2030-01-31T12:00", 1896091200),
    ("2030-01-31T12:00:00.999Z", 1896091200),
    ("2030-01-31T12:00:00.999999999Z", 1896091200),
    ("2030-01-31", 1896048000),
    ("2001-09-09T01:46:40Z", 1000000000),
    ("9999-12-31T23:59:59Z", 253402300799),
    ("1970-01-01", 0),
    ("1969-12-31T23:59:59Z", 0),  # long expired, and not taken for a session cookie
    (None, -1),
    (1896091200, 1896091200),
    (0, 0),
    (-1, -1),
]


async def test_cookies_can_be_written_back_as_they_were_read(api: Api) -> None:
    """With the body that was read, byte for byte: its `expires` are numbers, and it has `url`."""
    sent = [make_cookie(name=f"cookie-{n}", expires=expires) for n, (expires, _) in enumerate(EXPIRES)]
    sent += [make_cookie(domain="shop.example", path=path, secure=False) for path in ("", "/a b/ü")]
    await api.ok(PATH, sent)
    body = (await api.get(PATH)).body
    written = await api.post(PATH, data=body, headers={"Content-Type": "application/json"})
    assert (written.status, written.json) == (200, {"created": 0, "updated": len(sent)})
    assert (await api.get(PATH)).body == body
    await api.delete(f"{PATH}?all=true")
    written = await api.post(PATH, data=body, headers={"Content-Type": "application/json"})
    assert written.json == {"created": len(sent), "updated": 0}
    assert (await api.get(PATH)).body == body


async def test_expires_comes_out_in_whole_unix_seconds(api: Api) -> None:
    for sent, seconds in EXPIRES:
        found = (await stored(api, expires=sent))["expires"]
        assert (found, type(found)) == (seconds, int), sent


async def test_url_is_scheme_domain_without_its_dot_and_path(api: Api) -> None:
    for secure, domain, path, url in [
        (True, "shop.example", "/", "https://shop.example/"),
        (False, "shop.example", "/", "http://shop.example/"),
        (True, ".shop.example", "/a/b", "https://shop.example/a/b"),
        (False, ".shop.example", "", "http://shop.example/"),
        (True, "www.shop.example", "/account", "https://www.shop.example/account"),
    ]:
        assert (await stored(api, secure=secure, domain=domain, path=path))["url"] == url, (secure, domain, path, url)


async def test_the_leading_dot_of_a_domain_is_kept_and_tells_two_cookies_apart(api: Api) -> None:
    cookies = [make_cookie(domain=".shop.example"), make_cookie(domain="shop.example")]
    assert await api.ok(PATH, cookies) == {"created": 2, "updated": 0}
    assert {cookie["domain"] for cookie in await api.ok(PATH)} == {".shop.example", "shop.example"}


async def test_setting_a_cookie_again_replaces_all_of_it(api: Api) -> None:
    assert await api.ok(PATH, [make_cookie()]) == {"created": 1, "updated": 0}
    bare = {"domain": ".shop.example", "name": "session", "value": "new", "path": "/"}
    assert await api.ok(PATH, [bare]) == {"created": 0, "updated": 1}
    (cookie,) = await api.ok(PATH)
    assert cookie["value"] == "new"
    assert (cookie["secure"], cookie["http_only"], cookie["expires"]) == (False, False, -1)
    assert cookie["url"] == "http://shop.example/"


@pytest.mark.parametrize(("first", "second"), [("", "/"), ("/", "")])
async def test_an_empty_path_and_a_slash_are_one_cookie_with_the_path_sent_last(
    api: Api, first: str, second: str
) -> None:
    assert await api.ok(PATH, [make_cookie(path=first)]) == {"created": 1, "updated": 0}
    assert await api.ok(PATH, [make_cookie(path=second)]) == {"created": 0, "updated": 1}
    (cookie,) = await api.ok(PATH)
    assert cookie["path"] == second


@pytest.mark.parametrize("other", [{"domain": "other.example"}, {"path": "/a"}, {"name": "Session"}])
async def test_another_domain_path_or_name_is_another_cookie(api: Api, other: dict[str, str]) -> None:
    await api.ok(PATH, [make_cookie(value="kept")])
    assert await api.ok(PATH, [make_cookie(value="new", **other)]) == {"created": 1, "updated": 0}
    assert sorted(cookie["value"] for cookie in await api.ok(PATH)) == ["kept", "new"]


async def test_inside_one_array_the_last_one_wins_and_counts_once(api: Api) -> None:
    cookies = [make_cookie(value="1", path=""), make_cookie(value="2"), make_cookie(value="3", path="")]
    assert await api.ok(PATH, cookies) == {"created": 1, "updated": 0}
    assert await api.ok(PATH, [*cookies, make_cookie(name="other")]) == {"created": 1, "updated": 1}
    assert {cookie["name"]: cookie["value"] for cookie in await api.ok(PATH)} == {"session": "3", "other": "s3cret"}


async def test_an_empty_array_changes_nothing(api: Api) -> None:
    assert await api.ok(PATH, []) == {"created": 0, "updated": 0}


async def test_cookies_are_listed_by_domain_path_and_name(api: Api) -> None:
    places = [(d, p, n) for d in ("a.example", "b.example") for p in ("/", "/x") for n in ("a", "b")]
    await api.ok(PATH, [make_cookie(domain=d, path=p, name=n) for d, p, n in reversed(places)])
    await api.ok(PATH, [make_cookie(domain=d, path=p, name=n, value="again") for d, p, n in places[3:5]])
    assert [(c["domain"], c["path"], c["name"]) for c in await api.ok(PATH)] == places


async def test_a_thousand_cookies_are_taken_at_once_and_one_more_is_not(api: Api) -> None:
    cookies = [make_cookie(name=f"c{n:04}") for n in range(1001)]
    response = await api.post(PATH, cookies)
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])
    assert await api.ok(PATH) == []
    assert await api.ok(PATH, cookies[:1000]) == {"created": 1000, "updated": 0}
    # More than one batch of the stream.
    await api.ok(PATH, cookies[1:])
    assert [cookie["name"] for cookie in await api.ok(PATH)] == [cookie["name"] for cookie in cookies]


async def test_all_faults_are_reported_and_nothing_is_stored(api: Api) -> None:
    response = await api.post(PATH, [make_cookie(), {"domain": 1}, make_cookie(expires="x", secure="no")])
    assert response.status == 422
    assert sorted(response.problems()) == [
        (["body", "1", "domain"], "string_type"),
        (["body", "1", "name"], "missing"),
        (["body", "1", "value"], "missing"),
        (["body", "2", "expires"], "datetime_invalid"),
        (["body", "2", "secure"], "bool_type"),
    ]
    assert await api.ok(PATH) == []


async def test_at_most_100_faults_are_reported(api: Api) -> None:
    response = await api.post(PATH, [{}] * 50)
    assert len(response.problems()) == 100


async def test_expired_cookies_are_listed_unless_only_active_ones_are_asked_for(api: Api) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    past = (datetime.now(UTC) - timedelta(seconds=2)).isoformat()
    cookies = [("active", soon), ("expired", past), ("session", None), ("old", "1969-01-01")]
    await api.ok(PATH, [make_cookie(name=name, expires=expires) for name, expires in cookies])

    async def names(query: str) -> list[str]:
        return [cookie["name"] for cookie in await api.ok(PATH + query)]

    assert await names("?active=true") == ["active", "session"]
    for query in ("", "?active=false", "?active="):
        assert await names(query) == ["active", "expired", "old", "session"]


async def test_domain_filters_by_the_exact_domain(api: Api) -> None:
    domains = [".shop.example", "shop.example", "www.shop.example", "other.example", "ü.example"]
    await api.ok(PATH, [make_cookie(domain=domain) for domain in domains])

    async def found(query: str) -> list[str]:
        return [cookie["domain"] for cookie in await api.ok(PATH + query)]

    for domain in domains:
        assert await found(f"?domain={domain}") == [domain]
    assert await found("?domain=SHOP.example") == []
    assert await found("?domain=unknown.example&active=true") == []
    assert await found("?domain=") == sorted(domains)
    assert await found("?domain=shop.example&active=true") == ["shop.example"]


FAULTY_QUERIES = [
    ("active=yes", "active", "bool_type"),
    ("active=True", "active", "bool_type"),
    ("active=1", "active", "bool_type"),
    ("active=true&active=true", "active", "value_error"),
    ("domain=a&domain=b", "domain", "value_error"),
    ("domain=" + "d" * 256, "domain", "string_too_long"),
]


async def test_faulty_query_parameters_are_named(api: Api) -> None:
    for query, name, kind in FAULTY_QUERIES:
        response = await api.get(f"{PATH}?{query}")
        assert (response.status, response.problems()) == (422, [(["query", name], kind)]), query
