"""Garbage that the collector's thresholds leave is collected once much memory stays in use."""

from __future__ import annotations

import gc

import pytest

from service.http import memory
from service.http.memory import Garbage

MEGABYTE = 2**20


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """The collections so far; they free nothing."""
    done: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append(None))
    monkeypatch.setattr(memory, "_heap", lambda: None)
    return done


def test_it_collects_when_memory_stays_high_and_again_when_it_has_grown(collections: list[None]) -> None:
    garbage = Garbage()
    assert not any(garbage.look(used * MEGABYTE) for used in (50, 500, 50, 500, 100, 150, 150))
    assert [garbage.look(used * MEGABYTE) for used in (500, 500, 500, 510, 530, 600, 600)] == [
        *(False, True),  # the second time
        *(False, False, False),  # what is still in use is no garbage
        *(False, True),
    ]
    assert len(collections) == 2


def test_it_looks_anew_after_memory_was_low(collections: list[None]) -> None:
    garbage = Garbage()
    assert [garbage.look(used * MEGABYTE) for used in (500, 500, 60, 500, 500)] == [False, True, False, False, True]
