"""The statistics of fields: bounded, however the keys of an item are made."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from service.http.output.field_statistics import FieldStatistics
from tests.http.test_csv import HOSTILE


@pytest.mark.parametrize("data", HOSTILE)
def test_a_hostile_item_gives_a_small_table_in_little_time(data: dict[str, Any]) -> None:
    statistics = FieldStatistics()
    began = time.thread_time()
    statistics.add([{"data": data}] * 3)
    assert time.thread_time() - began < 3
    result = statistics.result()
    assert result["items"] == 3
    assert all(len(field["path"]) <= 1024 for field in result["fields"])
    assert len(json.dumps(result)) < 500_000


def test_an_object_with_a_member_of_too_long_a_name_is_described_as_a_whole() -> None:
    statistics = FieldStatistics()
    statistics.add([{"data": {"a": {"k" * 1023: 1}, "b": {"c": 1}}}])
    types = {field["path"]: field["types"] for field in statistics.result()["fields"]}
    assert types == {"a": {"object": 1}, "b": {"object": 1}, "b.c": {"integer": 1}}


def test_an_item_with_two_values_of_one_path_counts_once() -> None:
    statistics = FieldStatistics()
    statistics.add([{"data": {"price.amount": 1, "price": {"amount": 2}}}, {"data": {"price": {"amount": 3}}}])
    found = {field["path"]: field for field in statistics.result()["fields"]}["price.amount"]
    assert (found["count"], found["fill_rate"], found["types"], found["max"]) == (2, 1.0, {"integer": 3}, 3)


def test_the_longest_allowed_key_hides_no_field_of_its_item() -> None:
    statistics = FieldStatistics()
    statistics.add([{"data": {"price": 1, "k" * 1024: 2}}])
    assert {field["path"] for field in statistics.result()["fields"]} == {"price", "k" * 1024}


def test_examples_tell_true_from_one() -> None:
    statistics = FieldStatistics()
    statistics.add([{"data": {"a": value}} for value in (True, 1, 1.0, True)])
    (found,) = statistics.result()["fields"]
    assert [repr(example) for example in found["examples"]] == ["True", "1", "1.0"]
