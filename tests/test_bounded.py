"""The dictionary that forgets its oldest keys."""

from __future__ import annotations

from service.bounded import Bounded


def filled(max_keys: int, *keys: str) -> Bounded[str, int]:
    kept: Bounded[str, int] = Bounded(max_keys)
    for number, key in enumerate(keys):
        kept[key] = number
    return kept


def test_the_oldest_key_makes_room_for_a_new_one() -> None:
    assert filled(2, "a", "b", "c") == {"b": 1, "c": 2}


def test_a_key_that_is_there_is_replaced_and_drops_no_other() -> None:
    assert filled(2, "a", "b", "a") == {"a": 2, "b": 1}


def test_a_key_that_is_set_again_keeps_its_place_unless_it_was_deleted() -> None:
    assert filled(2, "a", "b", "a", "c") == {"b": 1, "c": 3}
    kept = filled(2, "a", "b")
    del kept["a"]
    kept["a"] = 2
    kept["c"] = 3
    assert kept == {"a": 2, "c": 3}
