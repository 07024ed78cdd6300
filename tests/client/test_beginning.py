"""The service knows that a job runs, and its series, before the first item: harambe and Scrapy."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import web

import sds_client
from sds_client import ClientError
from sds_client.harambe import Observer
from tests.support.peer import failure, peer, written

PUT, POST = ("PUT", "/v1/groups/shop/jobs/m"), ("POST", "/v1/outputs/shop")


async def test_a_run_of_harambe_names_its_series_before_its_first_item() -> None:
    named = {"job_id": "monday", "more": False}
    responses = [named, written(1), written(1)]
    async with peer(*responses) as service, Observer(service.url, "t", "shop", job_id="m", series="oak") as observer:
        await observer.on_save_data({"__url": "https://shop.example/1", "title": "Oak"})
        await observer.on_save_data({"__url": "https://shop.example/2", "title": "Oak 2"})
    asked = [(request.method, request.path) for request in service.requests]
    assert asked == [PUT, POST, POST]
    assert json.loads(service.bodies[0]) == {"state": "running", "missing": "keep", "series": "oak"}


async def test_nothing_is_written_while_the_series_is_not_named() -> None:
    responses = [failure(403, "scope_missing"), {"more": False}, written(1)]
    async with peer(*responses) as service, Observer(service.url, "t", "shop", job_id="m", series="oak") as observer:
        with pytest.raises(ClientError, match="403"):
            await observer.on_save_data({"__url": "https://shop.example/1"})
        await observer.on_save_data({"__url": "https://shop.example/1"})
    assert [request.method for request in service.requests] == ["PUT", "PUT", "POST"]


async def test_a_run_without_a_series_opens_its_job_again() -> None:
    """A job of an earlier run with the same id would keep its verdict."""
    responses = [{"more": False}, written(1)]
    async with peer(*responses) as service, Observer(service.url, "t", "shop", job_id="m") as observer:
        await observer.on_save_data({"__url": "https://shop.example/1"})
    assert [(request.method, request.path) for request in service.requests] == [PUT, POST]
    assert json.loads(service.bodies[0]) == {"state": "running", "missing": "keep"}


async def test_two_runs_that_begin_in_the_same_second_are_two_jobs() -> None:
    jobs = {Observer("http://127.0.0.1", "t", "shop")._job for _ in range(2)}
    assert len(jobs) == 2 and all(job.startswith("shop-") for job in jobs)


async def test_local_storage_that_harambe_names_by_an_address_is_stored_by_its_host() -> None:
    entries = [{"domain": domain, "key": "k", "value": "v"} for domain in ("https://shop.example", "shop.example:8443")]
    counts = {"created": 2, "updated": 0, "unchanged": 0}
    async with peer(counts) as service, Observer(service.url, "t", "shop") as observer:
        await observer.on_save_local_storage(entries)
    assert [entry["domain"] for entry in json.loads(service.bodies[0])] == ["shop.example", "shop.example:8443"]


class Settings(dict[str, Any]):
    """The settings of a crawl, as Scrapy gives them to its components."""

    def getbool(self, name: str, default: bool = False) -> bool:
        return bool(self.get(name, default))

    getint = getfloat = lambda self, name, default: self.get(name, default)
    getdict = lambda self, name: self.get(name, {})
    getlist = lambda self, name: self.get(name, [])


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the pipeline, without Scrapy: tests/e2e has real crawls."""
    package = ModuleType("sds_client.scrapy")
    package.__path__ = [str(Path(sds_client.__file__).parent / "scrapy")]
    names = ["scrapy", "scrapy.exceptions", "scrapy.utils", "scrapy.utils.reactor", "scrapy.pipelines", "itemadapter"]
    for name in [*names, "scrapy.pipelines.files", "scrapy.pipelines.images"]:
        monkeypatch.setitem(sys.modules, name, MagicMock(DropItem=ValueError))
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, "sds_client.scrapy", package)
    yield importlib.import_module("sds_client.scrapy.pipeline")
    for name in set(sys.modules) - before - {"sds_client.scrapy"}:
        if name.startswith("sds_client.scrapy."):
            del sys.modules[name]


def open_pipeline(module: Any, url: str, **settings: Any) -> tuple[Any, Any]:
    """Return a pipeline that stores each item alone, and its crawler."""
    given = {"SDS_URL": url, "SDS_TOKEN": "t", "SDS_GROUP": "shop", "SDS_JOB_ID": "m", "SDS_BATCH_ITEMS": 1}
    crawler = MagicMock(settings=Settings({**given, **settings}))
    opened = module.OutputsPipeline(crawler)
    opened._output = lambda item: {"source_url": item, "root_job_id": "m", "data": {}}
    return opened, crawler


@pytest.mark.parametrize("series", ["oak", None, ""])
async def test_a_crawl_of_scrapy_names_its_series_before_its_first_item(pipeline: Any, series: str | None) -> None:
    async with peer({"more": False}, written(1), written(1)) as service:
        opened, _ = open_pipeline(pipeline, service.url, SDS_SERIES=series, SDS_FINISH_JOB=False)
        await asyncio.gather(*(opened.process_item(f"https://shop.example/{n}") for n in range(2)))
        await opened._spider_closed("finished")
    asked = [(request.method, request.path) for request in service.requests]
    assert asked == [PUT, POST, POST]
    named = {"series": "oak"} if series else {}
    assert json.loads(service.bodies[0]) == {"state": "running", "missing": "keep", **named}


@pytest.mark.parametrize("days", [7, "7", 0])
async def test_a_crawl_of_scrapy_sets_the_history_of_its_group_before_its_first_item(pipeline: Any, days: Any) -> None:
    async with peer({"group_id": "shop"}, {"more": False}, written(1), written(1)) as service:
        opened, _ = open_pipeline(pipeline, service.url, SDS_HISTORY_DAYS=days, SDS_FINISH_JOB=False)
        await asyncio.gather(*(opened.process_item(f"https://shop.example/{n}") for n in range(2)))
        await opened._spider_closed("finished")
    asked = [(request.method, request.path) for request in service.requests]
    assert asked == [("PUT", "/v1/groups/shop"), PUT, POST, POST]
    assert json.loads(service.bodies[0]) == {"history_days": int(days)}


def refusal(*loc: str) -> web.Response:
    return web.json_response({"detail": [{"loc": loc, "msg": "Too many values", "type": "too_many"}]}, status=422)


async def test_an_item_whose_body_is_rejected_as_a_whole_is_dropped_alone(pipeline: Any) -> None:
    async with peer({"more": False}, refusal("body"), written(1)) as service:
        opened, crawler = open_pipeline(pipeline, service.url, SDS_FINISH_JOB=False)
        with pytest.raises(ValueError, match="Too many values"):
            await opened.process_item("https://shop.example/1")
        await opened.process_item("https://shop.example/2")
        await opened._spider_closed("finished")
    crawler.engine.close_spider.assert_not_called()


async def test_an_item_that_makes_a_batch_too_large_is_dropped_alone(pipeline: Any) -> None:
    async with peer({"more": False}, refusal("body"), refusal("body"), written(1)) as service:
        opened, crawler = open_pipeline(pipeline, service.url, SDS_FINISH_JOB=False, SDS_BATCH_ITEMS=2)
        items = (opened.process_item(f"https://shop.example/{n}") for n in range(2))
        dropped, stored = await asyncio.gather(*items, return_exceptions=True)
        await opened._spider_closed("finished")
    assert "Too many values" in str(dropped) and stored == "https://shop.example/1"
    crawler.engine.close_spider.assert_not_called()


@pytest.mark.parametrize(("status", "loc"), [(403, []), (422, ["body", "series"]), (422, ["path", "job_id"])])
async def test_a_crawl_of_scrapy_that_cannot_name_its_series_ends_as_one_that_cannot_store(
    pipeline: Any, status: int, loc: list[str]
) -> None:
    async with peer(refusal(*loc) if loc else failure(status, "scope_missing")) as service:
        opened, crawler = open_pipeline(pipeline, service.url, SDS_SERIES="oak", SDS_FINISH_JOB=False)
        with pytest.raises(ClientError, match=str(status)):
            await opened.process_item("https://shop.example/1")
        await asyncio.sleep(0)
        await opened._spider_closed("sds_failed")
    crawler.engine.close_spider.assert_called_once_with(crawler.spider, "sds_failed")
    assert [request.method for request in service.requests] == ["PUT"]
