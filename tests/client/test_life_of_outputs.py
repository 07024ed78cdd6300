"""What happens to outputs after they were written, through the client of a running service."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sds_client import AsyncClient, Client, ClientError, VersionConflict
from tests.support.api import make_output, make_outputs
from tests.support.processes import ServiceProcess, make_token


def test_an_item_is_approved_tagged_and_read_again(client: Client) -> None:
    client.push("group", make_outputs(1))
    [before] = client.outputs("group")
    patched = client.patch("group", before["output_id"], is_approved=True, tags={"region": None, "shop": "north"})
    assert patched["result"] == "updated" and patched["id"] > before["id"]
    after = client.get("group", before["output_id"])
    assert after is not None
    assert (after["is_approved"], after["tags"]) == (True, {"country": "Germany", "shop": "north"})
    with pytest.raises(VersionConflict):
        client.patch("group", before["output_id"], is_approved=False, if_id=before["id"])
    assert client.patch("group", before["output_id"], is_approved=False, if_id=after["id"])["result"] == "updated"
    with pytest.raises(ClientError, match="404"):
        client.patch("group", "nobody", is_approved=True)


@pytest.mark.parametrize("count", [3, pytest.param(121, marks=pytest.mark.slow)])  # a page has 100
def test_the_earlier_versions_of_an_item_are_read(client: Client, count: int) -> None:
    client.set_group("group", history_days=7)
    for price in range(count):
        client.push("group", [make_output(data={"price": price})])
    [now] = client.outputs("group")
    before = client.versions("group", now["output_id"])
    assert [version["data"]["price"] for version in before] == list(range(count - 2, -1, -1))
    assert list(client.versions("group", "nobody")) == []


def test_a_deleted_item_and_an_earlier_version_are_restored(client: Client) -> None:
    for price in range(2):
        client.push("group", [make_output(data={"price": price})])
    [now] = client.outputs("group")
    [first] = client.versions("group", now["output_id"])
    with pytest.raises(ClientError, match="409"):
        client.restore("group", now["output_id"])
    client.delete("group", now["output_id"])
    assert client.restore("group", now["output_id"])["result"] == "created"
    assert [item["data"] for item in client.outputs("group")] == [{"price": 1}]
    assert client.restore("group", now["output_id"], first["id"])["result"] == "updated"
    assert [item["data"] for item in client.outputs("group")] == [{"price": 0}]


def test_a_wrong_address_is_not_taken_for_an_item_that_does_not_exist(client: Client, token: str) -> None:
    client.push("group", make_outputs(1))
    [item] = client.outputs("group")
    with Client(f"{client.url}/elsewhere", token) as elsewhere:
        for call in (elsewhere.get, elsewhere.delete):
            with pytest.raises(ClientError, match="404"):
                call("group", item["output_id"])
    assert client.get("group", "nobody") is None and client.delete("group", "nobody") is False


def test_more_reviews_than_one_body_holds_are_added(client: Client) -> None:
    reviews = [{"job_id": f"job-{n}", "status": "PASSED"} for n in range(1001)]
    added = client.add_reviews("group", reviews)
    assert [review["job_id"] for review in added] == [f"job-{n}" for n in range(1001)]


@pytest.mark.slow
def test_many_items_are_patched_and_each_has_its_result(client: Client) -> None:
    client.push("group", make_outputs(700))
    patches = [{"key_hash": f"key-{n}", "is_approved": True} for n in range(701)]
    patched = client.patch_many("group", patches)
    assert (patched.updated, patched.not_found, patched.conflict) == (700, 1, 0)
    assert [item["result"] for item in patched.items] == ["updated"] * 700 + ["not_found"]
    assert sum(1 for _ in client.outputs("group", is_approved=True)) == 700
    stale = client.patch_many("group", [{"key_hash": "key-1", "is_approved": False, "if_id": 1}])
    assert (stale.updated, stale.conflict) == (0, 1)


def test_items_are_read_newest_first_and_by_their_key(client: Client) -> None:
    client.push("group", make_outputs(25))
    assert [item["key_hash"] for item in client.outputs("group", order="desc", page_size=7)] == [
        f"key-{n}" for n in reversed(range(25))
    ]
    assert [item["data"]["title"] for item in client.outputs("group", key_hash="key-7")] == ["Lamp 7"]


def test_items_are_deleted_one_by_one_by_filter_and_all(client: Client) -> None:
    client.push("group", [*make_outputs(10), make_output(99, root_job_id="job-2")])
    first = next(iter(client.outputs("group")))
    assert client.delete("group", first["output_id"]) is True
    assert client.delete("group", first["output_id"]) is False
    assert client.get("group", first["output_id"]) is None
    counts: list[int] = []
    assert client.delete_many("group", job_id="job-1", on_progress=counts.append) == 9
    assert counts[-1] == 9
    assert [item["key_hash"] for item in client.outputs("group")] == ["key-99"]
    assert client.delete_many("group", all=True) == 1
    assert client.delete_many("group", all=True) == 0


def test_a_token_without_the_scope_delete_cannot_delete(
    client: Client, running: ServiceProcess, mongo_url: str, organization: int
) -> None:
    client.push("group", make_outputs(1))
    with Client(running.url, make_token(mongo_url, organization, "read", "write")) as writer:
        attempts: list[Callable[[], object]] = [
            lambda: writer.delete_many("group", all=True),
            lambda: writer.delete_group("group"),
        ]
        for attempt in attempts:
            with pytest.raises(ClientError) as caught:
                attempt()
            assert caught.value.status == 403
    assert len(list(client.outputs("group"))) == 1


def test_a_deleted_group_is_gone(client: Client) -> None:
    client.push("group", make_outputs(10))
    client.add_reviews("group", [{"job_id": "job-1", "status": "approved"}])
    assert client.delete_group("group") == 10
    assert (list(client.outputs("group")), client.reviews("group"), client.groups()) == ([], [], [])
    client.push("group", make_outputs(1))
    assert [item["id"] > 10 for item in client.outputs("group")] == [True]


def test_a_group_describes_its_jobs_fields_and_retention(client: Client) -> None:
    client.push("group", [*make_outputs(3), make_output(9, root_job_id="job-2", data={"price": 2})])
    assert {job["job_id"]: job["items"] for job in client.jobs("group")} == {"job-1": 3, "job-2": 1}
    assert {field["path"]: field["count"] for field in client.fields("group")["fields"]} == {"title": 3, "price": 1}
    assert [field["path"] for field in client.fields("group", job_id="job-2")["fields"]] == ["price"]
    client.set_retention("group", 90)
    assert client.group("group")["retention_days"] == 90
    client.set_retention("group", None)
    assert client.group("group")["retention_days"] is None


# Following deletions


def test_deletions_are_followed_from_a_cursor_that_is_kept(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    client.push("group", make_outputs(3))
    items = list(client.follow("group", deleted=True, cursor_file=file, live=False))
    assert not any("deleted" in item for item in items)
    client.delete("group", items[1]["output_id"])
    client.push("group", make_outputs(1, "Changed"))
    deletion, changed = client.follow("group", deleted=True, cursor_file=file, live=False)
    assert "deleted" in deletion and deletion["output_id"] == items[1]["output_id"]
    assert "deleted" not in changed and changed["key_hash"] == "key-0"
    assert list(client.follow("group", deleted=True, cursor_file=file, live=False)) == []
    # Without them, the cursor is another one.
    with pytest.raises(ValueError, match="other filters"):
        next(client.follow("group", cursor_file=file, live=False))
    assert all("deleted" not in item for item in client.follow("group", live=False))


@pytest.mark.alone
async def test_an_item_reaches_a_follower_soon_after_the_writers_acknowledgement(
    running: ServiceProcess, token: str
) -> None:
    late: list[float] = []
    async with AsyncClient(running.url, token) as client:
        await client.push("group", make_outputs(1))
        following = client.follow("group", deleted=True)
        first = await anext(following)
        for number in range(1, 31):
            arriving = asyncio.create_task(anext(following))
            await client.push("group", make_outputs(1, first=number))
            acknowledged = time.monotonic()
            assert (await asyncio.wait_for(arriving, 60))["key_hash"] == f"key-{number}"
            late.append(time.monotonic() - acknowledged)
        arriving = asyncio.create_task(anext(following))
        await client.delete("group", first["output_id"])
        assert "deleted" in await asyncio.wait_for(arriving, 60)
        await following.aclose()
    assert statistics.median(late) < 0.1, late
