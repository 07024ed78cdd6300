"""Rules: which are taken, and what they say about a finished job."""

from __future__ import annotations

from typing import Any

import pytest
from marshmallow import ValidationError

from schemas.rules import Rule
from service.http.output.field_statistics import FieldStatistics
from service.store.rules import Facts, dropped, judge


def facts(*data: dict[str, Any], **changes: Any) -> Facts:
    """Return the facts of a job that has items with these data."""
    statistics = FieldStatistics()
    statistics.add([{"data": one} for one in data])
    fields = {field["path"]: field for field in statistics.result()["fields"]}
    return Facts(**{"items": len(data), "seen": len(data), "changed": 0, "missing": 0, "fields": fields, **changes})


PRICES = [{"price": {"amount": amount}} for amount in (1, 2.5, None, 4)]


@pytest.mark.parametrize(
    "rule",
    [
        {"path": "price.amount", "min_fill": 0.9},
        {"path": "price.amount", "min_fill": 0},
        {"path": "title", "type": "string"},
        {"path": "price.amount", "min": -1},
        {"path": "price.amount", "max": 1e9},
        {"path": "price.amount", "max_drop": 1},
        {"min_items": 0},
        {"max_missing": 0.5},
        {"max_changed": 0.05},
    ],
)
def test_a_rule_names_one_check(rule: dict[str, Any]) -> None:
    assert Rule().load(rule) == rule
    assert judge([rule], facts(*PRICES)).verdict in ("passed", "failed")


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"path": "title"},
        {"path": "title", "min_fill": 0.5, "type": "string"},
        {"min_items": 1, "max_missing": 0.1},
        {"min_fill": 0.5},
        {"path": "title", "min_items": 1},
        {"path": "title", "unique": True},
        {"path": "title", "min_fill": 1.1},
        {"path": "title", "min_fill": -0.1},
        {"path": "title", "min_fill": True},
        {"path": "title", "min_fill": "0.5"},
        {"path": "title", "min": None},
        {"path": "title", "type": "text"},
        {"path": "", "type": "string"},
        {"path": "a..b", "type": "string"},
        {"path": "$where", "type": "string"},
        {"path": "a.$b", "type": "string"},
        {"path": "a" * 1025, "type": "string"},
        {"path": 1, "type": "string"},
        {"min_items": 1.5},
        {"min_items": -1},
        [],
        "min_items",
    ],
)
def test_a_rule_that_names_none_or_several_or_unknown_checks_is_refused(rule: Any) -> None:
    with pytest.raises(ValidationError):
        Rule().load(rule)


def test_without_rules_there_is_no_verdict() -> None:
    assert judge([], facts(*PRICES)) == (None, [])


def test_a_job_that_keeps_every_rule_has_passed() -> None:
    rules: list[dict[str, Any]] = [
        {"path": "price.amount", "min_fill": 0.75},
        {"path": "price.amount", "type": "number"},
        {"path": "price.amount", "min": 1},
        {"path": "price.amount", "max": 4},
        {"path": "price.amount", "max_drop": 0.25},
        {"min_items": 4},
        {"max_missing": 0.5},
        {"max_changed": 0.25},
    ]
    found = facts(*PRICES, changed=1, missing=4, fill_before={"price.amount": 1.0})
    assert judge(rules, found) == ("passed", [])


@pytest.mark.parametrize(
    ("rule", "changes", "found", "words"),
    [
        ({"path": "price.amount", "min_fill": 0.8}, {}, 0.75, "price.amount is filled in 75 % of the items"),
        ({"path": "nothing", "min_fill": 0.1}, {}, 0.0, "nothing is filled in 0 %"),
        ({"path": "price.amount", "type": "integer"}, {}, {"number": 1}, "1 number"),
        ({"path": "price.amount", "type": "string"}, {}, {"integer": 2, "number": 1}, "2 integer, 1 number"),
        ({"path": "price.amount", "min": 1.5}, {}, 1, "price.amount is 1 in one item; numbers from 1.5"),
        ({"path": "price.amount", "max": 3}, {}, 4, "numbers up to 3"),
        (
            {"path": "price.amount", "max_drop": 0.2},
            {"fill_before": {"price.amount": 1.0}},
            0.25,
            "from 100 % to 75 %",
        ),
        ({"path": "gone", "max_drop": 0.2}, {"fill_before": {"gone": 0.9}}, 0.9, "from 90 % to 0 %"),
        ({"min_items": 5}, {}, 4, "The job has 4 items; at least 5"),
        ({"max_missing": 0.5}, {"missing": 5}, 5 / 9, "5 of the series' 9 items were not seen (55.56 %)"),
        ({"max_changed": 0.5}, {"changed": 3}, 0.75, "3 of the 4 items that the job saw have changed (75 %)"),
    ],
)
def test_a_broken_rule_says_what_was_found(
    rule: dict[str, Any], changes: dict[str, Any], found: Any, words: str
) -> None:
    verdict, (problem,) = judge([rule], facts(*PRICES, **changes))
    assert verdict == "failed"
    assert (problem["rule"], problem["found"]) == (rule, found)
    assert words in problem["msg"]


def test_text_where_numbers_are_bounded_is_a_problem() -> None:
    verdict, (problem,) = judge([{"path": "price", "min": 1}], facts({"price": "12 EUR"}))
    assert (verdict, problem["found"]) == ("failed", "12 EUR")


def test_numbers_are_judged_wherever_texts_stand_between_them() -> None:
    rule = {"path": "price", "min": 0}
    for prices in (["on request", 5], [5, "on request"]):
        assert judge([rule], facts(*({"price": price} for price in prices))).verdict == "passed"
    for prices in (["on request", -5, "sold"], [-5, "on request"]):
        verdict, (problem,) = judge([rule], facts(*({"price": price} for price in prices)))
        assert (verdict, problem["found"]) == ("failed", -5)


def test_a_drop_is_not_judged_where_no_job_was_before() -> None:
    assert judge([{"path": "price.amount", "max_drop": 0}], facts(*PRICES)).verdict == "passed"


def test_a_field_that_is_nowhere_breaks_no_rule_about_its_values() -> None:
    rules: list[dict[str, Any]] = [{"path": "nothing", check: 1} for check in ("min", "max")]
    rules.append({"path": "nothing", "type": "string"})
    assert judge(rules, facts(*PRICES)).verdict == "passed"


def test_a_job_without_items_does_not_divide_by_nothing() -> None:
    rules: list[dict[str, Any]] = [{"max_missing": 0.0}, {"max_changed": 0.0}, {"path": "title", "min_fill": 0.5}]
    verdict, problems = judge(rules, facts())
    assert (verdict, [problem["rule"] for problem in problems]) == ("failed", [{"path": "title", "min_fill": 0.5}])


def test_changed_items_are_a_share_of_those_seen_not_of_those_that_other_jobs_left() -> None:
    assert judge([{"max_changed": 0.5}], facts(*PRICES, items=2, seen=10, changed=5)).verdict == "passed"


def test_one_item_of_many_breaks_a_rule_that_allows_none() -> None:
    many = Facts(items=99_999, seen=99_999, changed=1, missing=1, fields={})
    verdict, problems = judge([{"max_missing": 0}, {"max_changed": 0}], many)
    assert (verdict, len(problems)) == ("failed", 2)
    assert "1 of the series' 100000 items were not seen (0.001 %)" in problems[0]["msg"]


def test_every_broken_rule_is_reported() -> None:
    rules: list[dict[str, Any]] = [{"min_items": 10}, {"max_missing": 0.1}, {"path": "price.amount", "min_fill": 1}]
    verdict, problems = judge(rules, facts(*PRICES, missing=4))
    assert (verdict, [problem["rule"] for problem in problems]) == ("failed", rules)


def test_a_drop_of_exactly_a_tenth_is_not_named() -> None:
    now = facts(*({"price": 1} for _ in range(7)), *({} for _ in range(3)))
    assert dropped(now._replace(fill_before={"price": 0.8})) == []
    assert dropped(now._replace(fill_before={"price": 0.81})) == ["price"]


def test_fields_that_dropped_are_named_largest_first_without_the_object_around_them() -> None:
    before = {"title": 1.0, "colour": 1.0, "size": 0.1, "price": 1.0, "price.amount": 1.0}
    now = facts({"title": "a", "colour": "red"}, {"title": "b"})
    assert dropped(now._replace(fill_before=before)) == ["price.amount", "colour"]
    assert dropped(now._replace(fill_before={f"field {n}": 1.0 for n in range(9)})) == [f"field {n}" for n in range(5)]
    assert dropped(now) == []


def test_a_share_that_is_met_exactly_passes() -> None:
    third = facts({"a": 1}, {"b": 1}, {"b": 1})
    assert judge([{"path": "a", "min_fill": 1 / 3}, {"path": "b", "min_fill": 2 / 3}], third).verdict == "passed"
    assert judge([{"path": "a", "min_fill": 0.3335}], third).verdict == "failed"
