"""What is judged: all items of a crawl, and of very many a part that is spread evenly over their ids."""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import Any

import pytest

from service.store import Store, StoreUnavailable
from service.store.judging import Judged, Judging, Measured
from tests.support.fault_proxy import Body, FaultProxy, refuse
from tests.support.groups import Group
from tests.support.limits import Small

MAX_TIME_EXPIRED = 50

RULES = [{"path": "price", check: 5} for check in ("min", "max")]


async def stored(store: Store, group: Group, *data: dict[str, Any], apart: int = 1) -> Judged:
    """Store items whose ids lie so far apart; return them as what is judged."""
    items = [
        {**group.owner, "root_job_id": "job", "id": 1 + apart * place, "data": one} for place, one in enumerate(data)
    ]
    await store.database["outputs"].insert_many(items)
    return Judged({**group.owner, "root_job_id": "job"}, "job", len(items))


async def finish(store: Store, group: Group, *data: dict[str, Any]) -> dict[str, Any]:
    items = [
        {"source_url": f"https://shop.example/{number}", "key_hash": str(number), "root_job_id": "job", "data": one}
        for number, one in enumerate(data)
    ]
    for start in range(0, len(items), 1000):
        await group.write(store, *items[start : start + 1000])
    await store.crawls.declare(group.key, "job", {"state": "finished"})
    return await store.crawls.finish(group.key, "job")


@pytest.mark.parametrize(("place", "price"), [(0, 4), (0, 6), (749, 4), (1499, 6)])
async def test_one_bad_value_anywhere_among_1500_items_breaks_min_or_max(
    store: Store, group: Group, place: int, price: int
) -> None:
    await store.groups.set(group.key, {"rules": RULES})
    prices = [5] * 1500
    prices[place] = price
    job = await finish(store, group, *({"price": one} for one in prices))
    assert (job["verdict"], job["judged"]) == ("failed", 1500)
    assert [problem["found"] for problem in job["problems"]] == [price]


@pytest.mark.slow
async def test_items_that_were_changed_last_do_not_hide_those_that_are_empty(store: Store, group: Group) -> None:
    await store.groups.set(group.key, {"rules": [{"path": "price", "min_fill": 0.9}]})
    job = await finish(store, group, *({"price": None} for _ in range(2000)), *({"price": 5} for _ in range(1000)))
    assert (job["verdict"], job["problems"][0]["found"]) == ("failed", 0.333333)
    (rate,) = [field["fill_rate"] for field in job["fields"] if field["path"] == "price"]
    assert rate == pytest.approx(1 / 3, abs=0.01), "the fill rates are those of items spread as evenly"


# A third of the items has no price.
DICE = random.Random(1)
SPREAD = [{"price": DICE.choice([1, 2, None]), "tenth": place // 400} for place in range(4000)]


def assert_is_even(measured: Measured) -> None:
    assert 1350 < measured.judged < 1650
    assert measured.fields["price"]["fill_rate"] == pytest.approx(2 / 3, abs=0.05)
    assert measured.rates["price"] == pytest.approx(2 / 3, abs=0.05)
    assert (measured.fields["tenth"]["lowest"], measured.fields["tenth"]["highest"]) == (0, 9)


SPREAD_RULES = [{"path": "price", "min_fill": 0.5}, {"path": "tenth", "max": 9}]


@pytest.mark.parametrize("apart", [1, 3, 20])
async def test_of_too_many_items_as_many_are_judged_evenly_whatever_the_rhythm_of_their_ids(
    store: Store, group: Group, small: Small, apart: int
) -> None:
    """Ids lie apart where of each batch few items have changed."""
    small(judged=1500)
    judged = await stored(store, group, *SPREAD, apart=apart)
    assert_is_even(await Judging(store.database, 60.0).measure(judged, SPREAD_RULES))


@pytest.mark.parametrize("jobs", [["job"], ["job", "other"]], ids=["of one job", "of several"])
async def test_of_items_whose_keys_cannot_be_read_in_time_a_part_is_judged_as_evenly(
    store: Store, wired: Store, wire: FaultProxy, group: Group, small: Small, jobs: list[str]
) -> None:
    small(judged=1500)
    judged = await stored(store, group, *SPREAD, apart=7)
    if len(jobs) > 1:
        judged = judged._replace(match={**group.owner, "root_job_id": {"$in": jobs}})
    too_late = wire.before("aggregate", "outputs", refuse(MAX_TIME_EXPIRED))
    assert_is_even(await Judging(wired.database, 60.0).measure(judged, SPREAD_RULES))
    assert too_late.reached.is_set()


async def test_a_job_of_whose_items_none_is_found_is_not_judged(store: Store, group: Group) -> None:
    judged = (await stored(store, group, {"price": 5}))._replace(match={**group.owner, "root_job_id": "gone"}, number=5)
    with pytest.raises(StoreUnavailable):
        await Judging(store.database, 60.0).measure(judged, RULES)


async def test_large_items_are_judged_up_to_a_size(store: Store, group: Group) -> None:
    judged = await stored(store, group, *({"price": 5, "text": "x" * 200_000} for _ in range(100)))
    many = judged._replace(number=100_000)  # 20 GB
    measured = await Judging(store.database, 60.0).measure(many, RULES)
    assert 1 <= measured.judged <= 3, "256 MB are a 75th of 20 GB"


def is_of_all_items(command: Body) -> bool:
    first, *_, last = command["pipeline"]
    return "$or" not in first["$match"] and "items" in last.get("$group", {})


async def test_what_does_not_fit_the_time_is_judged_by_a_part(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    judged = await stored(store, group, *({"price": 5} for _ in range(3000)))
    rules = [{"path": f"field-{place}", "min_fill": 0} for place in range(100)]
    assert (await Judging(store.database, 60.0).measure(judged, rules)).judged == 3000
    wire.before("aggregate", "outputs", refuse(MAX_TIME_EXPIRED), where=is_of_all_items)
    assert 800 < (await Judging(wired.database, 60.0).measure(judged, RULES)).judged < 1200
    with pytest.raises(StoreUnavailable):
        await Judging(store.database, 1e-6).measure(judged, rules)


@pytest.mark.slow
async def test_large_samples_wait_for_each_other_and_none_longer_than_its_time(
    store: Store, wired: Store, wire: FaultProxy, group: Group
) -> None:
    groups = [Group(group.organization + 1_000_000 * number) for number in range(3)]
    judged = [await stored(store, one, *({"price": 5} for _ in range(1500))) for one in groups]
    judging = Judging(wired.database, 60.0)
    measured = await asyncio.gather(*(judging.measure(one, RULES) for one in [*judged, judged[0]]))
    assert {one.judged for one in measured} == {1500}
    wire.before("aggregate", "outputs", lambda: asyncio.sleep(1), times=math.inf, where=is_of_all_items)
    judging, began = Judging(wired.database, 1.0), time.monotonic()
    measured = await asyncio.gather(*(judging.measure(one, RULES) for one in judged))
    assert time.monotonic() - began < 2.0
    assert all(800 < one.judged < 1200 for one in measured)
