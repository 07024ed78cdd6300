"""Whether a crawl has surely seen everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IGNORED = "httperror/response_ignored_status_count/"
# Downloads that failed, and those that were tried again: where an errback handles the rest, nothing is logged.
_FAILED, _RETRIED = "downloader/exception_type_count/", "retry/reason_count/"
# A complete crawl may find pages that are gone.
_GONE = ("404", "410")


def why_incomplete(reason: str, stats: Mapping[str, Any], *, resumable: bool = False) -> str | None:
    """Return why a crawl may have missed items; None for one that surely saw all of them."""
    if reason != "finished":
        return f"the crawl ended with {reason}"
    if resumable:
        return "JOBDIR is set: an earlier run may have seen a part of the pages, under another job"
    if not any(stats.get(f"sds/{kind}") for kind in ("created", "updated", "unchanged")):
        return "the crawl stored no item"
    if dropped := stats.get("sds/dropped"):
        return f"{dropped} items could not be stored"
    if dropped := stats.get("item_dropped_count"):
        return f"pipelines dropped {dropped} items"
    if forbidden := stats.get("robotstxt/forbidden"):
        return f"robots.txt forbids {forbidden} pages"
    if ignored := stats.get("urllength/request_ignored_count"):
        return f"{ignored} addresses were longer than URLLENGTH_LIMIT"
    for name, count in stats.items():
        status = name.removeprefix(_IGNORED)
        if status != name and status not in _GONE:
            return f"{count} pages had the status {status}"
    for name, count in stats.items():
        kind = name.removeprefix(_FAILED)
        if kind not in (name, "scrapy.exceptions.IgnoreRequest") and count > stats.get(f"{_RETRIED}{kind}", 0):
            return f"downloads failed with {kind}"
    if any(stats.get(name) for name in ("log_count/ERROR", "log_count/CRITICAL", "retry/max_reached")):
        return "there were errors"
    return "there were exceptions" if any(name.startswith("spider_exceptions") for name in stats) else None
