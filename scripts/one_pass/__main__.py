"""Compare the one-pass encoder with the path in Python: the bytes and hashes are equal, or the item is handed back."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import hypothesis

from scripts.one_pass.items import RECORDS, Items
from service.handlers.outputs import INPUT
from service.http.errors import ApiError
from service.http.input.fast_decoder import FastPathRejected
from service.settings import Settings
from service.store import Group, ItemTooLarge
from service.store.outputs.comparing import Comparing
from service.store.outputs.encode import Encoder, Put
from service.store.outputs.one_pass import OnePass

# One item in so many comes from Hypothesis, which is slow; each is written and broken in so many ways.
_HYPOTHESIS_PART, _WAYS = 20, 6
_IGNORED = {"ignore": ["title", "price.amount", "data.specifications.value", "a", "seller", "aa.b"]}


class Differs(Exception):
    """Raised when both paths give different results."""


class Comparison:
    """Encodes texts with both paths, as they would be with one configuration of service and group."""

    def __init__(self, name: str, settings: Settings, document: dict[str, Any]) -> None:
        self.name, self._settings = name, settings
        self._encoder = Encoder(Group(1, "größe"), settings.max_item_bytes, Comparing.of(document, 0))
        self.one_pass = OnePass(self._encoder, settings.max_depth)

    def compare(self, text: bytes) -> str:
        """Return what became of a text: `equal`, `handed back` or `invalid`. Raises Differs."""
        result = self.one_pass.from_text(text)
        if result is None:
            return self._why(text)
        expected = self._expected(text)
        if result != expected:
            raise Differs(f"{self.name}: {text!r} became\n{result}\nand in Python\n{expected}")
        return "equal"

    def _expected(self, text: bytes) -> tuple[Put, int] | Exception:
        try:
            record = INPUT.one(text, 0, self._settings, "")
            return self._encoder(record), len(record["files"])
        except (ApiError, ItemTooLarge) as error:
            return error

    def _why(self, text: bytes) -> str:
        try:
            self._encoder(INPUT.one_fast(text, self._settings))
        except (FastPathRejected, ItemTooLarge):
            return "invalid"
        return "handed back"


def comparisons() -> list[Comparison]:
    """Return a comparison for each configuration."""
    small = Settings(max_depth=4, max_item_bytes=1500)
    return [
        Comparison("a group without ignored paths", Settings(), {}),
        Comparison("a group with ignored paths", Settings(), _IGNORED),
        Comparison("small limits", small, {}),
    ]


def generated(count: int, seed: int) -> Iterable[bytes]:
    """Yield texts of items that are lifelike, odd or broken."""
    items = Items(seed)
    for _ in range(count):
        yield items.text()


def compare_all(texts: Iterable[bytes], seed: int) -> Counter[str]:
    """Compare all texts, each in one of the configurations; return how many became what."""
    choices, dice, counts = comparisons(), random.Random(seed), Counter[str]()
    for text in texts:
        counts[dice.choices(choices, (3, 1, 1))[0].compare(text)] += 1
    return counts


def compare_hypothesis(count: int, seed: int) -> Counter[str]:
    """Compare about so many items that Hypothesis finds; it makes one that differs as short as it can."""
    counts, items, choices = Counter[str](), Items(seed), comparisons()
    assert 2 * len(choices) == _WAYS

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=max(1, count // _WAYS),
        database=None,
        derandomize=False,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(RECORDS)
    def compare(record: dict[str, Any]) -> None:
        for comparison in choices:
            text = items.write(record)
            counts[comparison.compare(text)] += 1
            counts[comparison.compare(items.broken(text))] += 1

    compare()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    try:
        counts = compare_hypothesis(options.items // _HYPOTHESIS_PART, options.seed)
        counts += compare_all(generated(options.items - counts.total(), options.seed), options.seed)
    except Differs as error:
        print(f"error: {error}")
        return 1
    total = counts.total()
    print(f"{total:,} items in {time.monotonic() - began:.0f} s, none differs")
    for kind, text in (
        ("equal", "encoded in one pass, with the same result"),
        ("handed back", "valid, and handed back to Python"),
        ("invalid", "handed back, and not certainly valid there either"),
    ):
        print(f"{counts[kind]:>11,} {text} ({counts[kind] / total:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
