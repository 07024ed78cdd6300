"""`sds mcp`, driven by the client of the official SDK over a real pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.e2e.conftest import Caller
from tests.support.api import make_output

READING = {"list_groups", "describe_group", "query_outputs", "crawl_changes", "crawl_verdict"}
WRITING = {"approve", "reject", "review"}
MAX_CHARACTERS = 20_000


@asynccontextmanager
async def agent(caller: Caller, *options: str) -> AsyncIterator[Client]:
    """An agent's host that has started the command."""
    environ = {**os.environ, "SDS_URL": caller.address, "SDS_TOKEN": caller.token}
    command = StdioServerParameters(command=sys.executable, args=["-m", "sds_client", "mcp", *options], env=environ)
    async with Client(command) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Return what a tool answers, or the text of its error."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    text = str(getattr(content, "text", content))
    assert len(text) <= MAX_CHARACTERS
    return text.removeprefix(f"Error executing tool {tool}: ") if result.is_error else json.loads(text)


@pytest.fixture
def lamps(caller: Caller) -> Caller:
    """A caller with a crawl of 30 lamps that its rules do not let pass."""
    caller.call("PUT", "groups/lamps", {"rules": [{"min_items": 100}]})
    caller.post("outputs/lamps", [make_output(n, data={"title": f"Lamp {n}", "price": n}) for n in range(30)])
    caller.call("PUT", "groups/lamps/jobs/job-1", {"state": "finished"})
    return caller


async def test_an_agent_finds_its_way_from_the_groups_to_the_items(lamps: Caller) -> None:
    async with agent(lamps) as client:
        (group,) = (await call(client, "list_groups"))["groups"]
        assert (group["group_id"], group["verdict"]) == ("lamps", "failed")
        described = await call(client, "describe_group", group="lamps")
        assert {field["path"] for field in described["fields"]} >= {"title", "price"}
        cheap = await call(
            client, "query_outputs", group="lamps", where=["price<2", "title!=Lamp 0"], fields=["data.title"]
        )
        assert [item["data"] for item in cheap["items"]] == [{"title": "Lamp 1"}]
        verdict = await call(client, "crawl_verdict", group="lamps")
        assert (verdict["job_id"], verdict["verdict"]) == ("job-1", "failed")
        assert verdict["problems"][0]["rule"] == {"min_items": 100}


async def test_an_agent_sees_what_a_crawl_changed(lamps: Caller) -> None:
    again = [make_output(n, root_job_id="job-2", data={"title": f"Lamp {n}", "price": n + (n < 3)}) for n in range(30)]
    lamps.post("outputs/lamps", again)
    lamps.call("PUT", "groups/lamps/jobs/job-2", {"state": "finished"})
    async with agent(lamps) as client:
        summary = await call(client, "crawl_changes", group="lamps", job_id="job-2", summary=True)
        assert (summary["items"], summary["fields"]) == (3, [{"path": "data.price", "changed": 3}])
        first = await call(client, "crawl_changes", group="lamps", job_id="job-2", path="data.price", limit=2)
        assert first["items"][0]["fields"] == [{"path": "data.price", "before": 0, "after": 1}]
        cursor = int(first["more"].partition("cursor=")[2])
        rest = await call(client, "crawl_changes", group="lamps", job_id="job-2", limit=2, cursor=cursor)
        assert (len(first["items"]), len(rest["items"]), rest["more"]) == (2, 1, None)


async def test_answers_are_bounded_and_lead_on_to_the_rest(caller: Caller) -> None:
    long = "x" * 700
    outputs = [make_output(n, data={f"text {i}": long for i in range(3)}) for n in range(40)]
    caller.post("outputs/long", outputs)
    keys: list[str] = []
    async with agent(caller) as client:
        more: dict[str, Any] = {}
        while True:
            page = await call(client, "query_outputs", group="long", limit=40, order="asc", **more)
            keys += [item["key_hash"] for item in page["items"]]
            if page["more"] is None:
                break
            assert "cursor=" in page["more"]
            more = {"cursor": int(page["more"].partition("cursor=")[2].partition(",")[0])}
        assert page["items"][0]["data"]["text 0"].endswith("… (200 more characters)")
    assert keys == [output["key_hash"] for output in outputs]


async def test_an_item_that_is_too_long_for_an_answer_keeps_its_ids(caller: Caller) -> None:
    data = {f"table {i}": {f"cell {j}": "x" * 600 for j in range(12)} for i in range(80)}
    caller.post("outputs/long", [make_output(1, data=data)])
    async with agent(caller) as client:
        (item,) = (await call(client, "query_outputs", group="long"))["items"]
    assert {"id", "output_id", "source_url", "key_hash"} <= set(item)
    assert "table 0" in item["data"]


async def test_groups_are_listed_page_by_page(caller: Caller) -> None:
    for number in range(3):
        caller.post(f"outputs/group-{number}", [make_output(1)])
    async with agent(caller) as client:
        first = await call(client, "list_groups", limit=2)
        cursor = first["more"].partition("cursor=")[2].strip("'")
        rest = await call(client, "list_groups", limit=2, cursor=cursor)
    names = [group["group_id"] for group in [*first["groups"], *rest["groups"]]]
    assert sorted(names) == ["group-0", "group-1", "group-2"]
    assert rest["more"] is None


async def test_errors_are_the_services_own(lamps: Caller) -> None:
    async with agent(lamps) as client:
        assert (await call(client, "query_outputs", group="lamps", where=["price"])).startswith("422: query.where")
        assert (await call(client, "crawl_verdict", group="lamps", job_id="monday")).startswith("404: path.job_id")
        assert "no crawls" in await call(client, "crawl_verdict", group="empty")


async def test_nothing_is_written_unless_it_is_started_with_write(lamps: Caller) -> None:
    async with agent(lamps) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)


async def test_with_write_an_agent_approves_rejects_and_reviews(lamps: Caller) -> None:
    one, two = lamps.get("outputs/lamps?limit=2")["items"]
    async with agent(lamps, "--write") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | WRITING
        approved = await call(client, "approve", group="lamps", output_ids=[one["output_id"]])
        assert [item["result"] for item in approved["items"]] == ["updated"]
        await call(client, "reject", group="lamps", output_ids=[two["output_id"]], reason="wrong price")
        await call(client, "review", group="lamps", job_id="job-1", status="rejected", comment="Half is missing.")
    assert lamps.get(f"outputs/lamps/{one['output_id']}")["is_approved"] is True
    assert lamps.get(f"outputs/lamps/{two['output_id']}")["tags"]["rejected"] == "wrong price"
    (review,) = lamps.get("reviews/lamps")
    assert (review["status"], review["comment"]) == ("rejected", "Half is missing.")
