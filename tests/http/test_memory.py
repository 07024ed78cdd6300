"""Garbage that the collector's thresholds leave is collected once much memory stays in use."""

from __future__ import annotations

import gc

import pytest

from service.http import memory
from service.http.memory import Garbage


def looks(monkeypatch: pytest.MonkeyPatch, garbage: Garbage, *megabytes: int) -> list[bool]:
    """Return whether it collects, with this much memory in use one after the other; collections free nothing."""
    done: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append(None))
    found = []
    for used in megabytes:
        monkeypatch.setattr(memory, "_heap", lambda used=used: (used * 2**20, 0))
        found.append(garbage.look())
    assert len(done) == sum(found)
    return found


def test_it_collects_when_memory_stays_high_and_again_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = Garbage()
    assert not any(looks(monkeypatch, garbage, 50, 500, 50, 500, 100, 150, 150))
    assert looks(monkeypatch, garbage, 500, 500, 500, 510, 530, 600, 600) == [
        *(False, True),  # the second time
        *(False, False, False),  # what is still in use is no garbage
        *(False, True),
    ]


def test_it_looks_anew_after_memory_was_low(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(monkeypatch, Garbage(), 500, 500, 60, 500, 500) == [False, True, False, False, True]
