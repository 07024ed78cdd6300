"""What does not fit the columns of a Parquet file is kept beside them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from service.http.output.parquet import Other, Shape


def test_two_values_of_one_dotted_path_are_both_kept() -> None:
    shape = Shape()
    shape.see({"a": {"c": 1}}, [10])
    other = Other()
    shape.split({"a": {"c": 1, "b": 2}, "a.b": 3}, "data", other)
    assert sorted(other) == ["data.a.b", "data.a.b\\1"]
    assert sorted(other.values()) == [2, 3]


def test_many_values_of_one_dotted_path_take_no_longer_than_others() -> None:
    """500 objects with one path and 60 new keys each took 3 seconds, and a name of 500 characters for each."""

    def tree(depth: int, leaf: dict[str, int]) -> dict[str, Any]:
        return {".".join("a" * n): tree(depth - n, leaf) for n in range(1, depth + 1)} if depth else leaf

    shape, other = Shape(), Other()
    shape.see(tree(10, {"x": 0}), [2000])
    began = time.process_time()
    shape.split(tree(10, {f"{n}": n for n in range(60)}), "data", other)
    assert time.process_time() - began < 0.5
    assert sum(other.values()) == 512 * sum(range(60))
    assert max(map(len, other)) < 40


def test_a_number_that_is_a_key_already_is_passed_over() -> None:
    other = Other()
    for value, path in enumerate(["a\\1", "a", "a", "a"]):
        other.keep(path, value)
    assert other == {"a\\1": 0, "a": 1, "a\\2": 2, "a\\3": 3}


def test_a_value_that_json_does_not_have_is_text() -> None:
    """Somebody may have put it there by hand in Mongo; JSON and CSV show it as text too."""
    shape = Shape()
    shape.see({"seen": datetime(2026, 1, 31), "title": "a"}, [10])
    other = Other()
    fitting = shape.split({"seen": datetime(2026, 1, 31), "title": datetime(2026, 2, 1)}, "data", other)
    assert fitting == {"seen": "2026-01-31T00:00:00.000Z", "title": None}
    assert other == {"data.title": datetime(2026, 2, 1)}
