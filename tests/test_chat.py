"""Events as messages for people: in the documented form of each receiver, whatever names and texts are in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.chat import chat_message
from tests.support.chats import CHECKS

JOB = {
    "job_id": "monday",
    "series": "oak",
    "state": "finished",
    "verdict": "failed",
    "created": 1,
    "changed": 2000,
    "unchanged": 3,
    "missing": None,
    "problems": [{"rule": {"min_items": 5}, "found": 3, "msg": "must have at least 5 items"}],
}


def shown(format: str, type: str, data: dict[str, Any], base_url: str = "https://data.example") -> str:
    body = json.dumps({"type": type, "timestamp": "2026-11-19T12:00:00.000Z", "data": data})
    return CHECKS[format](json.loads(chat_message(format, body, base_url)))


@pytest.mark.parametrize("format", CHECKS)
def test_a_failed_job_names_its_group_its_crawl_and_what_is_wrong(format: str) -> None:
    text = shown(format, "job.failed", {"group_id": "lamps", "job": JOB})
    for part in ("Crawl of lamps failed", "monday", "2,000", "must have at least 5 items", "oak"):
        assert part in text, part
    gave_up = shown(format, "job.failed", {"group_id": "lamps", "job": JOB | {"state": "failed", "verdict": None}})
    assert "The crawler did not come to its end" in gave_up


@pytest.mark.parametrize("format", CHECKS)
def test_every_event_has_a_message(format: str) -> None:
    silent = {"group_id": "lamps", "silent_hours": 24, "last_write": "2026-11-18T12:00:00.000Z"}
    events: list[tuple[str, dict[str, Any], str]] = [
        ("job.finished", {"group_id": "lamps", "job": JOB | {"verdict": "passed"}}, "Crawl of lamps passed"),
        ("job.finished", {"group_id": "lamps", "job": JOB | {"verdict": None}}, "Crawl of lamps is finished"),
        ("group.changed", {"group_id": "lamps", "last_id": 7}, "Items of lamps have changed"),
        ("group.silent", silent, "more than 24 hours"),
        ("group.silent", silent | {"last_write": None}, "more than 24 hours"),
        ("webhook.test", {"webhook_id": "x"}, "Test of a webhook"),
        ("session.blocked", {"pool": "shops", "name": "ada", "state": "blocked"}, "ada is blocked"),
        ("session.needs_login", {"pool": "shops", "name": "ada", "state": "needs_login"}, "ada needs a login"),
        ("pool.empty", {"pool": "shops"}, "shops has no session"),
    ]
    for type, data, part in events:
        assert part in shown(format, type, data).replace("\\", ""), type
        shown(format, type, data, base_url="")


@pytest.mark.parametrize("format", CHECKS)
def test_names_and_messages_of_any_length_and_kind_fit_and_mention_nobody(format: str) -> None:
    hostile = "<!everyone> @everyone [x](https://evil.example) <@U123> *_`|" + "ü\\<*" * 60
    job = JOB | {
        "job_id": hostile[:256],
        "series": hostile[:64],
        "problems": [{"rule": {}, "found": None, "msg": hostile * 20}] * 100,
    }
    text = shown(format, "job.failed", {"group_id": hostile[:256], "job": job})
    assert "and 95 more" in text
    assert "](https://evil" not in text or format == "slack"  # which has other links


@pytest.mark.parametrize("format", CHECKS)
@pytest.mark.parametrize("character", ["&", "😀", "*"])
def test_what_grows_when_it_is_escaped_fits_too(format: str, character: str) -> None:
    problems: list[dict[str, Any]] = [{"rule": {}, "found": None, "msg": character * 1000}] * 100
    data = {"group_id": character * 256, "job": JOB | {"job_id": character * 256, "problems": problems}}
    text = shown(format, "job.failed", data)
    if format == "slack":
        assert "&" not in text.replace("&amp;", "")
