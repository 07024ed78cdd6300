"""Written with the one-pass encoder or in Python, a group is the same; the client sees no difference."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient

from service.app import create_app
from service.settings import Settings
from service.store import Store
from tests.support.api import Api, make_file, make_output

# The third has a name twice, so that the one-pass encoder leaves it to Python.
ITEMS = [
    make_output(1, data={"name": "Größe", "price": {"b": 1.5, "a": [1, None, "\n"]}}),
    make_output(2, files=[make_file(), make_file(create_date="2026-01-31")], last_scraped_date="2026-01-31"),
    make_output(3, data="@@"),
    {"source_url": "https://shop.example/4", "root_job_id": "job-1", "data": {"seen": 1}},
]
BODY = json.dumps(ITEMS).replace('"@@"', '{"a": 1, "b": 2, "a": 3}').encode()


@pytest.fixture
async def in_python(settings: Settings, mongo_url: str, api: Api, aiohttp_client: AiohttpClient) -> AsyncIterator[Api]:
    """The same caller, at a service with the one-pass encoder turned off."""
    settings = dataclasses.replace(settings, one_pass=False)
    store = Store.connect(settings, mongo_url)
    client: TestClient[Any, Any] = await aiohttp_client(create_app(settings, store))
    yield Api(client, api.token, api.organization_id)
    await store.close()


async def post(api: Api, body: bytes = BODY) -> Any:
    response = await api.request("POST", "/v1/outputs/shop", data=body, headers={"Content-Type": "application/json"})
    return response.json


async def test_the_one_pass_encoder_is_used_wherever_the_tests_run(api: Api, in_python: Api) -> None:
    """Who has no compiler can run the service, but not the tests."""
    assert (await api.ok("/v1/token"))["server"]["encoder"] == "one_pass"
    assert (await in_python.ok("/v1/token"))["server"]["encoder"] == "python"


@pytest.mark.parametrize("ignored", [[], ["price.a", "seen"]], ids=["all of data counts", "ignored paths"])
async def test_items_written_with_one_encoder_are_unchanged_for_the_other(
    api: Api, in_python: Api, ignored: list[str]
) -> None:
    await api.put("/v1/groups/shop", {"ignore": ignored})
    created = await post(api)
    assert (created["created"], created["unchanged"]) == (4, 0)
    items = (await api.ok("/v1/outputs/shop"))["items"]
    again = await post(in_python)
    assert (again["created"], again["unchanged"]) == (0, 4)
    assert [item["output_id"] for item in again["items"]] == [item["output_id"] for item in created["items"]]
    await in_python.delete("/v1/groups/shop")
    await in_python.put("/v1/groups/shop", {"ignore": ignored})
    assert (await post(in_python))["created"] == 4
    for one, other in zip(items, (await in_python.ok("/v1/outputs/shop"))["items"], strict=True):
        for item in (one, other):
            for name in ("id", "create_date", "update_date", "last_scraped_date"):
                item.pop(name)
            for file in item["files"]:
                file.pop("create_date")
        assert one == other


async def test_only_the_odd_item_of_a_body_is_left_to_python(api: Api) -> None:
    async def handed_back() -> float:
        metrics = (await api.client.get("/metrics")).text()
        (line,) = [line for line in (await metrics).splitlines() if line.startswith("sds_items_handed_back_total ")]
        return float(line.split()[1])

    before = await handed_back()
    await post(api)
    assert await handed_back() == before + 1


async def test_problems_are_the_same_with_both_encoders(api: Api, in_python: Api) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"data": []},
        {"unknown": 1},
        {"is_approved": None},
        {"files": [{"id": 1}]},
        {"key_hash": "\0"},
    )
    for change in changes:
        body = json.dumps([make_output(1), make_output(2) | change, make_output(3)]).encode()
        assert (await post(api, body))["detail"] == (await post(in_python, body))["detail"], change
    assert (await api.ok("/v1/outputs/shop"))["items"] == []
