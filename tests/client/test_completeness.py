"""Whether a crawl has surely seen everything, by what Scrapy counted."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

# Without the package around it, which needs Scrapy.
_PATH = Path(__file__).parents[2] / "clients/python/sds_client/scrapy/completeness.py"
_SPEC = importlib.util.spec_from_file_location("completeness", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
completeness = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(completeness)

STORED = {"sds/created": 3}
FAILED, RETRIED = "downloader/exception_type_count/", "retry/reason_count/"


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {f"{FAILED}twisted.internet.error.TimeoutError": 2, f"{RETRIED}twisted.internet.error.TimeoutError": 2},
        {f"{FAILED}scrapy.exceptions.IgnoreRequest": 1},
        {"httperror/response_ignored_status_count/404": 1},
    ],
)
def test_a_crawl_that_saw_all_is_complete(stats: dict[str, Any]) -> None:
    assert completeness.why_incomplete("finished", STORED | stats) is None


@pytest.mark.parametrize(
    ("stats", "why"),
    [
        ({f"{FAILED}playwright.TimeoutError": 1}, "downloads failed with playwright.TimeoutError"),
        ({"item_dropped_count": 2}, "pipelines dropped 2 items"),
        ({"robotstxt/forbidden": 4}, "robots.txt forbids 4 pages"),
        ({"retry/max_reached": 1}, "there were errors"),
        ({"urllength/request_ignored_count": 3}, "3 addresses were longer than URLLENGTH_LIMIT"),
    ],
)
def test_what_was_not_seen_makes_a_crawl_incomplete(stats: dict[str, Any], why: str) -> None:
    assert completeness.why_incomplete("finished", STORED | stats) == why


def test_a_crawl_that_may_be_the_rest_of_another_is_incomplete() -> None:
    assert completeness.why_incomplete("finished", STORED, resumable=True).startswith("JOBDIR is set")
