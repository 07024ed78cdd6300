"""Progress on a terminal and elsewhere; items as rows of a table."""

from __future__ import annotations

import io
import os
import pty

import pytest

from sds_client.cli.progress import Progress
from sds_client.cli.tables import flatten


def test_progress_on_a_terminal_is_a_bar_with_rate_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setenv("COLUMNS", "100")
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        progress = Progress("export of lamps", 0, terminal)
        progress.update(0, 0.0)
        clock[0] += 10
        progress.update(2500, 0.25)
        told = os.read(ours, 1000).decode()
    os.close(ours)
    assert told.replace("\r\x1b[K", "") == "export of lamps: [####............] 25%, 2,500 items, 250/s, 0:00:30 left"


def test_progress_elsewhere_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    text = io.StringIO()
    progress = Progress("export of lamps", 0, text)
    for second in range(25):
        clock[0] = 100.0 + second
        progress.update(second * 100, second / 100)
    progress.finish("wrote x.ndjson")
    assert text.getvalue().splitlines() == [
        "export of lamps: 10%, 1,000 items, 100/s, 0:01:30 left",
        "export of lamps: 20%, 2,000 items, 100/s, 0:01:20 left",
        "export of lamps: wrote x.ndjson, 2,400 items, 100/s",
    ]


def test_nested_data_becomes_dotted_columns() -> None:
    item = {"a": {"b": {"c": 1}, "d": []}, "e": {}, "f": None, "g": [{"h": 1}]}
    assert flatten(item) == {"a.b.c": 1, "a.d": "[]", "e": "{}", "f": None, "g": '[{"h":1}]'}
