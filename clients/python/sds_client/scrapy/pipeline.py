"""Items on their way to the service."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.exceptions import DropItem, NotConfigured

from sds_client.beginning import Beginning, new_job_id
from sds_client.errors import ClientError
from sds_client.scrapy.completeness import why_incomplete
from sds_client.scrapy.connection import connect
from sds_client.scrapy.files import MediaFields
from sds_client.scrapy.sources import Sources
from sds_client.transport import dump
from sds_client.writing import key_hash

log = logging.getLogger(__name__)


class OutputsPipeline:
    """Stores items in batches; an item is passed on when it is durable."""

    def __init__(self, crawler: Any) -> None:
        settings = crawler.settings
        if not settings.get("SDS_GROUP"):
            raise NotConfigured("SDS_GROUP is not set")
        self._crawler, self._client = crawler, connect(settings)
        self._sources = Sources.of(crawler)
        self._group = settings["SDS_GROUP"]
        self._keys = settings.getlist("SDS_KEY_FIELDS")
        self._tags, self._tags_field = settings.getdict("SDS_TAGS"), settings.get("SDS_TAGS_FIELD")
        self._job: str | None = settings.get("SDS_JOB_ID")
        self._finish_job = settings.getbool("SDS_FINISH_JOB", True)
        history_days = int(days) if (days := settings.get("SDS_HISTORY_DAYS")) not in (None, "") else None
        self._beginning = Beginning(self._client, self._group, settings.get("SDS_SERIES") or None, history_days)
        self._delete_missing = settings.getbool("SDS_DELETE_MISSING")
        self._max_items = settings.getint("SDS_BATCH_ITEMS", 100)
        self._pause = settings.getfloat("SDS_BATCH_SECONDS", 0.5)
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    @classmethod
    def from_crawler(cls, crawler: Any) -> OutputsPipeline:
        pipeline = cls(crawler)
        crawler.signals.connect(pipeline._spider_closed, signals.spider_closed)
        crawler.signals.connect(pipeline._item_failed, signals.item_error)
        crawler.signals.connect(pipeline._item_dropped, signals.item_dropped)
        return pipeline

    def _item_failed(self, item: Any) -> None:
        """Count an item that a pipeline failed on: with LOG_LEVEL = CRITICAL, Scrapy does not count its error."""
        self._crawler.stats.inc_value("sds/dropped")
        self._sources.page(item)

    def _item_dropped(self, item: Any) -> None:
        """Forget the page of an item that will not come."""
        self._sources.page(item)

    def open_spider(self, spider: Any = None) -> None:
        self._media = MediaFields(self._crawler)

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        """Return the item when it is stored."""
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[None] = loop.create_future()
        try:
            self._waiting.append((self._output(item), stored))
        except DropItem:
            self._crawler.stats.inc_value("sds/dropped")
            raise
        if len(self._waiting) >= self._max_items:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(self._pause, self._send)
        await stored
        return item

    async def close_spider(self, spider: Any = None) -> None:
        """Send the items that wait."""
        self._send()
        await asyncio.gather(*self._sending)

    async def _spider_closed(self, reason: str) -> None:
        """Finish the job, delete missing items if that is wanted and safe, and close the connections."""
        try:
            if self._finish_job or self._delete_missing:
                resumable = bool(self._crawler.settings.get("JOBDIR"))
                stats = self._crawler.stats.get_stats()
                await self._finish(reason, why_incomplete(reason, stats, resumable=resumable))
        except ClientError as error:
            log.error("the job could not be finished: %s", error)
        finally:
            await self._client.close()

    async def _finish(self, reason: str, incomplete: str | None) -> None:
        if self._delete_missing and incomplete:
            log.warning("SDS_DELETE_MISSING: nothing is deleted, because %s", incomplete)
        delete = self._delete_missing and not incomplete
        await self._beginning.declare(self._job_id())  # also a crawl without items is judged
        job = await self._client.finish_job(
            self._group,
            self._job_id(),
            state="finished" if reason == "finished" else "failed",
            series=self._beginning.series,
            delete_missing=delete,
        )
        if delete:
            self._crawler.stats.set_value("sds/deleted", job["deleted"])
        if job["held_back"]:
            log.warning("SDS_DELETE_MISSING: nothing is deleted: %s", job["held_back"])
        if job["verdict"]:
            self._crawler.stats.set_value("sds/verdict", job["verdict"])
        if job["verdict"] == "failed":
            log.error("the verdict on the job is failed: %s", "; ".join(problem["msg"] for problem in job["problems"]))

    def _job_id(self) -> str:
        if self._job is None:
            spider = self._crawler.spider
            self._job = getattr(spider, "_job", None) or new_job_id(spider.name)
        return self._job

    def _output(self, item: Any) -> dict[str, Any]:
        """Return an item as the service accepts it. Raises DropItem for one without a page or key, or not JSON."""
        page = self._sources.page(item)
        data = ItemAdapter(item).asdict()
        source = data.pop("source_url", None) or page or data.get("url")
        if not isinstance(source, str):
            raise DropItem("it has no source_url, and its page is not known")
        files = self._media.take(data, source)
        own_tags = data.pop(self._tags_field, None) if self._tags_field else None
        if not isinstance(own_tags, (dict, type(None))):
            raise DropItem(f"its {self._tags_field} must be a dict of tags")
        output = {"source_url": source, "root_job_id": self._job_id(), "data": data}
        if tags := {**self._tags, **(own_tags or {})}:
            output["tags"] = tags
        if files:
            output["files"] = files
        try:
            if self._keys:
                output["key_hash"] = key_hash(data, self._keys)
            dump(output)
        except KeyError as error:
            raise DropItem(f"it has no {error.args[0]}, which is one of SDS_KEY_FIELDS") from None
        except (TypeError, ValueError) as error:
            raise DropItem(f"it cannot be sent: {error}") from None
        return output

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            task = asyncio.get_running_loop().create_task(self._store(self._waiting))
            self._waiting = []
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _store(self, batch: list[tuple[dict[str, Any], asyncio.Future[None]]]) -> None:
        """Store a batch, without the items that the service rejects."""
        while batch:
            try:
                await self._beginning.declare(self._job_id())
                pushed = await self._client.push(self._group, [output for output, _ in batch])
            except Exception as error:
                rejected = _rejected(error)
                if not rejected:
                    self._fail(batch, error)
                    return
                self._crawler.stats.inc_value("sds/dropped", len(rejected))
                for place, reason in rejected.items():
                    batch[place][1].set_exception(DropItem(f"the service rejects it: {reason}"))
                batch = [entry for place, entry in enumerate(batch) if place not in rejected]
                continue
            for kind in ("created", "updated", "unchanged"):
                self._crawler.stats.inc_value(f"sds/{kind}", getattr(pushed, kind))
            for _, stored in batch:
                stored.set_result(None)
            return

    def _fail(self, batch: list[tuple[dict[str, Any], asyncio.Future[None]]], error: Exception) -> None:
        log.error("%d items could not be stored: %s", len(batch), error)
        for _, stored in batch:
            stored.set_exception(error)
        asyncio.get_running_loop().call_soon(_close, self._crawler, "sds_failed")


def _close(crawler: Any, reason: str) -> None:
    if crawler.engine is not None and crawler.spider is not None:
        crawler.engine.close_spider(crawler.spider, reason)


def _rejected(error: Exception) -> dict[int, str]:
    """Return which items of a batch an error is about, and why; none if it is about something else."""
    rejected: dict[int, str] = {}
    if isinstance(error, ClientError) and error.status in (413, 422):
        for problem in error.problems:
            loc = [str(part) for part in problem.get("loc", [])]
            if len(loc) < 2 or not loc[1].isdecimal():
                return {}
            rejected.setdefault(int(loc[1]), f"{'.'.join(loc[2:])}: {problem.get('msg')}".lstrip(": "))
    return rejected
