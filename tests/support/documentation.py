"""The code blocks of the documentation: run in order, and compared with the responses shown after them.

A block `sh`, `python` or `js` is run; a block `json`, `csv` or `text` directly after it is what it prints.
`console`, `py` and all other blocks are only shown. In what is shown, "…" stands for anything, and
identifiers, dates and hashes for any other ones, except the output_id, which follows from the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("[A-Z]*.md"))]
PAGES = list(dict.fromkeys(PAGES))

ADDRESS = "127.0.0.1:8080"
_RUN = {"sh", "python", "js"}
_SHOWN = {"json", "csv", "text"}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARYING = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-(?!8)[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<date>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<hash>"),
]


class Block(NamedTuple):
    """A block that is run, and what is shown after it; None where nothing is."""

    language: str
    text: str
    line: int
    shown_as: str | None
    shown: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that are run."""
    text = page.read_text()
    found = list(_BLOCK.finditer(text))
    for place, block in enumerate(found):
        if block[1] not in _RUN:
            continue
        following = found[place + 1] if place + 1 < len(found) else None
        shown = following and not text[block.end() : following.start()].strip() and following[1] in _SHOWN
        line = text.count("\n", 0, block.start()) + 1
        yield Block(block[1], block[2], line, *((following[1], following[2]) if following and shown else (None, None)))


def difference(block: Block, printed: str) -> str | None:
    """Return how the output of a block differs from what is shown after it; None if it does not."""
    if block.shown is None:
        return None
    if block.shown_as == "json":
        expected, actual = _values(block.shown), _values(printed)
        if len(expected) != len(actual):
            return f"{len(actual)} JSON values instead of {len(expected)}: {printed}"
        return next((d for e, a in zip(expected, actual, strict=True) if (d := _differs(e, a, "")) is not None), None)
    pattern = re.escape(_plain(block.shown.strip())).replace("…", ".*")
    return None if re.fullmatch(pattern, _plain(printed.strip()), re.DOTALL) else f"it prints: {printed}"


def _plain(text: str) -> str:
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text.replace("\r\n", "\n")


def _values(text: str) -> list[Any]:
    decoder, values, rest = json.JSONDecoder(), [], _plain(text).strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].strip()
    return values


def _differs(expected: Any, actual: Any, path: str) -> str | None:
    if expected == "…":
        return None
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = set(expected) - {"…"}
        if names - set(actual) or ("…" not in expected and set(actual) - names):
            return f"{path}: has {sorted(actual)}, not {sorted(expected)}"
        return next((d for n in names if (d := _differs(expected[n], actual[n], f"{path}.{n}")) is not None), None)
    if isinstance(expected, list) and isinstance(actual, list):
        shown = expected[:-1] if expected[-1:] == ["…"] else expected
        if len(actual) < len(shown) or (shown is expected and len(actual) > len(shown)):
            return f"{path}: has {len(actual)} entries, not {len(expected)}"
        pairs = zip(shown, actual, strict=False)
        return next((d for n, (e, a) in enumerate(pairs) if (d := _differs(e, a, f"{path}.{n}")) is not None), None)
    if isinstance(expected, str) and isinstance(actual, str) and "…" in expected:
        same = re.fullmatch(re.escape(expected).replace("…", ".*"), actual, re.DOTALL) is not None
    else:
        same = type(expected) is type(actual) and expected == actual
    return None if same else f"{path}: is {actual!r}, not {expected!r}"
