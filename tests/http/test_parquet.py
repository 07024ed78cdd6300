"""What does not fit the columns of a Parquet file is kept beside them."""

from __future__ import annotations

from typing import Any

from service.http.output.parquet import Shape


def test_two_values_of_one_dotted_path_are_both_kept() -> None:
    shape = Shape()
    shape.see({"a": {"c": 1}}, [10])
    other: dict[str, Any] = {}
    shape.split({"a": {"c": 1, "b": 2}, "a.b": 3}, "data", other)
    assert sorted(other) == ["data.a.b", "data.a.b\\"]
    assert sorted(other.values()) == [2, 3]
