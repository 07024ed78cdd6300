"""Tests that start a service or a database of their own are marked slow, so that `make test` stays quick."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.documentation import ROOT

STARTERS = {"ServiceProcess", "local_mongo", "standalone"}
MARKS = ("mark.slow", "mark.alone")


def unmarked_starters(path: Path) -> Iterator[str]:
    """Yield the names of tests in a file that start a process and are not marked, nor is the file."""
    text = path.read_text()
    if not any(f"{name}(" in text for name in STARTERS):
        return
    tree = ast.parse(text)
    assigned = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    if any(line.startswith("pytestmark") and mark in line for line in assigned for mark in MARKS):
        return
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_"):
            marked = any(mark in ast.unparse(line) for line in test.decorator_list for mark in MARKS)
            called = {ast.unparse(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)}
            if called & STARTERS and not marked:
                yield f"{path.relative_to(ROOT)}::{test.name}"


def test_every_test_that_starts_a_process_is_marked_slow_or_alone() -> None:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "e2e" not in path.parts]
    assert [name for path in files for name in unmarked_starters(path)] == []
