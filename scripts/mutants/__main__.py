"""Break the code in one place at a time, and see whether the tests that claim to cover it fail.

Each mutant of `catalogue.py` is applied to a copy of the checkout, so that the work tree stays as it is. A mutant whose
place is not in the code any more is an error: it has to follow the code.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("service", "schemas", "clients", "tests", "scripts", "docs", "docker", "pyproject.toml", "setup.cfg")
_SECONDS = 300
# pytest's exit codes: tests failed; everything passed.
_FAILED, _PASSED = 1, 0


class StaleMutant(Exception):
    """The place that a mutant names is not in the code, or not exactly once."""


def _lines_of(tree: ast.Module, name: str) -> tuple[int, int]:
    """Return the first and last line of a function, class or assignment, named as `Class.method`."""
    body: list[ast.stmt] = tree.body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((each for each in body if part in _names(each)), None)
        if node is None:
            raise StaleMutant(f"no {name}")
        body = getattr(node, "body", [])
    assert node is not None
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return first, node.end_lineno or node.lineno


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return {getattr(node, "name", "")}


def mutated(source: str, mutant: Mutant) -> str:
    """Return the source of a module with a mutant applied. Raises StaleMutant."""
    first, last = (1, source.count("\n") + 1) if not mutant.place else _lines_of(ast.parse(source), mutant.place)
    lines = source.splitlines(keepends=True)
    text = "".join(lines[first - 1 : last])
    if text.count(mutant.old) != 1:
        raise StaleMutant(f"{text.count(mutant.old)} times {mutant.old!r} in {mutant.place or 'the file'}")
    return "".join([*lines[: first - 1], text.replace(mutant.old, mutant.new), *lines[last:]])


def _run(mutant: Mutant) -> tuple[str, float, str]:
    """Return whether the tests caught a mutant, the seconds they took, and what pytest wrote last."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in _COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "node_modules", "*.egg-info", "*.so")
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, copy / name)
        path = copy / mutant.file
        path.write_text(mutated(path.read_text(), mutant))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'clients/python'}"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "caught", time.monotonic() - began, f"took more than {_SECONDS} seconds"
    outcome = {_FAILED: "caught", _PASSED: "survived"}.get(done.returncode, "error")
    output = [line for line in done.stdout.splitlines() if line.strip()]
    return outcome, time.monotonic() - began, output[-1] if output else done.stderr[-200:]


def main() -> int:
    """Run the mutants that are named, or all; print a line for each and the share that was caught."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants, or beginnings of their names; default: all")
    parser.add_argument("--list", action="store_true", help="only check that each mutant's place is in the code")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time (default: 2)")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(m.name.startswith(name) for name in options.names)]
    stale = 0
    for mutant in chosen:
        try:
            mutated((ROOT / mutant.file).read_text(), mutant)
        except (StaleMutant, FileNotFoundError) as error:
            stale += 1
            print(f"stale     {mutant.name}: {error}", flush=True)
    if options.list or stale:
        print(f"{len(chosen)} mutants, {stale} stale")
        return 1 if stale else 0
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, (outcome, seconds, line) in zip(chosen, pool.map(_run, chosen), strict=True):
            counts[outcome] += 1
            note = f" [{mutant.note}]" if outcome == "survived" and mutant.note else ""
            print(f"{outcome:9} {mutant.name} ({seconds:.0f} s){note}: {line}", flush=True)
    print(f"{counts['caught']} of {len(chosen)} caught, {counts['survived']} survived, {counts['error']} errors")
    return 1 if counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
