"""Metric values that other processes read: each under its own name, whoever wrote first."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from service.http.cells import Cells, read_rows


def test_two_threads_that_name_new_series_at_once_get_cells_in_the_order_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, first_is_written, second_is_there = Cells(tmp_path, "one"), threading.Event(), threading.Event()
    write = os.write

    def write_slowly(file: int, text: bytes) -> Any:
        written = write(file, text)
        if b"first" in text:
            first_is_written.set()
            second_is_there.wait(0.5)  # it is not, if the first still has the place
        return written

    monkeypatch.setattr(os, "write", write_slowly)
    slow = threading.Thread(target=lambda: made.place("first"))
    slow.start()
    assert first_is_written.wait(60)
    made.values[made.place("second")] += 2
    second_is_there.set()
    slow.join()
    made.values[made.place("first")] += 1
    assert {row.family: row.values for row in read_rows(tmp_path)["one"]} == {"first": [1], "second": [2]}


def test_a_process_goes_on_after_a_line_that_another_left_incomplete(tmp_path: Path) -> None:
    before = Cells(tmp_path, "one")
    before.values[before.place("whole")] = 1
    with (tmp_path / "one.series").open("ab") as file:
        file.write(b'["torn", [')
    after = Cells(tmp_path, "one")
    after.values[after.place("new")] = 2
    assert {row.family: row.values for row in read_rows(tmp_path)["one"]} == {"whole": [1], "new": [2]}
    Cells(tmp_path, "one")
