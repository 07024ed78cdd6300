"""What is judged: all items of a crawl, and of very many a part that is spread evenly over their ids."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.store import Store, StoreUnavailable
from service.store.judging import Judged, Judging
from tests.support.groups import Group

RULES = [{"path": "price", check: 5} for check in ("min", "max")]


async def stored(store: Store, group: Group, *data: dict[str, Any], first: int = 1) -> Judged:
    """Store items with increasing ids; return them as what is judged."""
    items = [{**group.owner, "root_job_id": "job", "id": first + place, "data": one} for place, one in enumerate(data)]
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


async def test_items_that_were_changed_last_do_not_hide_those_that_are_empty(store: Store, group: Group) -> None:
    await store.groups.set(group.key, {"rules": [{"path": "price", "min_fill": 0.9}]})
    job = await finish(store, group, *({"price": None} for _ in range(2000)), *({"price": 5} for _ in range(1000)))
    assert (job["verdict"], job["problems"][0]["found"]) == ("failed", 0.333333)
    (rate,) = [field["fill_rate"] for field in job["fields"] if field["path"] == "price"]
    assert rate == pytest.approx(1 / 3, abs=0.01), "the fill rates are those of items spread as evenly"


async def test_of_too_many_items_a_part_that_is_spread_evenly_is_judged(store: Store, group: Group) -> None:
    judged = await stored(store, group, *({"price": 5, "place": place // 300} for place in range(3000)))
    many = judged._replace(number=3_000_000)  # as if there were a thousand times as many
    measured = await Judging(store.database, 60.0).measure(
        many, [{"path": "place", "min": 0}, {"path": "place", "max": 9}]
    )
    assert measured.judged == 100
    assert (measured.fields["place"]["lowest"], measured.fields["place"]["highest"]) == (0, 9)


async def test_large_items_are_judged_up_to_a_size(store: Store, group: Group) -> None:
    judged = await stored(store, group, *({"price": 5, "text": "x" * 200_000} for _ in range(100)))
    many = judged._replace(number=100_000)  # 20 GB
    measured = await Judging(store.database, 60.0).measure(many, RULES)
    assert 1 <= measured.judged <= 2, "256 MB of 20 GB are every 75th item"


async def test_what_does_not_fit_the_time_is_judged_by_a_part(store: Store, group: Group) -> None:
    judged = await stored(store, group, *({"price": 5} for _ in range(3000)))
    rules = [{"path": f"field-{place}", "min_fill": 0} for place in range(100)]
    all_of_them = await Judging(store.database, 60.0).measure(judged, rules)
    assert all_of_them.judged == 3000
    with pytest.raises(StoreUnavailable):
        await Judging(store.database, 1e-6).measure(judged, rules)


async def test_organizations_take_turns_and_none_waits_longer_than_its_time(
    store: Store, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = await stored(store, group, *({"price": 5} for _ in range(3000)))
    judging = Judging(store.database, 60.0)
    measured = await asyncio.gather(*(judging.measure(judged, RULES) for _ in range(8)))
    assert {one.judged for one in measured} == {3000}
