"""Ways from BSON on the wire to JSON on the wire, and what each costs a page of 1000 items.

`python -m scripts.bench.rendering`: CPU ms for each 1000 items, of this process and of the database.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import bson
import orjson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS

from scripts.bench import data
from scripts.bench.machine import Engine, describe, engine
from service.store import Page

ITEMS, ROUNDS = 1000, 15
_FIELDS = [
    "source_url", "data", "id", "output_id", "root_job_id", "create_date", "update_date", "last_scraped_date",
    "key_hash", "value_hash", "is_approved", "tags", "files",
]  # fmt: skip
_DATES = ("create_date", "update_date", "last_scraped_date")
_NAIVE: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=False)
_MILLIS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


def _measure(name: str, work: Callable[[], Any], mongo: Engine | None = None) -> None:
    work()
    spent, database = [], []
    for _ in range(ROUNDS):
        before, database_before = time.process_time(), mongo.tree.cpu_seconds() if mongo else 0.0
        work()
        spent.append((time.process_time() - before) * 1000)
        database.append((mongo.tree.cpu_seconds() - database_before) * 1000 if mongo else 0.0)
    beside = f" | {statistics.mean(database):.1f}" if mongo else " | "
    print(f"| {name} | {statistics.median(spent):.1f}{beside} |", flush=True)


def _without_collector(work: Callable[[], Any]) -> Callable[[], Any]:
    def quiet() -> None:
        gc.disable()
        try:
            work()
        finally:
            gc.enable()

    return quiet


class _Remembered:
    """Renders dates, each different one once."""

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}

    def __call__(self, value: Any) -> Any:
        text = self._texts.get(value)
        if text is None:
            moment = value.as_datetime() if isinstance(value, DatetimeMS) else value
            text = self._texts[value] = moment.isoformat(timespec="milliseconds")[:23] + "Z"
        return text


def _split(raw: bytes) -> list[bytes]:
    """Return the documents of a reply, still encoded."""
    found, at = [], 0
    while at < len(raw):
        end = at + int.from_bytes(raw[at : at + 4], "little")
        found.append(raw[at:end])
        at = end
    return found


def _render(raw: bytes) -> bytes:
    """Return the JSON of the items, the service's way."""
    return Page(list(_split(raw)), len(raw), None, 0).array()


def _iso(value: Any) -> Any:
    assert isinstance(value, datetime)
    return value.isoformat(timespec="milliseconds")[:23] + "Z"


def main() -> None:
    """Measure all ways."""
    print(describe())
    with engine() as mongo:
        data.load(mongo, 5 * ITEMS)
        outputs = mongo.database["outputs"]
        where = {"organization_id": data.ORGANIZATION, "group_id": data.GROUP}
        projection: dict[str, Any] = {"_id": 0, **dict.fromkeys(_FIELDS, 1)}
        options: dict[str, Any] = {"sort": [("id", 1)], "limit": ITEMS, "batch_size": ITEMS + 1, "hint": "id"}

        def find_raw(fields: dict[str, Any]) -> bytes:
            # The driver's stub gives the documents' type; what comes is bytes.
            batches: Any = outputs.find_raw_batches(where, fields, **options)
            return b"".join(batches)

        raw = find_raw(projection)
        decoded = bson.decode_all(raw, _NAIVE)
        plain = orjson.OPT_PASSTHROUGH_DATETIME
        naive_utc = orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z

        print("\n| from bytes in memory | CPU ms | database |\n|---|---:|---:|")
        _measure("decode_all", lambda: bson.decode_all(raw, _NAIVE))
        _measure("decode_all, garbage collector off", _without_collector(lambda: bson.decode_all(raw, _NAIVE)))
        _measure("decode_all, aware dates", lambda: bson.decode_all(raw, CodecOptions(tz_aware=True)))
        _measure("decode_all, dates as DatetimeMS", lambda: bson.decode_all(raw, _MILLIS))
        _measure("orjson, dates by isoformat", lambda: orjson.dumps(decoded, default=_iso, option=plain))
        _measure("orjson, dates remembered", lambda: orjson.dumps(decoded, default=_Remembered(), option=plain))
        _measure("orjson's own dates (microseconds)", lambda: orjson.dumps(decoded, option=naive_utc))
        chunks = _split(raw)
        _measure("split into documents", lambda: _split(raw))
        _measure("the service's way: split, decode, dump", lambda: _render(raw))
        _measure("the same, garbage collector off", _without_collector(lambda: _render(raw)))
        try:
            import bsonjs  # type: ignore[import-not-found]

            _measure("python-bsonjs, relaxed (not our JSON)", lambda: [bsonjs.dumps(d, mode=1) for d in chunks])
            print(f"    19.99 becomes {bsonjs.dumps(bson.encode({'x': 19.99}), mode=1)}")
        except ImportError:
            print("| python-bsonjs: not installed | | |")

        print("\n| with the database | CPU ms | database |\n|---|---:|---:|")

        def rendered(fields: dict[str, Any]) -> Callable[[], Any]:
            return lambda: orjson.dumps(bson.decode_all(find_raw(fields), _NAIVE), default=_iso, option=plain)

        def texts(pipeline: list[dict[str, Any]]) -> Callable[[], Any]:
            stages: list[dict[str, Any]] = [{"$match": where}, {"$sort": {"id": 1}}, {"$limit": ITEMS}, *pipeline]
            return lambda: b",".join(d["j"].encode() for d in outputs.aggregate(stages, hint="id", batchSize=ITEMS + 1))

        _measure("find, to dicts", lambda: list(outputs.find(where, projection, **options)), mongo)
        _measure("find, raw batch", lambda: find_raw(projection), mongo)
        hide = {"_id": 0, "organization_id": 0, "group_id": 0, "content_hash": 0}
        _measure(
            "find, raw batch, fields left out instead of named",
            lambda: find_raw(hide),
            mongo,
        )
        _measure("raw batch, decode, dump", rendered(projection), mongo)
        strings = projection | {name: {"$dateToString": {"date": f"${name}"}} for name in _DATES}
        strings["files"] = {
            "$map": {
                "input": "$files",
                "in": {"$mergeObjects": ["$$this", {"create_date": {"$dateToString": {"date": "$$this.create_date"}}}]},
            }
        }
        _measure(
            "raw batch with $dateToString, decode, dump",
            rendered(strings),
            mongo,
        )
        try:
            made = texts([{"$project": {"_id": 0, "j": {"$toString": {name: f"${name}" for name in _FIELDS}}}}])
            _measure("$toString of the whole item (MongoDB 8.3)", made, mongo)
            first = orjson.loads(b"[%b]" % made())[0]
            print(f"    dates become {first['create_date']!r}, 19.99 stays {first['data']['price']}")
        except Exception as error:
            print(f"| $toString of the whole item: {str(error)[:100]} | | |")


if __name__ == "__main__":
    main()
