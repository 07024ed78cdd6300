"""Log lines: JSON for machines, short text for people at a terminal."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from service.runtime.logging import JsonFormatter, TextFormatter

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


def lines_on_a_terminal(log_format: str) -> list[str]:
    """Return what a process writes to a terminal that is its standard error."""
    ours, its = pty.openpty()
    done = subprocess.run([sys.executable, "-c", PROGRAM, log_format], stderr=its, check=True, timeout=60)
    os.close(its)
    assert done.returncode == 0
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        return terminal.read(65536).decode().splitlines()


def test_a_request_is_one_short_line_on_a_terminal() -> None:
    line = TextFormatter().format(record("request", **REQUEST))
    assert line[8:] == " GET /v1/outputs/{group_id} 200 3 ms"


def test_other_events_say_what_they_carry() -> None:
    line = TextFormatter().format(record("batch closed", logging.WARNING, group="shop", request_id="abc"))
    assert line[8:] == " WARNING batch closed group=shop"


def test_a_text_line_cannot_be_broken_by_what_it_carries() -> None:
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
    lines = [line[9:] for line in lines_on_a_terminal("auto")]
    assert lines == ["GET /page/{name} 404 2 ms", "GET /v1/groups 200 2 ms", "WARNING careful reason=because"]


def test_a_terminal_gets_json_when_asked_for() -> None:
    lines = [json.loads(line) for line in lines_on_a_terminal("json")]
    assert [line["event"] for line in lines] == ["request"] * 5 + ["careful"]


def test_a_pipe_gets_json() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "auto"], capture_output=True, text=True, check=True, timeout=30
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(lines) == 6 and lines[-1]["reason"] == "because"
