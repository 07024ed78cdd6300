"""Log lines: JSON for machines, short text for people at a terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.http.middleware.access_log import AccessLog
from service.runtime.logging import AccessLines, JsonFormatter, TextFormatter

REQUEST: dict[str, Any] = {
    "method": "GET",
    "route": "/v1/outputs/{group_id}",
    "status": 200,
    "ms": 3.21,
    "organization": 1,
    "request_id": "abc",
}
PROGRAM = """
import logging, sys
from service.runtime.logging import set_up
set_up("INFO", sys.argv[1])
access = logging.getLogger("service.access")
for route, status in (("/", 200), ("/page/{name}", 304), ("/docs", 200), ("/page/{name}", 404), ("/v1/groups", 200)):
    access.info("request", extra={"method": "GET", "route": route, "status": status, "ms": 1.5})
logging.getLogger("service").warning("careful", extra={"reason": "because"})
"""


def record(event: str, level: int = logging.INFO, name: str = "service", **extra: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "msg": event, "levelno": level, "levelname": "WARNING"} | extra)


def lines_on_a_terminal(log_format: str, **environ: str) -> list[str]:
    """Return what a process writes to a terminal that is its standard error."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, log_format]
    done = subprocess.run(command, stderr=its, check=True, timeout=60, env={**os.environ, **environ})
    os.close(its)
    assert done.returncode == 0
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        return terminal.read(65536).decode().splitlines()


def test_a_request_is_one_short_line_on_a_terminal() -> None:
    line = TextFormatter().format(record("request", **REQUEST))
    assert line[8:] == " GET /v1/outputs/{group_id} 200 3 ms"


def test_other_events_show_their_extra_fields() -> None:
    line = TextFormatter().format(record("batch closed", logging.WARNING, group="shop", request_id="abc"))
    assert line[8:] == " WARNING batch closed group=shop"


def test_a_text_line_cannot_be_broken_by_its_fields() -> None:
    line = TextFormatter().format(record("stopped", reason="one\n10:00:00 forged\x1b[2J"))
    assert "\n" not in line and "\x1b" not in line


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_neither_format_quotes_a_library_or_an_exceptions_message(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("secret document")
    except ValueError:
        said = record("failed on %s", logging.ERROR, "pymongo", args=("secret value",), exc_info=sys.exc_info())
    line = formatter.format(said)
    assert "secret" not in line and "ValueError" in line


def test_a_terminal_gets_text_without_the_files_of_the_page() -> None:
    lines = [line[9:] for line in lines_on_a_terminal("auto", NO_COLOR="1")]
    assert lines == ["GET /page/{name} 404 2 ms", "GET /v1/groups 200 2 ms", "WARNING careful reason=because"]


def test_a_terminal_gets_colours_unless_they_are_not_wanted() -> None:
    failed, fine, careful = lines_on_a_terminal("text")
    assert "\x1b[33mGET /page/{name} 404" in failed
    assert "\x1b[32mGET /v1/groups 200" in fine
    assert "\x1b[33mWARNING careful" in careful
    assert not any("\x1b" in line for line in lines_on_a_terminal("text", NO_COLOR="1"))


async def test_access_lines_are_written_soon_and_several_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        lines = AccessLines(file.fileno())
        for n in range(3):
            lines.write({**REQUEST, "status": 200 + n})
        assert (tmp_path / "log").read_bytes() == b""
        await asyncio.sleep(0.5)
        written = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in written] == [200, 201, 202]
    assert list(written[0])[:4] == ["time", "level", "event", "method"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written[0]["time"])


async def test_a_log_that_cannot_be_written_fails_no_request() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = AccessLines(writer)
    for _ in range(1000):
        lines.write(REQUEST)
    os.close(writer)


@pytest.mark.parametrize(("share", "status", "logged"), [(0, 500, 0), (0.01, 500, 1000), (1, 200, 1000)])
def test_the_access_log_is_for_all_requests_or_none_or_some_and_every_failure(
    share: float, status: int, logged: int
) -> None:
    assert sum(AccessLog(share).wants(status) for _ in range(1000)) == logged


def test_a_share_of_the_access_log_is_about_that_share() -> None:
    assert 20 < sum(AccessLog(0.1).wants(200) for _ in range(1000)) < 300


def test_a_terminal_gets_json_when_asked_for() -> None:
    lines = [json.loads(line) for line in lines_on_a_terminal("json")]
    assert [line["event"] for line in lines] == ["request"] * 5 + ["careful"]


def test_a_pipe_gets_json() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "auto"], capture_output=True, text=True, check=True, timeout=30
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(lines) == 6 and lines[-1]["reason"] == "because"
