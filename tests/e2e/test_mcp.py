"""`sds mcp`, driven by the client of the official SDK over a real pipe: one process that reads, and one that writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters

from tests.e2e.conftest import Caller
from tests.support.api import make_output

READING = {"list_groups", "describe_group", "query_outputs", "crawl_changes", "crawl_verdict"}
WRITING = {"approve", "reject", "review"}
MAX_CHARACTERS = 20_000


class Agent:
    """An agent's host that has started the command."""

    def __init__(self, run: Callable[..., Any], client: Client) -> None:
        self._run, self._client = run, client

    def tools(self) -> dict[str, Any]:
        """Return the tools that the server offers, by name."""
        return {tool.name: tool for tool in self._run(self._client.list_tools).tools}

    def call(self, tool: str, **arguments: Any) -> Any:
        """Return what a tool answers, or the text of its error."""
        result = self._run(self._client.call_tool, tool, arguments)
        (content,) = result.content
        text = str(getattr(content, "text", content))
        assert len(text) <= MAX_CHARACTERS
        return text.removeprefix(f"Error executing tool {tool}: ") if result.is_error else json.loads(text)

    def walk(self, tool: str, name: str, **arguments: Any) -> Iterator[Any]:
        """Yield what the list `name` holds in all answers, going on as `more` says."""
        while True:
            answer = self.call(tool, **arguments)
            yield from answer[name]
            if answer["more"] is None:
                return
            parameter, _, value = answer["more"].partition("call again with ")[2].partition(",")[0].partition("=")
            arguments[parameter] = value.strip("'") if "'" in value else int(value)


@contextmanager
def agent(caller: Caller, *options: str) -> Iterator[Agent]:
    """Start the command with a caller's token."""
    environ = {**os.environ, "SDS_URL": caller.address, "SDS_TOKEN": caller.token}
    command = StdioServerParameters(command=sys.executable, args=["-m", "sds_client", "mcp", *options], env=environ)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(command)) as client:
        yield Agent(portal.call, client)


@pytest.fixture(scope="module")
def caller(make_caller: Callable[..., Caller]) -> Caller:
    """A caller for all tests, each of which has groups of its own."""
    return make_caller()


@pytest.fixture(scope="module")
def reader(caller: Caller) -> Iterator[Agent]:
    """An agent that may only look."""
    with agent(caller) as reader:
        yield reader


@pytest.fixture(scope="module")
def judge(caller: Caller) -> Iterator[Agent]:
    """An agent that may also approve, reject and review."""
    with agent(caller, "--write") as judge:
        yield judge


@pytest.fixture
def lamps(caller: Caller, request: pytest.FixtureRequest) -> str:
    """A group with a crawl of 30 lamps that its rules do not let pass."""
    group = f"lamps of {request.node.name}"
    caller.call("PUT", f"groups/{quote(group)}", {"rules": [{"min_items": 100}]})
    lamps = [make_output(n, data={"title": f"Lamp {n}", "price": n}) for n in range(30)]
    caller.post(f"outputs/{quote(group)}", lamps)
    caller.call("PUT", f"groups/{quote(group)}/jobs/job-1", {"state": "finished"})
    return group


def test_an_agent_finds_its_way_from_the_groups_to_the_items(reader: Agent, lamps: str) -> None:
    (group,) = [group for group in reader.walk("list_groups", "groups") if group["group_id"] == lamps]
    assert (group["items"], group["verdict"]) == (30, "failed")
    described = reader.call("describe_group", group=lamps)
    assert {field["path"] for field in described["fields"]} >= {"title", "price"}
    where = ["price<2", "title!=Lamp 0"]
    cheap = reader.call("query_outputs", group=lamps, where=where, fields=["data.title"])
    assert [item["data"] for item in cheap["items"]] == [{"title": "Lamp 1"}]
    verdict = reader.call("crawl_verdict", group=lamps)
    assert (verdict["job_id"], verdict["verdict"]) == ("job-1", "failed")
    assert verdict["problems"][0]["rule"] == {"min_items": 100}


def test_an_agent_sees_what_a_crawl_changed(reader: Agent, caller: Caller, lamps: str) -> None:
    again = [make_output(n, root_job_id="job-2", data={"title": f"Lamp {n}", "price": n + (n < 3)}) for n in range(30)]
    caller.post(f"outputs/{quote(lamps)}", again)
    caller.call("PUT", f"groups/{quote(lamps)}/jobs/job-2", {"state": "finished"})
    summary = reader.call("crawl_changes", group=lamps, job_id="job-2", summary=True)
    assert (summary["items"], summary["fields"]) == (3, [{"path": "data.price", "changed": 3}])
    first = reader.call("crawl_changes", group=lamps, job_id="job-2", path="data.price", limit=2)
    assert first["items"][0]["fields"] == [{"path": "data.price", "before": 0, "after": 1}]
    assert len(first["items"]) == 2
    changed = reader.walk("crawl_changes", "items", group=lamps, job_id="job-2", limit=2)
    assert [item["key_hash"] for item in changed] == ["key-0", "key-1", "key-2"]


def test_answers_are_bounded_and_lead_on_to_the_rest(reader: Agent, caller: Caller) -> None:
    outputs = [make_output(n, data={f"text {i}": "x" * 700 for i in range(3)}) for n in range(40)]
    caller.post("outputs/long", outputs)
    page = reader.call("query_outputs", group="long", limit=40, order="asc")
    assert 0 < len(page["items"]) < 40
    assert page["items"][0]["data"]["text 0"].endswith("… (200 more characters)")
    keys = [item["key_hash"] for item in reader.walk("query_outputs", "items", group="long", limit=40, order="asc")]
    assert keys == [output["key_hash"] for output in outputs]


def test_changes_are_bounded_and_lead_on_to_the_rest(reader: Agent, caller: Caller) -> None:
    for job, letter in (("job-1", "x"), ("job-2", "y")):
        data = {f"text {i}": letter * 700 for i in range(3)}
        caller.post("outputs/rewritten", [make_output(n, root_job_id=job, data=data) for n in range(40)])
        caller.call("PUT", f"groups/rewritten/jobs/{job}", {"state": "finished"})
    arguments = {"group": "rewritten", "job_id": "job-2", "limit": 40}
    assert 0 < len(reader.call("crawl_changes", **arguments)["items"]) < 40
    assert len([*reader.walk("crawl_changes", "items", **arguments)]) == 40


def test_an_item_that_is_too_long_for_an_answer_keeps_its_ids(reader: Agent, caller: Caller) -> None:
    data = {f"table {i}": {f"cell {j}": "x" * 600 for j in range(12)} for i in range(80)}
    caller.post("outputs/huge", [make_output(1, data=data)])
    (item,) = reader.call("query_outputs", group="huge")["items"]
    assert {"id", "output_id", "source_url", "key_hash"} <= set(item)
    assert "table 0" in item["data"]


def test_many_fields_are_described_part_by_part(reader: Agent, caller: Caller) -> None:
    caller.post("outputs/wide", [make_output(1, data={f"field {i}": "x" * 400 for i in range(90)})])
    caller.call("PUT", "groups/wide/jobs/job-1", {"state": "finished"})
    first = reader.call("describe_group", group="wide")
    assert 0 < len(first["fields"]) < 90
    paths = [field["path"] for field in reader.walk("describe_group", "fields", group="wide")]
    assert sorted(paths) == sorted(f"field {i}" for i in range(90))
    assert 0 < len(reader.call("crawl_verdict", group="wide")["fields"]) <= 90


def test_groups_are_listed_page_by_page(reader: Agent, caller: Caller) -> None:
    for number in range(3):
        caller.post(f"outputs/group-{number}", [make_output(1)])
    names = [group["group_id"] for group in reader.walk("list_groups", "groups", limit=2)]
    assert {"group-0", "group-1", "group-2"} <= {*names}
    assert len(names) == len({*names}) == len(caller.get("groups"))


def test_errors_are_the_services_own(reader: Agent, lamps: str) -> None:
    assert reader.call("query_outputs", group=lamps, where=["price"]).startswith("422: query.where")
    assert reader.call("crawl_verdict", group=lamps, job_id="monday").startswith("404: path.job_id")
    assert reader.call("crawl_changes", group=lamps, job_id="monday").startswith("404: path.job_id")
    assert "no crawls" in reader.call("crawl_verdict", group="empty")
    assert "less than or equal to 100" in reader.call("query_outputs", group=lamps, limit=101)


def test_nothing_is_written_unless_it_is_started_with_write(reader: Agent, judge: Agent) -> None:
    assert {*reader.tools()} == READING
    assert "Unknown tool" in reader.call("approve", group="lamps", output_ids=["1"])
    assert {*judge.tools()} == READING | WRITING
    read_only = {name for name, tool in judge.tools().items() if tool.annotations.read_only_hint}
    assert read_only == READING


def test_with_write_an_agent_approves_rejects_and_reviews(judge: Agent, caller: Caller, lamps: str) -> None:
    path = quote(lamps)
    one, two = caller.get(f"outputs/{path}?limit=2")["items"]
    approved = judge.call("approve", group=lamps, output_ids=[one["output_id"]])
    assert [item["result"] for item in approved["items"]] == ["updated"]
    judge.call("reject", group=lamps, output_ids=[two["output_id"]], reason="wrong price")
    judge.call("review", group=lamps, job_id="job-1", status="rejected", comment="Half is missing.")
    assert caller.get(f"outputs/{path}/{one['output_id']}")["is_approved"] is True
    assert caller.get(f"outputs/{path}/{two['output_id']}")["tags"]["rejected"] == "wrong price"
    (review,) = caller.get(f"reviews/{path}")
    assert (review["status"], review["comment"]) == ("rejected", "Half is missing.")


def test_with_write_a_token_that_only_reads_changes_nothing(make_caller: Callable[..., Caller], caller: Caller) -> None:
    caller.post("outputs/kept", [make_output(1)])
    (item,) = caller.get("outputs/kept")["items"]
    with agent(make_caller(caller.organization_id, "read"), "--write") as reading:
        refused = reading.call("approve", group="kept", output_ids=[item["output_id"]])
    assert refused.startswith("403: ")
    assert caller.get("outputs/kept")["items"] == [item]
