"""GET and POST /v1/reviews/{group_id}."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import MakeApi
from tests.support.api import Api, make_review
from tests.support.contract import HeldApi

PATH = "/v1/reviews/group-1"


@pytest.fixture
def api(api: Api) -> Api:
    return HeldApi(api.client, api.token, api.organization_id)


async def test_a_review_comes_out_with_exactly_the_fields_of_the_contract(api: Api) -> None:
    await api.ok(PATH, [make_review(review_date="2026-01-31T13:00:00+01:00")])
    (review,) = await api.ok(PATH)
    assert uuid.UUID(review.pop("review_id"))
    assert review == {
        "job_id": "job-1",
        "review_date": "2026-01-31T12:00:00.000Z",
        "status": "approved",
        "comment": "Looks good.",
    }


async def test_the_history_has_every_review_newest_first_with_its_author(make_api: MakeApi, stranger: Api) -> None:
    ada = await make_api(label="ada")
    unnamed = await make_api(ada.organization_id)
    for writer, status in ((ada, "rejected"), (unnamed, "open"), (ada, "approved")):
        await writer.ok(PATH, [make_review(status=status, review_date="2026-01-31")])
    await ada.ok(PATH, [make_review(job_id="job-0", review_date="2026-01-30")])
    caller = HeldApi(ada.client, ada.token, ada.organization_id)
    history = await caller.ok(f"{PATH}?history=true")
    assert [(review["job_id"], review["status"], review["author"]) for review in history] == [
        ("job-1", "approved", "ada"),
        ("job-1", "open", ""),
        ("job-1", "rejected", "ada"),
        ("job-0", "approved", "ada"),
    ]
    assert [review["status"] for review in await caller.ok(PATH)] == ["approved", "approved"]
    assert await stranger.ok(f"{PATH}?history=true") == []


async def test_the_history_comes_in_pages(api: Api) -> None:
    await api.ok(PATH, [make_review(comment=str(number)) for number in range(7)])
    comments, url = [], f"{PATH}?history=true&limit=3"
    while url:
        response = await api.get(url)
        comments.append([review["comment"] for review in response.json])
        link = response.headers.get("Link")
        url = "/" + link.partition(">")[0].split("/", 3)[3] if link else ""
    assert comments == [["6", "5", "4"], ["3", "2", "1"], ["0"]]


async def test_the_response_to_a_post_has_each_review_in_the_order_sent(api: Api) -> None:
    written = await api.ok(PATH, [make_review(job_id=job) for job in "bca"])
    assert written["created"] == 3
    assert [review["job_id"] for review in written["items"]] == ["b", "c", "a"]
    assert len({review["review_id"] for review in written["items"]}) == 3
    by_job = {review["job_id"]: review for review in await api.ok(PATH)}
    assert [by_job[job] for job in "bca"] == written["items"]


async def test_a_group_without_reviews_is_an_empty_list(api: Api) -> None:
    assert await api.ok("/v1/reviews/nobody-knows-it") == []


async def test_an_empty_array_adds_nothing(api: Api) -> None:
    assert await api.ok(PATH, []) == {"created": 0, "items": []}


@pytest.mark.parametrize("field", ["job_id", "status"])
async def test_required_fields_are_required(api: Api, field: str) -> None:
    review = make_review()
    del review[field]
    response = await api.post(PATH, [make_review(job_id="fine"), review])
    assert (response.status, response.problems()) == (422, [(["body", "1", field], "missing")])
    assert await api.ok(PATH) == []


async def test_fields_left_out_have_their_defaults(api: Api) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    await api.ok(PATH, [{"job_id": "job-1", "status": "approved"}])
    (review,) = await api.ok(PATH)
    assert review["comment"] == ""
    assert before <= datetime.fromisoformat(review["review_date"]) <= datetime.now(UTC)


async def test_faulty_fields_are_named(api: Api) -> None:
    for field, value, kind in [
        ("job_id", 1, "string_type"),
        ("job_id", "", "string_too_short"),
        ("job_id", "j" * 257, "string_too_long"),
        ("status", True, "string_type"),
        ("status", "", "string_too_short"),
        ("status", "s" * 65, "string_too_long"),
        ("comment", None, "string_type"),
        ("comment", "c" * 65537, "string_too_long"),
        ("review_date", 1, "datetime_type"),
        ("review_date", "yesterday", "datetime_invalid"),
        ("review_id", "mine", "unknown_field"),
    ]:
        response = await api.post(PATH, [make_review(job_id="fine"), make_review(**{field: value})])
        assert (response.status, response.problems()) == (422, [(["body", "1", field], kind)]), (field, value)
        assert await api.ok(PATH) == [], (field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", "j" * 256),
        ("status", "s" * 64),
        ("status", "wymaga poprawek ✍"),
        ("comment", "c" * 65536),
        ("comment", 'Line one\nline "two"\t漢字'),
    ],
    ids=lambda value: value[:20],
)
async def test_fields_come_out_as_they_went_in(api: Api, field: str, value: str) -> None:
    await api.ok(PATH, [make_review(**{field: value})])
    (review,) = await api.ok(PATH)
    assert review[field] == value


@pytest.mark.parametrize(
    ("sent", "out"),
    [
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.5-05:00", "2026-01-31T17:00:00.500Z"),
    ],
)
async def test_review_date_comes_out_in_utc_with_milliseconds(api: Api, sent: str, out: str) -> None:
    await api.ok(PATH, [make_review(review_date=sent)])
    (review,) = await api.ok(PATH)
    assert review["review_date"] == out


async def test_the_latest_review_of_each_job_is_returned_newest_first(api: Api) -> None:
    days = [("a", 3, "old"), ("b", 9, "latest of b"), ("a", 5, "latest of a"), ("c", 7, "latest of c"), ("b", 1, "old")]
    for job, day, comment in days:
        await api.ok(PATH, [make_review(job_id=job, comment=comment, review_date=f"2026-01-0{day}")])
    reviews = await api.ok(PATH)
    assert [(r["job_id"], r["comment"]) for r in reviews] == [
        ("b", "latest of b"),
        ("c", "latest of c"),
        ("a", "latest of a"),
    ]


async def test_of_reviews_with_one_date_the_one_stored_last_is_the_latest(api: Api) -> None:
    same = {"review_date": "2026-01-31"}
    await api.ok(PATH, [make_review(comment=c, **same) for c in ("1", "2")])
    await api.ok(PATH, [make_review(comment="3", **same), make_review(job_id="job-2", **same)])
    assert [(r["job_id"], r["comment"]) for r in await api.ok(PATH)] == [("job-2", "Looks good."), ("job-1", "3")]
    await api.ok(PATH, [make_review(comment="4", **same)])
    assert [(r["job_id"], r["comment"]) for r in await api.ok(PATH)] == [("job-1", "4"), ("job-2", "Looks good.")]


async def test_groups_have_reviews_of_their_own(api: Api) -> None:
    await api.ok(PATH, [make_review(comment="one")])
    await api.ok("/v1/reviews/group-2", [make_review(comment="two")])
    assert [review["comment"] for review in await api.ok(PATH)] == ["one"]


async def test_a_group_id_has_at_most_256_characters(api: Api) -> None:
    for response in (
        await api.get(f"/v1/reviews/{'g' * 257}"),
        await api.post(f"/v1/reviews/{'g' * 257}", [make_review()]),
    ):
        assert (response.status, response.problems()) == (422, [(["path", "group_id"], "string_too_long")])


@pytest.mark.slow
async def test_a_thousand_reviews_are_taken_at_once_and_one_more_is_not(api: Api) -> None:
    reviews = [make_review(job_id=f"job-{n}") for n in range(1001)]
    response = await api.post(PATH, reviews)
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])
    assert (await api.ok(PATH, reviews[:1000]))["created"] == 1000
    assert len(await api.ok(PATH)) == 1000
