"""What all clients of one run have in common: groups, kinds of readers, and what the service can do."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUPS = ("lamps", "chairs", "tables")
CRAWLED = "crawled"  # the group of the crawlers
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

# patch    writers approve items and change their tags, with and without if_id
# delete   writers delete items, one at a time and by filter, and write deleted keys again
# deleted  the readers that keep a copy ask for deletions too
# wait     one reader waits for news instead of asking again
# jobs     the items of each job are compared with the service's count
# crawls   crawlers finish their jobs, let some delete what they did not see, and keep earlier versions
MIX = ("patch", "delete", "deleted", "wait", "jobs", "crawls")


def mix_of(openapi: dict[str, Any]) -> frozenset[str]:
    """Return what a service can do, by its OpenAPI document."""
    paths = openapi["paths"]
    group, item = paths["/v1/outputs/{group_id}"], paths.get("/v1/outputs/{group_id}/{output_id}", {})
    parameters = {parameter.get("name") for parameter in group["get"].get("parameters", ())}
    found = {
        "patch": "patch" in group,
        "delete": "delete" in group and "delete" in item,
        "deleted": "deleted" in parameters,
        "wait": "wait" in parameters,
        "jobs": "/v1/groups/{group_id}/jobs" in paths,
        "crawls": "put" in paths.get("/v1/groups/{group_id}/jobs/{job_id}", {}),
    }
    return frozenset(name for name in MIX if found[name])


@dataclass
class Plan:
    """What all clients of one run have in common."""

    ports: list[int]
    token: str
    folder: Path
    largest: int
    cut: float
    seed: int
    mix: frozenset[str] = frozenset()

    @property
    def groups(self) -> tuple[str, ...]:
        """All groups that are written."""
        return (*GROUPS, CRAWLED) if "crawls" in self.mix else GROUPS

    def reader_kinds(self, plain: int) -> list[str]:
        """Return the kind of each reader: so many plain ones, and one of each other kind."""
        waiting = ["wait"] if "wait" in self.mix else []
        return ["plain"] * plain + ["etag", *FILTERS, "created_after", "copy", "walk", *waiting]


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
