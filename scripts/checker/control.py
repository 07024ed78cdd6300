"""Show that the checker finds what it looks for: `python -m scripts.checker.control`.

Runs writers and readers against a model of the service in memory: once as it should be, and once
with each promise broken now and then. Exits with 1 when a broken promise is not reported.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import random
import socket
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp import web

from scripts.checker.crawler import MAX_MISSING, Crawler
from scripts.checker.plan import Plan, load
from scripts.checker.reader import Reader
from scripts.checker.report import Report
from scripts.checker.services import responds
from scripts.checker.writer import Writer
from scripts.processes import die_with_parent

# Broken promise -> what the report must say of it.
PROMISES = {
    "an item becomes visible behind its readers": "missed",
    "an update is acknowledged and lost": "lost",
    "a deletion is acknowledged and lost": "lost",
    "a deletion gets no new id": "differing in a copy",
    "a patch gets no new id": "differing in a copy",
    "a stale if_id is ignored": "wrong results",
    "a key written again gets another output_id": "wrong results",
    "a walk ends without an item": "left out in a walk",
    "approvals are miscounted": "miscounted",
    "an unchanged item is not counted for its job": "wrong results",
    "the missing are miscounted": "wrong results",
    "a missing item is left": "wrong results",
    "a failed crawl deletes what it did not see": "wrong of these",
    "a crawl deletes the items of another series": "wrong of these",
    "an earlier version is not kept": "wrong of these",
}
# Enough for five crawls of each crawler: the fourth deletes what it did not see, and the fifth shows what was left.
# Long enough for readers to come by several times: who reads only at the end sees no change that has no id.
VERSIONS, MIN_SECONDS, MAX_SECONDS = 3000, 4.0, 60.0
AT_ONCE = 3  # runs; each has to wait for its readers most of the time
WRITERS, CRAWLERS, READERS = 2, 2, ("plain", "country", "copy", "walk")
_CHANCE = 0.5
_CONTENT = ("source_url", "data", "tags", "is_approved")

Item = dict[str, Any]


class Model:
    """Outputs of one organization as the service promises them, in memory; one promise may be broken."""

    def __init__(self, broken: str) -> None:
        self._broken = broken
        self.groups: dict[str, dict[str, Item]] = {}
        self._kinds: dict[str, dict[str, str]] = {}  # what each job has done, by key
        self._stocks: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, list[Item]] = {}
        self._last_id = 0

    def _breaks(self, promise: str) -> bool:
        return self._broken == promise and random.random() < _CHANCE

    def _next_id(self) -> int:
        self._last_id += random.choice((1, 1, 2))
        return self._last_id

    def _group(self, request: web.Request) -> dict[str, Item]:
        return self.groups.setdefault(request.match_info["group_id"], {})

    @staticmethod
    def _result(item: Item, result: str) -> dict[str, Any]:
        return {**{name: item[name] for name in ("id", "output_id", "key_hash")}, "result": result}

    async def post(self, request: web.Request) -> web.Response:
        group, results = self._group(request), []
        for sent in await request.json():
            results.append(self._put(group, request.match_info["group_id"], sent))
            kind = {"updated": "changed"}.get(results[-1]["result"], results[-1]["result"])
            kinds = self._kinds.setdefault(sent["root_job_id"], {})
            if kinds.get(sent["key_hash"], "unchanged") == "unchanged":
                kinds[sent["key_hash"]] = kind
        done = Counter(result["result"] for result in results)
        counts = {kind: done[kind] for kind in ("created", "updated", "unchanged")}
        return web.json_response({**counts, "items": results})

    def _put(self, group: dict[str, Item], group_id: str, sent: Item) -> dict[str, Any]:
        there = group.get(sent["key_hash"])
        if there is None or there["deleted"]:
            output_id = str(uuid.uuid4()) if there is None else there["output_id"]
            if there is not None and self._breaks("a key written again gets another output_id"):
                output_id = str(uuid.uuid4())
            late = self._breaks("an item becomes visible behind its readers")
            visible = time.monotonic() + (0.3 if late else 0)
            id = self._next_id()
            item = {**sent, "id": id, "first_id": id, "output_id": output_id, "deleted": False}
            group[sent["key_hash"]] = {**item, "group_id": group_id, "visible": visible}
            return self._result(item, "created")
        if all(there[name] == sent[name] for name in _CONTENT):
            there["root_job_id"] = sent["root_job_id"]
            return self._result(there, "unchanged")
        self._keep(there)
        updated = {**there, **sent, "id": self._next_id()}
        if not self._breaks("an update is acknowledged and lost"):
            group[sent["key_hash"]] = updated
        return self._result(updated, "updated")

    async def patch(self, request: web.Request) -> web.Response:
        group = self._group(request)
        return web.json_response({"items": [self._patch(group, patch) for patch in await request.json()]})

    def _patch(self, group: dict[str, Item], patch: dict[str, Any]) -> dict[str, Any]:
        by = "key_hash" if "key_hash" in patch else "output_id"
        item = next((item for item in group.values() if item[by] == patch[by]), None)
        if item is None or item["deleted"]:
            return {"result": "not_found"}
        if patch.get("if_id", item["id"]) != item["id"] and not self._breaks("a stale if_id is ignored"):
            return self._result(item, "conflict")
        merged = {**item["tags"], **patch.get("tags", {})}
        tags = {name: value for name, value in merged.items() if value is not None}
        approved = patch.get("is_approved", item["is_approved"])
        if (tags, approved) == (item["tags"], item["is_approved"]):
            return self._result(item, "unchanged")
        item |= {"tags": tags, "is_approved": approved}
        if not self._breaks("a patch gets no new id"):
            item["id"] = self._next_id()
        return self._result(item, "updated")

    async def delete_one(self, request: web.Request) -> web.Response:
        found = self._delete(self._group(request), lambda item: item["output_id"] == request.match_info["output_id"])
        return web.json_response({"deleted": found}, status=200 if found else 404)

    async def delete_many(self, request: web.Request) -> web.Response:
        job, url = request.query.get("job_id"), request.query.get("url")
        matching = self._delete(self._group(request), lambda i: i["root_job_id"] == job or i["source_url"] == url)
        return web.json_response({"deleted": matching, "more": False})

    def _delete(self, group: dict[str, Item], matching: Callable[[Item], bool]) -> int:
        items = [item for item in group.values() if not item["deleted"] and matching(item)]
        for item in items:
            if not self._breaks("a deletion is acknowledged and lost"):
                self._keep(item)
                item["deleted"] = True
                if not self._breaks("a deletion gets no new id"):
                    item["id"] = self._next_id()
        return len(items)

    async def get(self, request: web.Request) -> web.Response:
        query, now = request.query, time.monotonic()
        country = query.get("country")
        found = [
            item
            for item in self._group(request).values()
            if item["id"] > int(query.get("cursor", 0))
            and item["visible"] <= now
            and (not item["deleted"] or query.get("deleted") == "true")
            and (country is None or item["tags"].get("country") == country)
        ]
        found.sort(key=lambda item: int(item["id"]))
        if "cursor" not in query and self._breaks("a walk ends without an item"):
            found = found[1:]
        page = found[: int(query["limit"])]
        next_cursor = page[-1]["id"] if len(page) < len(found) else None
        next_url = next_cursor and f"{request.path}?limit={query['limit']}&cursor={next_cursor}"
        return web.json_response({"items": page, "metadata": {"next_cursor": next_cursor, "next_url": next_url}})

    def _live(self, request: web.Request) -> list[Item]:
        return [item for item in self._group(request).values() if not item["deleted"]]

    def _keep(self, item: Item) -> None:
        if not self._breaks("an earlier version is not kept"):
            self._versions.setdefault(item["output_id"], []).insert(0, dict(item))

    async def versions(self, request: web.Request) -> web.Response:
        items = self._versions.get(request.match_info["output_id"], [])
        return web.json_response({"items": items, "metadata": {"next_cursor": None}})

    async def put_group(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def put_job(self, request: web.Request) -> web.Response:
        job_id, said = request.match_info["job_id"], await request.json()
        stock = self._stocks.setdefault(job_id, {"missing": None, "verdict": None, "series": said.get("series")})
        if said["state"] == "finished":
            live = [item for item in self._live(request) if self._is_of(stock["series"], item)]
            missing = {item["key_hash"] for item in live if item["root_job_id"] != job_id}
            stock["missing"] = len(missing) + self._breaks("the missing are miscounted")
            stock["verdict"] = "failed" if len(missing) > MAX_MISSING * len(live) else "passed"
            passed = stock["verdict"] == "passed" or self._broken == "a failed crawl deletes what it did not see"
            if said["missing"] == "delete" and passed and len(missing) < len(live):
                if self._broken == "a missing item is left" and missing:
                    missing.pop()
                self._delete(self._group(request), lambda item: item["key_hash"] in missing)
        return await self.job(request)

    def _is_of(self, series: str | None, item: Item) -> bool:
        return bool(self._stocks[item["root_job_id"]]["series"] == series) or self._breaks(
            "a crawl deletes the items of another series"
        )

    async def job(self, request: web.Request) -> web.Response:
        job_id = request.match_info["job_id"]
        kinds = Counter(self._kinds.get(job_id, {}).values())
        kinds["unchanged"] -= self._broken == "an unchanged item is not counted for its job"
        job = {"job_id": job_id, **{kind: kinds[kind] for kind in ("created", "changed", "unchanged")}}
        job |= {"items": sum(item["root_job_id"] == job_id for item in self._live(request)), "more": False}
        return web.json_response(job | self._stocks[job_id])

    async def stats(self, request: web.Request) -> web.Response:
        live = self._live(request)
        approved = sum(item["is_approved"] for item in live) + (self._broken == "approvals are miscounted")
        return web.json_response({"items": len(live), "approved": approved})

    async def jobs(self, request: web.Request) -> web.Response:
        jobs = Counter(item["root_job_id"] for item in self._live(request))
        return web.json_response([{"job_id": job, "items": count} for job, count in jobs.items()])

    async def dump(self, _: web.Request) -> web.Response:
        return web.json_response([item for group in self.groups.values() for item in group.values()])

    def serve(self, listener: socket.socket) -> None:
        die_with_parent()
        app = web.Application(client_max_size=1 << 26)
        outputs = "/v1/outputs/{group_id}"
        app.add_routes(
            [
                web.post(outputs, self.post),
                web.get(outputs, self.get),
                web.patch(outputs, self.patch),
                web.delete(outputs, self.delete_many),
                web.delete(outputs + "/{output_id}", self.delete_one),
                web.get(outputs + "/{output_id}/versions", self.versions),
                web.put("/v1/groups/{group_id}", self.put_group),
                web.put("/v1/groups/{group_id}/jobs/{job_id}", self.put_job),
                web.get("/v1/groups/{group_id}/jobs/{job_id}", self.job),
                web.get("/v1/groups/{group_id}/stats", self.stats),
                web.get("/v1/groups/{group_id}/jobs", self.jobs),
                web.get("/dump", self.dump),
            ]
        )
        web.run_app(app, sock=listener, print=None)


def run(broken: str, folder: Path, seed: int) -> str:
    """Return the report of a run against a model that breaks one promise, or none."""
    fork, listener = multiprocessing.get_context("fork"), socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    plan = Plan([port], "token", folder, 20, cut=0, seed=seed)
    service = fork.Process(target=Model(broken).serve, args=(listener,), daemon=True)
    service.start()
    listener.close()
    stop, writing, end, total = fork.Event(), fork.Event(), fork.Event(), fork.Value("q")
    writing.set()
    writers: list[Writer | Crawler] = [Writer(plan, number, total, stop) for number in range(WRITERS)]
    writers += [Crawler(plan, number, total, stop) for number in range(CRAWLERS)]
    readers = [Reader(plan, number, kind, writing, end) for number, kind in enumerate(READERS)]
    targets = [*(writer.run for writer in writers), *(reader.run for reader in readers)]
    clients = [fork.Process(target=target, daemon=True) for target in targets]
    try:
        deadline = time.monotonic() + 10
        while not responds(port, "/dump") and time.monotonic() < deadline:
            time.sleep(0.02)
        for client in clients:
            client.start()
        began = time.monotonic()
        while (
            total.value < VERSIONS or time.monotonic() < began + MIN_SECONDS
        ) and time.monotonic() < began + MAX_SECONDS:
            time.sleep(0.02)
        for event, ended in ((stop, clients[: len(writers)]), (end, clients[len(writers) :])):
            event.set()
            for client in ended:
                client.join(20)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/dump", timeout=20) as response:
            documents = json.load(response)
        options = argparse.Namespace(lease=1.0, failovers=False)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            Report(options, plan, *load(folder), documents).verdict(settled=True, held_up=0.0)
        return printed.getvalue()
    finally:
        for process in (*clients, service):
            if process.is_alive():
                process.kill()


def check(broken: str) -> tuple[bool, str]:
    """Return whether the report of a run says what it must, and the report."""
    seed = random.SystemRandom().randrange(10**6)  # the processes of the pool are copies of one
    with tempfile.TemporaryDirectory(prefix="checker-") as folder:
        report = run(broken, Path(folder), seed)
    report = f"seed {seed}\n{report}"
    return f"{PROMISES[broken]}: 0" not in report if broken else report.endswith("ok\n"), report


def main() -> int:
    failed = 0
    names = ("", *PROMISES)
    with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("fork")) as pool:
        for broken, (reported, report) in zip(names, pool.map(check, names), strict=True):
            print(f"{'ok    ' if reported else 'FAILED'} {broken or 'every promise is kept'}", flush=True)
            if not reported:
                failed += 1
                print(report)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
