"""The jobs of a group, and what the fields of its data hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, make_output, make_review

NOTHING = {"items": 0, "created": 0, "changed": 0, "unchanged": 0}


async def jobs(api: Api, group: str = "shop") -> dict[str, dict[str, Any]]:
    """Return the counts of each job, newest first."""
    found = await api.ok(f"/v1/groups/{group}/jobs")
    return {job["job_id"]: {name: job[name] for name in NOTHING} for job in found}


# -- jobs ---------------------------------------------------------------------------------------


async def test_a_group_that_does_not_exist_has_no_jobs(admin: Api) -> None:
    assert await admin.ok("/v1/groups/nothing/jobs") == []


async def test_jobs_count_what_they_did_and_hold(admin: Api) -> None:
    outputs = [make_output(n, root_job_id="job-1") for n in range(4)]
    await admin.ok("/v1/outputs/shop", outputs)
    assert await jobs(admin) == {"job-1": {"items": 4, "created": 4, "changed": 0, "unchanged": 0}}
    second = [
        make_output(0, root_job_id="job-2"),
        make_output(1, root_job_id="job-2", data={"title": "New"}),
        make_output(9, root_job_id="job-2"),
    ]
    await admin.ok("/v1/outputs/shop", second)
    assert await jobs(admin) == {
        "job-2": {"items": 3, "created": 1, "changed": 1, "unchanged": 1},
        "job-1": {"items": 2, "created": 4, "changed": 0, "unchanged": 0},
    }
    # Newest first.
    assert [*await jobs(admin)] == ["job-2", "job-1"]
    for job, counts in (await jobs(admin)).items():
        page = await admin.ok(f"/v1/outputs/shop?job_id={job}")
        assert len(page["items"]) == counts["items"]


async def test_a_job_tells_its_first_and_last_write(admin: Api) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(0)])
    first = (await admin.ok("/v1/outputs/shop"))["items"][0]["update_date"]
    (job,) = await admin.ok("/v1/groups/shop/jobs")
    assert (job["first_write"], job["last_write"]) == (first, first)
    await admin.ok("/v1/outputs/shop", [make_output(1)])
    last = (await admin.ok("/v1/outputs/shop"))["items"][-1]["update_date"]
    (job,) = await admin.ok("/v1/groups/shop/jobs")
    assert (job["first_write"], job["last_write"]) == (first, last)


async def test_a_job_that_has_begun_and_written_nothing_has_no_last_write(admin: Api) -> None:
    await admin.put("/v1/groups/shop/jobs/monday", {"state": "running"})
    (job,) = await admin.ok("/v1/groups/shop/jobs")
    assert (job["first_write"], job["last_write"]) == (None, None)


async def test_a_patch_is_nothing_that_a_job_did_and_a_deletion_takes_from_what_it_holds(admin: Api) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(n) for n in range(3)])
    await admin.patch("/v1/outputs/shop", [{"key_hash": "key-0", "is_approved": True}])
    await admin.delete("/v1/outputs/shop?url=https://shop.example/p/2")
    assert await jobs(admin) == {"job-1": {"items": 2, "created": 3, "changed": 0, "unchanged": 0}}
    await admin.ok("/v1/outputs/shop", [make_output(2, root_job_id="job-2")])
    assert (await jobs(admin))["job-2"] == {"items": 1, "created": 1, "changed": 0, "unchanged": 0}
    assert (await jobs(admin))["job-1"]["items"] == 2


async def test_a_job_shows_its_latest_review(admin: Api) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(n, root_job_id=f"job-{n}") for n in range(2)])
    await admin.ok("/v1/reviews/shop", [make_review(job_id="job-1", status=status) for status in ("open", "approved")])
    found = {job["job_id"]: job["review"] for job in await admin.ok("/v1/groups/shop/jobs")}
    assert found["job-0"] is None
    assert found["job-1"] == {**(await admin.ok("/v1/reviews/shop"))[0], "author": ""}
    assert found["job-1"]["status"] == "approved"


@pytest.mark.parametrize("job_id", ["a.b", "$set", "100%", "%2E", "ü ✓", "a/b"])
async def test_a_job_may_have_any_name(admin: Api, job_id: str) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(root_job_id=job_id)])
    assert await jobs(admin) == {job_id: {**NOTHING, "items": 1, "created": 1}}


# -- fields -------------------------------------------------------------------------------------


async def fields(api: Api, query: str = "") -> dict[str, dict[str, Any]]:
    body = await api.ok(f"/v1/groups/shop/fields{query}")
    return {field.pop("path"): field for field in body["fields"]}


async def test_a_group_that_does_not_exist_has_no_fields(admin: Api) -> None:
    assert await admin.ok("/v1/groups/nothing/fields") == {"items": 0, "fields": []}


async def test_each_path_has_its_fill_rate_types_bounds_and_examples(admin: Api) -> None:
    data: list[dict[str, Any]] = [
        {"title": "b", "price": {"amount": 2, "currency": "EUR"}, "sizes": [1], "stock": True},
        {"title": "a", "price": {"amount": 1.5}, "sizes": [], "stock": None},
        {"title": "", "price": {"amount": 10, "currency": ""}},
        {"title": "b"},
    ]
    await admin.ok("/v1/outputs/shop", [make_output(n, data=value) for n, value in enumerate(data)])
    found = await fields(admin)
    assert set(found) == {"title", "price", "price.amount", "price.currency", "sizes", "stock"}
    title = found["title"]
    assert (title["count"], title["fill_rate"], title["types"]) == (3, 0.75, {"string": 4})
    assert (title["min"], title["max"], set(title["examples"])) == ("a", "b", {"a", "b"})
    amount = found["price.amount"]
    assert (amount["count"], amount["types"]) == (3, {"integer": 2, "number": 1})
    assert (amount["min"], amount["max"]) == (1.5, 10)
    assert found["price"]["types"] == {"object": 3} and found["price"]["fill_rate"] == 0.75
    assert (found["price.currency"]["fill_rate"], found["price.currency"]["examples"]) == (0.25, ["EUR"])
    assert (found["sizes"]["types"], found["sizes"]["count"], found["sizes"]["min"]) == ({"array": 2}, 1, None)
    assert (found["stock"]["types"], found["stock"]["examples"]) == ({"boolean": 1, "null": 1}, [True])


async def test_only_one_job_is_described(admin: Api) -> None:
    outputs = [make_output(n, root_job_id=f"job-{n % 2}", data={f"of_{n % 2}": n}) for n in range(6)]
    await admin.ok("/v1/outputs/shop", outputs)
    found = await fields(admin, "?job_id=job-1")
    assert set(found) == {"of_1"}
    assert (found["of_1"]["count"], found["of_1"]["min"], found["of_1"]["max"]) == (3, 1, 5)


async def test_the_newest_items_are_described(admin: Api) -> None:
    await admin.ok("/v1/outputs/shop", [make_output(n, data={"n": n}) for n in range(6)])
    await admin.delete("/v1/outputs/shop?url=https://shop.example/p/5")
    body = await admin.ok("/v1/groups/shop/fields?limit=2")
    assert (body["items"], body["fields"][0]["min"], body["fields"][0]["max"]) == (2, 3, 4)


@pytest.mark.parametrize(
    ("query", "kind"),
    [("limit=0", "greater_than_equal"), ("limit=1001", "less_than_equal"), ("job_id=" + "x" * 257, "string_too_long")],
)
async def test_invalid_values_are_refused(admin: Api, query: str, kind: str) -> None:
    response = await admin.get(f"/v1/groups/shop/fields?{query}")
    assert (response.status, response.problems()) == (422, [(["query", query.partition("=")[0]], kind)])


@pytest.mark.slow
async def test_a_long_comment_is_cut_in_the_list_of_jobs_and_whole_in_that_of_reviews(admin: Api) -> None:
    comment = "😀" * 65_536
    jobs = [f"job-{n}" for n in range(30)]
    await admin.ok("/v1/outputs/shop", [make_output(n, root_job_id=job) for n, job in enumerate(jobs)])
    for job in jobs:
        await admin.ok(
            "/v1/reviews/shop", [make_review(job_id=job, comment="first"), make_review(job_id=job, comment=comment)]
        )
    response = await admin.get("/v1/groups/shop/jobs")
    assert len(response.body) < 30 * 5000
    assert {job["review"]["comment"] for job in response.json} == {comment[:1000]}
    reviews = await admin.ok("/v1/reviews/shop")
    assert [review["job_id"] for review in reviews] == jobs[::-1]
    assert {review["comment"] for review in reviews} == {comment}
