"""Walks from cursor 0 and filters that match nothing, while the service forgets old deletions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sds_client import AsyncClient, Client
from sds_client.__main__ import main
from service.settings import Settings
from service.store import Store
from tests.support.api import make_output, make_outputs
from tests.support.connections import make_indexes_once
from tests.support.groups import Group, look_after_once
from tests.support.peer import page, peer

Forget = Callable[[str], None]


@pytest.fixture
def forget(mongo_url: str, organization: int) -> Forget:
    """Return a function that lets the service remove the deletion records of a group, except the newest."""

    async def work(group: str) -> None:
        store = Store.connect(Settings(mongo_database="test", mongo_timeout=20.0), mongo_url)
        await make_indexes_once(store, mongo_url)
        owner, old = {"organization_id": organization, "group_id": group}, datetime.now(UTC) - timedelta(days=40)
        outputs = store.database["outputs"]
        await outputs.update_many({**owner, "deleted": True}, {"$set": {"update_date": old}})
        async with asyncio.timeout(60):  # the upkeep of the running service may be at it
            while await outputs.count_documents({**owner, "deleted": True}) > 1:
                await look_after_once(store, Group(organization, group))
        await store.close()

    return lambda group: asyncio.run(work(group))


def delete_keys(client: Client, group: str, *numbers: int) -> None:
    for number in numbers:
        assert client.delete_many(group, url=make_output(number)["source_url"]) == 1


def keys(items: Any) -> list[str]:
    return [item["key_hash"] for item in items]


def test_a_copy_from_the_beginning_is_complete_although_deletions_were_forgotten(
    client: Client, forget: Forget, tmp_path: Path
) -> None:
    file = tmp_path / "cursor"
    client.push("group", make_outputs(8))
    delete_keys(client, "group", 0, 1, 2)
    forget("group")
    found = client.follow("group", deleted=True, cursor_file=file, live=False, page_size=2)
    assert keys(found) == ["key-3", "key-4", "key-5", "key-6", "key-7", "key-2"]
    assert "walk" not in json.loads(file.read_text())
    delete_keys(client, "group", 7)
    assert keys(client.follow("group", deleted=True, cursor_file=file, live=False)) == ["key-7"]


@pytest.mark.parametrize("page_size", [2, 5, 500])
@pytest.mark.parametrize("last", ["key-4", "key-7"])
def test_a_first_walk_that_was_interrupted_is_continued(
    client: Client, forget: Forget, tmp_path: Path, page_size: int, last: str
) -> None:
    file = tmp_path / "cursor"
    client.push("group", make_outputs(8))
    delete_keys(client, "group", 0, 1, 2)
    forget("group")
    taken = []
    for item in client.follow("group", deleted=True, cursor_file=file, live=False, page_size=page_size):
        if item["key_hash"] == last:
            break
        taken.append(item["key_hash"])
    rest = keys(client.follow("group", deleted=True, cursor_file=file, live=False, page_size=page_size))
    whole = ["key-3", "key-4", "key-5", "key-6", "key-7", "key-2"]
    # The only page of a group has no walk to continue: it comes again.
    assert rest == whole if page_size == 500 else taken + rest == whole


def test_a_filter_that_matches_nothing_for_long_does_not_fall_behind(
    client: Client, forget: Forget, tmp_path: Path
) -> None:
    def news() -> list[str]:
        options: Any = {"deleted": True, "live": False, "country": "Japan"}
        return keys(client.follow("group", cursor_file=tmp_path / "cursor", **options))

    client.push("group", [make_output(0, tags={"country": "Japan"}), *make_outputs(3, first=1)])
    assert news() == ["key-0"]
    delete_keys(client, "group", 1, 2)
    assert news() == []
    forget("group")
    assert news() == []
    client.push("group", [make_output(9, tags={"country": "Japan"})])
    assert news() == ["key-9"]


def test_every_page_of_changes_has_a_position_to_continue_from(client: Client, forget: Forget) -> None:
    client.push("group", make_outputs(8))
    delete_keys(client, "group", 0, 1, 2)
    forget("group")
    pages = [(keys(items), position) for items, position in client.changes("group", page_size=2)]
    assert [found for found, _ in pages] == [["key-3", "key-4"], ["key-5", "key-6"], ["key-7", "key-2"], []]
    for number, (_, position) in enumerate(pages):
        rest = [found for items, _ in client.changes("group", position=position, page_size=2) if (found := keys(items))]
        assert rest == [found for found, _ in pages[number + 1 :] if found]
    assert pages[-1][1] == pages[-2][1] and "walk" not in pages[-1][1]


def test_a_position_of_other_filters_or_of_another_group_is_refused(client: Client) -> None:
    client.push("group", [make_output(0, tags={"country": "Japan"}), make_output(1)])
    *_, (_, position) = client.changes("group", country="Japan", fields=["data"])
    for group, filters in (("group", {}), ("group", {"country": "Peru"}), ("other", {"country": "Japan"})):
        with pytest.raises(ValueError, match=r"this position was kept with the (group|filters)"):
            next(client.changes(group, position=position, **filters))  # type: ignore[arg-type]
    values: list[Any] = [json.dumps(position), "", [], {}, {**position, "cursor": "1"}]
    for value in values:
        with pytest.raises(ValueError, match="a position is the JSON object that came with a page"):
            next(client.changes("group", position=value, country="Japan"))
    assert list(client.changes("group", position=position, country="Japan")) == [([], position)]
    assert keys(next(client.changes("group", position={"cursor": 1}, country="Peru"))[0]) == []


def test_the_last_position_of_changes_is_beyond_items_that_do_not_match(client: Client, forget: Forget) -> None:
    client.push("group", [make_output(0, tags={"country": "Japan"}), *make_outputs(3, first=1)])
    *_, (_, position) = client.changes("group", country="Japan")
    delete_keys(client, "group", 1, 2)
    [(none, position)] = client.changes("group", position=position, country="Japan")
    assert none == []
    forget("group")
    assert list(client.changes("group", position=position, country="Japan")) == [([], position)]


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_singer_continues_from_the_state_after_any_page(
    client: Client, forget: Forget, tmp_path: Path, capsys: Any
) -> None:
    state = tmp_path / "state.json"

    def run() -> tuple[list[str], list[Any]]:
        assert main(["singer", "lamps", "--state", str(state)]) == 0
        messages = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        records = [one["record"]["key_hash"] for one in messages if one["type"] == "RECORD"]
        return records, [one["value"] for one in messages if one["type"] == "STATE"]

    client.push("lamps", make_outputs(600))
    delete_keys(client, "lamps", 0, 1, 2)
    forget("lamps")
    whole, states = run()
    assert whole == [*(f"key-{n}" for n in range(3, 600)), "key-2"]
    assert len(states) == 2
    state.write_text(json.dumps(states[0]))
    assert run() == (whole[500:], states[1:])
    state.write_text(json.dumps(states[1]))
    assert run() == ([], states[1:])
    cursor = states[1]["positions"]["lamps"]["cursor"]
    state.write_text(json.dumps({"cursors": {"lamps": cursor}}))  # an earlier state
    delete_keys(client, "lamps", 9)
    assert run()[0] == ["key-9"]


# What is asked


def at(found: dict[str, Any], walk: str | None = None, applied: int | None = None) -> web.Response:
    """Return a page with the state of its walk, and with the id up to which the filters were applied."""
    if walk is not None:
        found["metadata"]["next_url"] = f"http://elsewhere.example/v1/outputs/group?limit=2&cursor=0&walk={walk}"
    return web.json_response(found, headers={} if applied is None else {"X-Cursor": str(applied)})


@pytest.mark.slow
async def test_the_pages_of_a_read_are_one_walk() -> None:
    responses = [at(page([], 2), "9.0"), at(page([], 4), "9.12"), at(page([]))]
    async with peer(*responses) as service, AsyncClient(service.url, "t") as client:
        assert [item async for item in client.outputs("group")] == []
    asked = [(request.query.get("cursor"), request.query.get("walk")) for request in service.requests]
    assert asked == [(None, None), ("2", "9.0"), ("4", "9.12")]


async def test_a_follower_at_the_end_has_left_its_walk_and_asks_after_the_last_id_that_was_filtered() -> None:
    responses = [at(page([{"id": 1}], 2), "9.0"), at(page([{"id": 4}]), applied=7), at(page([]), applied=9)]
    async with peer(*responses, page([{"id": 12}])) as service, AsyncClient(service.url, "t") as client:
        following = client.follow("group", country="Japan")
        assert [(await anext(following))["id"] for _ in range(3)] == [1, 4, 12]
        await following.aclose()
    asked = [(request.query["cursor"], request.query.get("walk")) for request in service.requests]
    assert asked == [("0", None), ("2", "9.0"), ("7", None), ("9", None)]
