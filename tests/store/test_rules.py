"""Rules: which are taken, and what they say about a finished job."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from marshmallow import ValidationError

from schemas.rules import Rule
from service.store import Store
from service.store.judging import Judged, Judging
from service.store.rules import Facts, dropped, judge


class MakeFacts(Protocol):
    """Return the facts of a job that has items with these data, measured by the database."""

    async def __call__(self, rules: Sequence[Any], *data: dict[str, Any], **changes: Any) -> Facts: ...


@pytest.fixture
def facts(store: Store, organization: int) -> MakeFacts:
    judging, collection = Judging(store.database, 60.0), store.database["outputs"]

    async def make(rules: Sequence[Any], *data: dict[str, Any], **changes: Any) -> Facts:
        owner = {"organization_id": organization, "group_id": str(uuid.uuid4())}
        items = [{**owner, "root_job_id": "job", "id": number, "data": one} for number, one in enumerate(data)]
        if items:
            await collection.insert_many(items)
        measured = await judging.measure(Judged({**owner, "root_job_id": "job"}, "job", len(items)), rules)
        counts = {"items": len(data), "seen": len(data), "changed": 0, "missing": 0}
        return Facts(**{**counts, "fields": measured.fields, "rates": measured.rates, **changes})

    return make


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
async def test_a_rule_names_one_check(facts: MakeFacts, rule: dict[str, Any]) -> None:
    assert Rule().load(rule) == rule
    assert judge([rule], await facts([rule], *PRICES)).verdict in ("passed", "failed")


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


async def test_without_rules_there_is_no_verdict(facts: MakeFacts) -> None:
    assert judge([], await facts([], *PRICES)) == (None, [])


async def test_a_job_that_keeps_every_rule_has_passed(facts: MakeFacts) -> None:
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
    found = await facts(rules, *PRICES, changed=1, missing=4, rates_before={"price.amount": 1.0})
    assert judge(rules, found) == ("passed", [])


@pytest.mark.parametrize(
    ("rule", "changes", "found", "words"),
    [
        ({"path": "price.amount", "min_fill": 0.8}, {}, 0.75, "price.amount is filled in 75 % of the items"),
        ({"path": "nothing", "min_fill": 0.1}, {}, 0.0, "nothing is filled in 0 %"),
        (
            {"path": "price.amount", "type": "integer"},
            {},
            {"values": 1, "types": ["number"]},
            "1 items have another type: number",
        ),
        ({"path": "price.amount", "type": "string"}, {}, {"values": 3, "types": ["integer", "number"]}, "3 items"),
        ({"path": "price.amount", "min": 1.5}, {}, 1, "price.amount is 1 in one item; numbers from 1.5"),
        ({"path": "price.amount", "max": 3}, {}, 4, "numbers up to 3"),
        (
            {"path": "price.amount", "max_drop": 0.2},
            {"rates_before": {"price.amount": 1.0}},
            0.25,
            "from 100 % to 75 %",
        ),
        ({"path": "gone", "max_drop": 0.2}, {"rates_before": {"gone": 0.9}}, 0.9, "from 90 % to 0 %"),
        ({"min_items": 5}, {}, 4, "The job has 4 items; at least 5"),
        ({"max_missing": 0.5}, {"missing": 5}, 5 / 9, "5 of the series' 9 items were not seen (55.5556 %)"),
        ({"max_changed": 0.5}, {"changed": 3}, 0.75, "3 of the 4 items that the job saw have changed (75 %)"),
    ],
)
async def test_a_broken_rule_says_what_was_found(
    facts: MakeFacts, rule: dict[str, Any], changes: dict[str, Any], found: Any, words: str
) -> None:
    verdict, (problem,) = judge([rule], await facts([rule], *PRICES, **changes))
    assert verdict == "failed"
    assert (problem["rule"], problem["found"]) == (rule, found)
    assert words in problem["msg"]


async def test_text_where_numbers_are_bounded_is_a_problem(facts: MakeFacts) -> None:
    rule = {"path": "price", "min": 1}
    verdict, (problem,) = judge([rule], await facts([rule], {"price": "12 EUR"}))
    assert (verdict, problem["found"]) == ("failed", "12 EUR")


async def test_numbers_are_judged_wherever_texts_stand_between_them(facts: MakeFacts) -> None:
    rule = {"path": "price", "min": 0}
    for prices in (["on request", 5], [5, "on request"]):
        assert judge([rule], await facts([rule], *({"price": price} for price in prices))).verdict == "passed"
    for prices in (["on request", -5, "sold"], [-5, "on request"]):
        verdict, (problem,) = judge([rule], await facts([rule], *({"price": price} for price in prices)))
        assert (verdict, problem["found"]) == ("failed", -5)


async def test_a_drop_is_not_judged_where_no_job_was_before(facts: MakeFacts) -> None:
    rule = {"path": "price.amount", "max_drop": 0}
    assert judge([rule], await facts([rule], *PRICES)).verdict == "passed"


async def test_a_field_that_is_nowhere_breaks_no_rule_about_its_values(facts: MakeFacts) -> None:
    rules: list[dict[str, Any]] = [{"path": "nothing", check: 1} for check in ("min", "max")]
    rules.append({"path": "nothing", "type": "string"})
    assert judge(rules, await facts(rules, *PRICES)).verdict == "passed"


async def test_a_job_without_items_does_not_divide_by_nothing(facts: MakeFacts) -> None:
    rules: list[dict[str, Any]] = [{"max_missing": 0.0}, {"max_changed": 0.0}, {"path": "title", "min_fill": 0.5}]
    verdict, problems = judge(rules, await facts(rules))
    assert (verdict, [problem["rule"] for problem in problems]) == ("failed", [{"path": "title", "min_fill": 0.5}])


async def test_changed_items_are_a_share_of_those_seen_not_of_those_that_other_jobs_left(facts: MakeFacts) -> None:
    rule = {"max_changed": 0.5}
    assert judge([rule], await facts([rule], *PRICES, items=2, seen=10, changed=5)).verdict == "passed"


def test_one_item_of_many_breaks_a_rule_that_allows_none() -> None:
    many = Facts(items=99_999, seen=99_999, changed=1, missing=1, fields={})
    verdict, problems = judge([{"max_missing": 0}, {"max_changed": 0}], many)
    assert (verdict, len(problems)) == ("failed", 2)
    assert "1 of the series' 100000 items were not seen (0.001 %)" in problems[0]["msg"]


async def test_every_broken_rule_is_reported(facts: MakeFacts) -> None:
    rules: list[dict[str, Any]] = [{"min_items": 10}, {"max_missing": 0.1}, {"path": "price.amount", "min_fill": 1}]
    verdict, problems = judge(rules, await facts(rules, *PRICES, missing=4))
    assert (verdict, [problem["rule"] for problem in problems]) == ("failed", rules)


async def test_a_drop_of_exactly_a_tenth_is_not_named(facts: MakeFacts) -> None:
    now = await facts([], *({"price": 1} for _ in range(7)), *({} for _ in range(3)))
    assert dropped(now._replace(rates_before={"price": 0.8})) == []
    assert dropped(now._replace(rates_before={"price": 0.81})) == ["price"]


async def test_fields_that_dropped_are_named_largest_first_without_the_object_around_them(facts: MakeFacts) -> None:
    before = {"title": 1.0, "colour": 1.0, "size": 0.1, "price": 1.0, "price.amount": 1.0}
    now = await facts([], {"title": "a", "colour": "red"}, {"title": "b"})
    assert dropped(now._replace(rates_before=before)) == ["price.amount", "colour"]
    assert dropped(now._replace(rates_before={f"field {n}": 1.0 for n in range(9)})) == [f"field {n}" for n in range(5)]
    assert dropped(now) == []


async def test_a_share_that_is_met_exactly_passes(facts: MakeFacts) -> None:
    rules = [{"path": "a", "min_fill": 1 / 3}, {"path": "b", "min_fill": 2 / 3}]
    third = await facts(rules, {"a": 1}, {"b": 1}, {"b": 1})
    assert judge(rules, third).verdict == "passed"
    assert judge([{"path": "a", "min_fill": 0.3335}], third).verdict == "failed"
