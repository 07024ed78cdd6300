"""next_url: absolute, with every filter, and with the new cursor."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from service.app import create_app
from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_output, walk
from tests.support.contract import HeldApi
from tests.support.outputs import ODD, PATH, items


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


def parts(url: str) -> tuple[str, str, dict[str, str]]:
    """Return what is before the query, and the query."""
    split = urlsplit(url)
    pairs = parse_qsl(split.query, keep_blank_values=True, strict_parsing=True)
    query = dict(pairs)
    assert len(query) == len(pairs)
    return f"{split.scheme}://{split.netloc}", split.path, query


async def test_next_url_is_absolute_and_starts_with_the_requests_own_host(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(2)])
    page = await api.ok(f"{PATH}?limit=1")
    assert parts(page["metadata"]["next_url"]) == (
        str(api.client.make_url("")).rstrip("/"),
        PATH,
        {"limit": "1", "cursor": str(page["metadata"]["next_cursor"])},
    )
    page = await api.ok(f"{PATH}?limit=1", headers={"Host": "data.example:8443"})
    assert parts(page["metadata"]["next_url"])[0] == "http://data.example:8443"


@pytest.mark.parametrize("base", ["https://data.example", "https://data.example/", "https://example.com/scraping/"])
async def test_next_url_starts_with_base_url_where_set(
    settings: Settings, store: Store, aiohttp_client: AiohttpClient, organization: int, base: str
) -> None:
    given = Settings(**{**vars(settings), "base_url": base})
    client = await aiohttp_client(create_app(given, store))
    api = Api(client, await store.tokens.create(organization, ["read", "write"]), organization)
    await api.ok(PATH, [make_output(n) for n in range(2)])
    page = await api.ok(f"{PATH}?limit=1", headers={"Host": "elsewhere.example", "X-Forwarded-Host": "evil"})
    expected = f"{base.rstrip('/')}{PATH}?limit=1&cursor={page['metadata']['next_cursor']}"
    assert page["metadata"]["next_url"] == expected


async def test_next_url_repeats_all_filters_whatever_characters_they_hold(api: Api) -> None:
    group = "/v1/outputs/" + quote(ODD, safe="")
    fields = {"source_url": ODD, "root_job_id": ODD, "tags": {"country": ODD, "region": ODD}}
    await api.ok(group, [make_output(n, **fields) for n in range(3)])
    query = {
        "job_id": ODD,
        "created_after": "2020-01-31T12:00:00+02:00",
        "url": ODD,
        "limit": "1",
        "country": ODD,
        "region": ODD,
        "fields": "",
    }
    page = await api.ok(f"{group}?{urlencode(query)}")
    _, path, repeated = parts(page["metadata"]["next_url"])
    assert unquote(path) == unquote(group)
    assert repeated == query | {"cursor": str(page["metadata"]["next_cursor"])}
    assert page["metadata"]["next_url"].isascii()
    found = await walk(api, f"{group}?{urlencode(query)}")
    assert [item["key_hash"] for item in found] == ["key-0", "key-1", "key-2"]


async def test_next_url_replaces_the_cursor_that_was_given(api: Api) -> None:
    await api.ok(PATH, [make_output(n) for n in range(4)])
    first = (await items(api))[0]["id"]
    page = await api.ok(f"{PATH}?cursor={first}&limit=2")
    assert parts(page["metadata"]["next_url"])[2] == {"limit": "2", "cursor": str(page["items"][-1]["id"])}
