"""What the settings of a group cost its crawls: new items, and a crawl that finds every item changed."""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from typing import Any, NamedTuple

import orjson

from scripts.bench import data, load
from scripts.bench.machine import PATIENT, Engine, Server, describe, engine, service

_IGNORE = {"ignore": ["scraped_at", "offers.seen", "rank"]}
_RULES = {
    "rules": [
        {"path": "title", "min_fill": 0.99},
        {"path": "price.amount", "type": "number"},
        {"path": "price.amount", "max_drop": 0.1},
        {"max_missing": 0.2},
        {"max_changed": 1},
    ]
}
_HISTORY = {"history_days": 30}
PLAIN = "plain"
SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "ignore": _IGNORE,
    "rules": _RULES,
    "history_days": _HISTORY,
    "all three": _IGNORE | _RULES | _HISTORY,
}
CRAWLS = ("new", "changed")
TURNS = 3
_BATCH, _CONNECTIONS, _LOADED = 100, 8, 5_000


class Crawl(NamedTuple):
    """One crawl: items per second, processor time per item in microseconds, seconds of its finish."""

    rate: float
    service: float
    mongod: float
    finish: float

    def against(self, other: Crawl) -> Crawl:
        """Return the ratios to another crawl."""
        return Crawl(*(mine / its for mine, its in zip(self, other, strict=True)))


def crawls(items: int) -> None:
    """Print how crawls of groups with each setting compare with those of a plain group in the same turn."""
    print(describe())
    with engine() as mongo:
        headers = data.load(mongo, _LOADED).headers
        with service(mongo.url, **PATIENT) as server:
            mongo.step_aside()
            turns = [_turn(mongo, server, headers, items, number) for number in range(TURNS)]
    print(f"\n{items:,} items per crawl, {_BATCH} per request, {_CONNECTIONS} connections, medians of {TURNS} turns")
    print("| crawl | group | items/s | service CPU | mongod CPU | finishing |\n|---|---|---:|---:|---:|---:|")
    for name in CRAWLS:
        plain = _median([turn[name, PLAIN] for turn in turns])
        units = f"{plain.rate:,.0f} | {plain.service:.0f} µs/item | {plain.mongod:.0f} µs/item"
        print(f"| {name} | {PLAIN} | {units} | {plain.finish * 1000:.0f} ms |")
        for setting in list(SETTINGS)[1:]:
            ratios = _median([turn[name, setting].against(turn[name, PLAIN]) for turn in turns])
            print(f"| {name} | {setting} | " + " | ".join(f"x {ratio:.2f}" for ratio in ratios) + " |")


def _median(crawls: list[Crawl]) -> Crawl:
    return Crawl(*(statistics.median(figures) for figures in zip(*crawls, strict=True)))


def _turn(
    mongo: Engine, server: Server, headers: dict[str, str], items: int, turn: int
) -> dict[tuple[str, str], Crawl]:
    """Crawl one new group per setting, each first in another turn, the first crawl before the second."""
    done: dict[tuple[str, str], Crawl] = {}
    names = list(SETTINGS)
    for setting in names[turn:] + names[:turn]:
        group = f"crawled-{turn}-{names.index(setting)}"
        _put(f"{server.url}/v1/groups/{group}", headers, SETTINGS[setting])
        first = load.next_number()
        for name in CRAWLS:
            with load.template_file(_templates(name)) as templates:
                url = f"{server.url}/v1/outputs/{group}"
                what = load.Requests(url, headers, _CONNECTIONS, templates, _BATCH, first=first)
                before, mongod_before = server.tree.cpu_seconds(), mongo.tree.cpu_seconds()
                result = load.send(what, items // _BATCH)
                service_cpu = server.tree.cpu_seconds() - before
                mongod_cpu = mongo.tree.cpu_seconds() - mongod_before
            began = time.perf_counter()
            _put(f"{server.url}/v1/groups/{group}/jobs/{name}-0", headers, {"state": "finished"})
            finish = time.perf_counter() - began
            sent = result.requests * _BATCH
            done[name, setting] = Crawl(
                sent / result.seconds, service_cpu * 1e6 / sent, mongod_cpu * 1e6 / sent, finish
            )
            print(f"{time.strftime('%H:%M:%S')} {name}, {setting}: {sent / result.seconds:,.0f} items/s", flush=True)
    return done


def _templates(crawl: str) -> list[str]:
    """Return items with keys of their own, all with another price and another date of scraping in each crawl."""
    made = []
    for template in data.templates(1000, crawl, picture=False):
        item = orjson.loads(template)
        item["key_hash"] = "sku-@@"
        item["data"]["price"]["amount"] += CRAWLS.index(crawl)
        item["data"]["scraped_at"] = f"2026-01-0{1 + CRAWLS.index(crawl)}T00:00:00Z"
        made.append(orjson.dumps(item).decode())
    return made


def _put(url: str, headers: dict[str, str], value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    request = urllib.request.Request(url, body, {**headers, "Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=60):
        pass
