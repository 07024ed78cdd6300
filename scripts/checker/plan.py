"""What all clients of one run have in common: groups and kinds of readers."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUPS = ("lamps", "chairs", "tables")
CRAWLED = "crawled"  # the group of the crawlers
ALL_GROUPS = (*GROUPS, CRAWLED)
COUNTRIES = ("Germany", "France", "Japan", "Brazil")
REGIONS = ("DE-BE", "FR-IDF", "JP-13", "BR-SP")
JOBS = ("job-1", "job-2", "job-3")
URLS = 40
# Keys that every writer changes.
SHARED_KEYS = 30

FILTERS: dict[str, dict[str, str]] = {
    "job_id": {"job_id": JOBS[0]},
    "url": {"url": "https://shop.example/p/7"},
    "country": {"country": COUNTRIES[0]},
    "region": {"region": REGIONS[1]},
}
# Beside the plain readers, one of each.
READERS = ("etag", *FILTERS, "created_after", "copy", "walk", "wait")


@dataclass
class Plan:
    """What all clients of one run have in common."""

    ports: list[int]
    token: str
    folder: Path
    largest: int
    cut: float
    seed: int


def matches(kind: str, item: dict[str, Any]) -> bool:
    """Return whether a reader of this kind has to see an item."""
    values = {
        "job_id": item["root_job_id"],
        "url": item["source_url"],
        "country": item["tags"].get("country"),
        "region": item["tags"].get("region"),
    }
    return all(values[name] == value for name, value in FILTERS.get(kind, {}).items())


def fingerprint(item: dict[str, Any]) -> bytes:
    """Return a digest of what a consumer's copy must have in common with the database."""
    fields = [item[name] for name in ("id", "output_id", "source_url", "data", "is_approved", "tags")]
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).digest()


def load(folder: Path) -> tuple[list[Any], list[Any]]:
    """Return the results that the writers and readers have saved."""

    def read(pattern: str) -> list[Any]:
        return [pickle.loads(path.read_bytes()) for path in sorted(folder.glob(pattern))]  # noqa: S301

    return read("writer-*"), read("reader-*")
