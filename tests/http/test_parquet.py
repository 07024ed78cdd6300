"""What does not fit the columns of a Parquet file is kept beside them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from service.http.output.parquet import Shape


def test_two_values_of_one_dotted_path_are_both_kept() -> None:
    shape = Shape()
    shape.see({"a": {"c": 1}}, [10])
    other: dict[str, Any] = {}
    shape.split({"a": {"c": 1, "b": 2}, "a.b": 3}, "data", other)
    assert sorted(other) == ["data.a.b", "data.a.b\\"]
    assert sorted(other.values()) == [2, 3]


def test_a_value_that_json_does_not_have_is_text() -> None:
    """Somebody may have put it there by hand in Mongo; JSON and CSV show it as text too."""
    shape = Shape()
    shape.see({"seen": datetime(2026, 1, 31), "title": "a"}, [10])
    other: dict[str, Any] = {}
    fitting = shape.split({"seen": datetime(2026, 1, 31), "title": datetime(2026, 2, 1)}, "data", other)
    assert fitting == {"seen": "2026-01-31T00:00:00.000Z", "title": None}
    assert other == {"data.title": datetime(2026, 2, 1)}
