"""Deletions that could empty a group by mistake: the same guards on every route."""

from __future__ import annotations

from typing import Any

import pytest

from service.store import Store
from tests.api.test_crawls import crawl, job_of, keys, put, rules
from tests.support.api import Api, make_output, make_review
from tests.support.limits import Small

MISSING = "/v1/outputs/shop?job_id=b&change=missing"


async def refused(api: Api, path: str = MISSING) -> str:
    """Return why a deletion is refused, after checking that nothing was deleted."""
    before = await keys(api)
    response = await api.delete(path)
    assert (response.status, response.problems()) == (409, [(["query", "job_id"], "held_back")])
    assert await keys(api) == before
    return str(response.json["detail"][0]["msg"])


async def test_what_is_missing_from_a_job_that_is_no_basis_for_a_deletion_stays(admin: Api) -> None:
    await rules(admin, {"min_items": 2})
    await crawl(admin, "a", range(4))
    await put(admin, "b", "running")
    assert "runs" in await refused(admin)
    await put(admin, "b", "failed")
    assert "failed" in await refused(admin)
    await put(admin, "b", "running")
    await put(admin, "b")
    assert "verdict" in await refused(admin)
    await rules(admin)
    await put(admin, "b", "running")
    assert (await put(admin, "b", missing="delete"))["held_back"] == "The job has seen no item: crawl again"
    assert "crawl again" in await refused(admin)
    await put(admin, "b", "running")
    await crawl(admin, "b", [0])
    await put(admin, "b")
    assert (await admin.delete(MISSING)).json == {"deleted": 3, "more": False, "cursor": None}


async def test_more_than_was_judged_is_not_deleted(admin: Api) -> None:
    await put(admin, "a", "running", series="lamps")
    await crawl(admin, "a", range(4))
    await crawl(admin, "b", [9])
    assert (await put(admin, "b"))["missing"] == 0
    await put(admin, "a", "running", series=None)
    assert "judged again" in await refused(admin)
    assert "judged again" in (await put(admin, "b", missing="delete"))["held_back"]


@pytest.mark.slow
async def test_what_was_deleted_already_makes_no_room_for_what_was_not_judged(admin: Api) -> None:
    await put(admin, "lamps", "running", series="lamps")
    await crawl(admin, "lamps", range(20, 23))
    await crawl(admin, "a", range(3))
    await crawl(admin, "b", [9])
    assert (await put(admin, "b"))["missing"] == 3
    assert (await admin.delete(f"{MISSING}&dry_run=true")).json["matched"] == 3
    assert (await admin.delete(MISSING)).json["deleted"] == 3
    assert (await job_of(admin, "b"))["deleted"] == 3
    await put(admin, "lamps", "running", series=None)
    assert "judged again" in await refused(admin)


async def test_only_a_finished_job_deletes_what_is_missing(admin: Api) -> None:
    await crawl(admin, "b", [0])
    for state in ("running", "failed"):
        response = await admin.put("/v1/groups/shop/jobs/b", {"state": state, "missing": "delete"})
        assert (response.status, response.problems()) == (422, [(["body", "missing"], "value_error")])
    assert (await job_of(admin, "b"))["state"] == "running"


@pytest.mark.parametrize("state", ["finished", "failed"])
async def test_a_job_that_does_not_exist_is_not_ended_and_creates_nothing(admin: Api, store: Store, state: str) -> None:
    response = await admin.put("/v1/groups/nowhere/jobs/ghost", {"state": state, "series": "lamps"})
    assert (response.status, response.problems()) == (404, [(["path", "job_id"], "not_found")])
    owner = {"organization_id": admin.organization_id}
    for collection in ("groups", "jobs", "days"):
        assert await store.database[collection].count_documents(owner) == 0


async def test_a_series_that_the_group_never_had_is_warned_of_with_the_nearest(admin: Api) -> None:
    await crawl(admin, "a", range(2))
    await put(admin, "a", series="furniture")
    done = await put(admin, "b", "running", series="furnitures")
    (warning,) = done["warnings"]
    assert (warning["loc"], warning["type"]) == (["body", "series"], "unknown_series")
    assert "did you mean furniture?" in warning["msg"]
    assert (await put(admin, "b", "running", series="furnitures"))["warnings"] == []
    assert (await put(admin, "c", "running", series="furniture"))["warnings"] == []
    assert (await put(admin, "d", "running", series="furnitures"))["warnings"] == [], "a job that runs has it"


async def test_a_path_that_no_item_has_deletes_nothing(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    response = await admin.delete("/v1/outputs/shop?missing=prise")
    assert (response.status, response.problems()) == (422, [(["query", "missing"], "unknown_path")])
    assert "did you mean price?" in response.json["detail"][0]["msg"]
    assert await keys(admin) == [0, 1, 2]
    response = await admin.delete("/v1/outputs/shop?where=prise.amount!=10&where=title!=x&missing=titel")
    assert response.problems() == [(["query", "missing"], "unknown_path"), (["query", "where"], "unknown_path")]
    assert "did you mean price.amount?" in response.json["detail"][1]["msg"]
    assert await keys(admin) == [0, 1, 2]
    for query in ("missing=price", "missing=data.price.amount", "where=price.amount!=10&where=price.amount<11"):
        assert (await admin.delete(f"/v1/outputs/shop?{query}")).json["deleted"] == 0
    assert (await admin.delete("/v1/outputs/shop?missing=prise&all=true")).json["deleted"] == 3


async def test_a_dry_run_counts_and_deletes_nothing(admin: Api) -> None:
    await crawl(admin, "a", range(5))
    await crawl(admin, "b", range(2))
    await put(admin, "b")
    for query, matched in (("job_id=a", 3), ("job_id=b&change=missing", 3), ("all=true", 5)):
        response = await admin.delete(f"/v1/outputs/shop?{query}&dry_run=true")
        assert response.json == {"matched": matched, "more": False, "cursor": None}, query
    assert await keys(admin) == list(range(5))


async def pages(api: Api, path: str, cursor: str) -> list[dict[str, Any]]:
    """Return the responses of a deletion in several calls, after the first one."""
    found: list[dict[str, Any]] = []
    cursor = f"&cursor={cursor}"
    while not found or found[-1]["more"]:
        assert len(found) < 50
        response = await api.delete(path + cursor)
        assert response.status == 200, response.body
        found.append(response.json)
        cursor = f"&cursor={found[-1]['cursor']}"
    return found


@pytest.fixture
def three_at_once(small: Small) -> None:
    """Let each call delete three items."""
    small(deleted_beside_others=3, deletion_seconds=0.0)


@pytest.mark.usefixtures("three_at_once")
async def test_what_is_written_after_the_first_call_is_never_deleted(admin: Api) -> None:
    path = "/v1/outputs/shop?all=true"
    await crawl(admin, "a", range(10))
    first = (await admin.delete(path)).json
    assert (first["deleted"], first["more"]) == (3, True)
    await crawl(admin, "a", [9, 20])  # one is seen again, one is new
    await admin.patch("/v1/outputs/shop", [{"key_hash": "key-8", "is_approved": True}])
    rest = await pages(admin, path, first["cursor"])
    assert sum(page["deleted"] for page in rest) == 5
    assert await keys(admin) == [8, 9, 20]


@pytest.mark.usefixtures("three_at_once")
async def test_a_dry_run_in_several_calls_counts_everything_and_its_cursor_deletes_nothing(admin: Api) -> None:
    path = "/v1/outputs/shop?job_id=a"
    await crawl(admin, "a", range(10))
    first = (await admin.delete(f"{path}&dry_run=true")).json
    rest = await pages(admin, f"{path}&dry_run=true", first["cursor"])
    assert [page["matched"] for page in (first, *rest)] == [3, 3, 3, 1]
    assert (await admin.delete(f"{path}&cursor={first['cursor']}")).status == 422
    assert await keys(admin) == list(range(10))


@pytest.mark.slow
@pytest.mark.usefixtures("three_at_once")
async def test_a_deletion_of_missing_items_in_several_calls_stops_when_its_job_is_opened_again(admin: Api) -> None:
    await crawl(admin, "a", range(10))
    await crawl(admin, "b", [0])
    await put(admin, "b")
    first = (await admin.delete(MISSING)).json
    assert (first["deleted"], first["more"]) == (3, True)
    await put(admin, "b", "running")
    assert "runs" in await refused(admin, f"{MISSING}&cursor={first['cursor']}")
    assert (await put(admin, "b"))["missing"] == 6
    rest = await pages(admin, MISSING, first["cursor"])
    assert sum(page["deleted"] for page in rest) == (await job_of(admin, "b"))["deleted"] == 6
    assert await keys(admin) == [0]


@pytest.mark.usefixtures("three_at_once")
async def test_the_deletion_of_a_group_ends_although_a_crawler_goes_on_writing(admin: Api) -> None:
    await put(admin, "a", "running", series="lamps")
    await crawl(admin, "a", range(10))
    deleted, calls, cursor = 0, 0, ""
    while True:
        response = (await admin.delete(f"/v1/groups/shop{cursor}")).json
        deleted, calls, cursor = deleted + response["deleted"], calls + 1, f"?cursor={response['cursor']}"
        if not response["more"]:
            break
        await crawl(admin, "a", range(100 + 10 * calls, 110 + 10 * calls))
    assert (deleted, calls) == (10, 4)
    assert len(await keys(admin)) == 30


@pytest.mark.usefixtures("three_at_once")
async def test_jobs_and_reviews_from_after_the_first_call_stay_when_a_group_is_deleted(admin: Api) -> None:
    await rules(admin, {"min_items": 5})
    await crawl(admin, "a", range(10))
    await put(admin, "a")
    await put(admin, "begun", "running")
    await admin.ok("/v1/reviews/shop", [make_review(job_id="a")])
    first = (await admin.delete("/v1/groups/shop")).json
    await crawl(admin, "b", [20, 21])
    await put(admin, "b")
    await admin.ok("/v1/reviews/shop", [make_review(job_id="b")])
    await pages(admin, "/v1/groups/shop?", first["cursor"])
    (job,) = await admin.ok("/v1/groups/shop/jobs")
    assert (job["job_id"], job["state"], job["verdict"], job["review"]["job_id"]) == ("b", "finished", "failed", "b")
    assert (job["items"], job["created"]) == (2, 2)
    group = await admin.ok("/v1/groups/shop")
    assert (group["items"], group["jobs"], group["verdict"]) == (2, 1, "failed")


@pytest.mark.usefixtures("three_at_once")
async def test_a_cursor_of_another_deletion_is_refused(admin: Api) -> None:
    await crawl(admin, "a", range(10))
    cursor = (await admin.delete("/v1/outputs/shop?job_id=a")).json["cursor"]
    for path in ("/v1/outputs/shop?all=true", "/v1/outputs/other?job_id=a", "/v1/groups/shop?"):
        response = await admin.delete(f"{path}&cursor={cursor}")
        assert (response.status, response.problems()) == (422, [(["query", "cursor"], "value_error")])
    assert (await admin.delete("/v1/outputs/shop?job_id=a&cursor=nonsense")).status == 422
    assert len(await keys(admin)) == 7


async def test_a_dry_run_looks_at_no_more_than_it_was_asked_for(admin: Api) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(n) for n in range(3)])
    response = await admin.delete("/v1/outputs/shop?dry_run=true")
    assert (response.status, response.problems()) == (422, [(["query"], "missing")])


async def output_id(api: Api, number: int) -> str:
    page = await api.ok(f"/v1/outputs/shop?key_hash=key-{number}")
    return str(page["items"][0]["output_id"])


async def test_what_a_person_restored_is_not_deleted_by_repeating_the_request(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    lacking = await output_id(admin, 2)
    await crawl(admin, "b", range(2))
    assert (await put(admin, "b", missing="delete"))["deleted"] == 1
    await admin.ok(f"/v1/outputs/shop/{lacking}/restore", {})
    await put(admin, "b", missing="delete")
    assert await keys(admin) == [0, 1, 2]
    assert (await admin.delete(MISSING)).json == {"deleted": 0, "more": False, "cursor": None}
    assert await keys(admin) == [0, 1, 2]


async def test_what_a_person_restored_while_a_crawl_ran_is_not_missing_from_it(admin: Api) -> None:
    await crawl(admin, "a", range(3))
    lacking = await output_id(admin, 2)
    await put(admin, "b", "running")
    await crawl(admin, "b", range(2))
    assert (await admin.delete(f"/v1/outputs/shop/{lacking}")).json == {"deleted": 1}
    await admin.ok(f"/v1/outputs/shop/{lacking}/restore", {})
    assert (await put(admin, "b", missing="delete"))["missing"] == 0
    assert await keys(admin) == [0, 1, 2]
