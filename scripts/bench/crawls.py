"""What the settings of a group cost its crawls: new items, and crawls that find every item changed."""

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
_HISTORY, _NO_HISTORY = {"history_days": 30}, {"history_days": 0}
PLAIN = "plain"
SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: _NO_HISTORY,
    "ignore": _NO_HISTORY | _IGNORE,
    "rules": _NO_HISTORY | _RULES,
    "history_days": _HISTORY,
    "all three": _IGNORE | _RULES | _HISTORY,
}
CRAWLS = ("new", "changed")
TURNS = 3
# Older versions of each item before the crawls of which `history` prints medians.
VERSIONS = (range(1), range(1, 6), range(6, 11), range(11, 16), range(16, 21))
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


class Crawler(NamedTuple):
    """What crawls groups: the database, the service and the headers of requests to it."""

    mongo: Engine
    server: Server
    headers: dict[str, str]

    def set_up(self, group: str, settings: dict[str, Any]) -> None:
        """Set the settings of a group."""
        self._put(f"groups/{group}", settings)

    def crawl(self, group: str, number: int, first: int, items: int) -> Crawl:
        """Write the items of a group as its crawl of this number finds them, and finish a job of the crawl."""
        with load.template_file(_templates(number)) as templates:
            url = f"{self.server.url}/v1/outputs/{group}"
            what = load.Requests(url, self.headers, _CONNECTIONS, templates, _BATCH, first=first)
            before, mongod_before = self.server.tree.cpu_seconds(), self.mongo.tree.cpu_seconds()
            result = load.send(what, items // _BATCH)
            service_cpu = self.server.tree.cpu_seconds() - before
            mongod_cpu = self.mongo.tree.cpu_seconds() - mongod_before
        began = time.perf_counter()
        self._put(f"groups/{group}/jobs/crawl-{number}-0", {"state": "finished"})
        finish = time.perf_counter() - began
        sent = result.requests * _BATCH
        return Crawl(sent / result.seconds, service_cpu * 1e6 / sent, mongod_cpu * 1e6 / sent, finish)

    def _put(self, path: str, value: dict[str, Any]) -> None:
        headers = {**self.headers, "Content-Type": "application/json"}
        address = f"{self.server.url}/v1/{path}"
        request = urllib.request.Request(address, json.dumps(value).encode(), headers, method="PUT")
        with urllib.request.urlopen(request, timeout=60):
            pass


def crawls(items: int) -> None:
    """Print how crawls of groups with each setting compare with those of a plain group in the same turn."""
    turns = _turns(_settings_turn, items, TURNS)
    for name in CRAWLS:
        plain = _median([turn[name, PLAIN] for turn in turns])
        print(f"| {name} | {PLAIN} | {_in_units(plain)} |")
        for setting in list(SETTINGS)[1:]:
            ratios = _median([turn[name, setting].against(turn[name, PLAIN]) for turn in turns])
            print(f"| {name} | {setting} | {_in_ratios(ratios)} |")


def history(items: int) -> None:
    """Print what crawls that change every item cost without history, and with it, the more versions there are."""
    (turn,) = _turns(_history_turn, items, 1)
    for versions in VERSIONS:
        plain = [turn[number, False] for number in versions]
        kept = [turn[number, True] for number in versions]
        ratios = [one.against(other) for one, other in zip(kept, plain, strict=True)]
        name = f"{versions[0]} to {versions[-1]} older versions"
        print(f"| {name} | without history | {_in_units(_median(plain))} |")
        print(f"| {name} | with history | {_in_units(_median(kept))} |")
        print(f"| {name} | against without | {_in_ratios(_median(ratios))} |")


def _turns(turn: Any, items: int, turns: int) -> list[dict[Any, Crawl]]:
    """Run a measurement several times, on groups of its own each time, and print the head of its table."""
    print(describe())
    with engine() as mongo:
        headers = data.load(mongo, _LOADED).headers
        with service(mongo.url, **PATIENT) as server:
            mongo.step_aside()
            done = [turn(Crawler(mongo, server, headers), items, number) for number in range(turns)]
    print(f"\n{items:,} items per crawl, {_BATCH} per request, {_CONNECTIONS} connections, medians of {turns} turns")
    print("| crawl | group | items/s | service CPU | mongod CPU | finishing |\n|---|---|---:|---:|---:|---:|")
    return done


def _in_units(crawl: Crawl) -> str:
    costs = f"{crawl.service:.0f} µs/item | {crawl.mongod:.0f} µs/item"
    return f"{crawl.rate:,.0f} | {costs} | {crawl.finish * 1000:.0f} ms"


def _in_ratios(crawl: Crawl) -> str:
    return " | ".join(f"x {ratio:.2f}" for ratio in crawl)


def _median(crawls: list[Crawl]) -> Crawl:
    return Crawl(*(statistics.median(figures) for figures in zip(*crawls, strict=True)))


def _settings_turn(crawler: Crawler, items: int, turn: int) -> dict[Any, Crawl]:
    """Crawl one new group per setting, each first in another turn, the first crawl before the second."""
    done: dict[Any, Crawl] = {}
    names = list(SETTINGS)
    for setting in names[turn:] + names[:turn]:
        group = f"crawled-{turn}-{names.index(setting)}"
        crawler.set_up(group, SETTINGS[setting])
        first = load.next_number()
        for number, name in enumerate(CRAWLS):
            done[name, setting] = crawl = crawler.crawl(group, number, first, items)
            print(f"{time.strftime('%H:%M:%S')} {name}, {setting}: {crawl.rate:,.0f} items/s", flush=True)
    return done


def _history_turn(crawler: Crawler, items: int, turn: int) -> dict[Any, Crawl]:
    """Crawl a group without history and one with it in turns, every item changed each time after the first."""
    done: dict[Any, Crawl] = {}
    groups = {is_kept: f"history-{turn}-{is_kept}" for is_kept in (False, True)}
    numbers = {is_kept: load.next_number() for is_kept in groups}
    for is_kept, group in groups.items():
        crawler.set_up(group, _HISTORY if is_kept else _NO_HISTORY)
        crawler.crawl(group, 0, numbers[is_kept], items)
    for versions in range(VERSIONS[-1].stop):
        order = list(groups) if (turn + versions) % 2 else list(groups)[::-1]
        for is_kept in order:
            done[versions, is_kept] = crawl = crawler.crawl(groups[is_kept], versions + 1, numbers[is_kept], items)
            kept = f"{versions} older versions" if is_kept else "no history"
            print(f"{time.strftime('%H:%M:%S')} crawl {versions + 1}, {kept}: {crawl.rate:,.0f} items/s", flush=True)
    return done


def _templates(number: int) -> list[str]:
    """Return items with keys of their own, all with another price and another date of scraping in each crawl."""
    made = []
    for template in data.templates(1000, f"crawl-{number}", picture=False):
        item = orjson.loads(template)
        item["key_hash"] = "sku-@@"
        item["data"]["price"]["amount"] += number
        item["data"]["scraped_at"] = f"2026-01-{1 + number:02}T00:00:00Z"
        made.append(orjson.dumps(item).decode())
    return made
