"""Crawls: finish a job, judge it by rules, and delete what it did not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sds_client import AsyncClient, Client
from sds_client.__main__ import main
from tests.support.api import make_output, make_outputs
from tests.support.processes import ServiceProcess, make_token

pytestmark = pytest.mark.usefixtures("environment")


def crawl(client: Client, job: str, count: int) -> None:
    client.push("shop", [{**item, "root_job_id": job} for item in make_outputs(count)])


def test_a_finished_job_has_counts_and_deletes_what_it_did_not_see(client: Client) -> None:
    crawl(client, "monday", 5)
    assert client.finish_job("shop", "monday")["state"] == "finished"
    crawl(client, "tuesday", 3)
    job = client.finish_job("shop", "tuesday", delete_missing=True)
    assert (job["items"], job["unchanged"], job["missing"], job["deleted"]) == (3, 3, 2, 2)
    assert client.group("shop")["items"] == 3
    assert (job["held_back"], job["warnings"]) == (None, [])
    of_put = ("held_back", "warnings")
    assert client.job("shop", "tuesday") == {name: value for name, value in job.items() if name not in of_put}


def test_settings_of_a_group_that_are_left_out_stay(client: Client) -> None:
    client.set_group("shop", rules=[{"min_items": 4}], ignore=["scraped_at"])
    group = client.set_group("shop", history_days=7)
    assert (group["rules"], group["ignore"], group["history_days"]) == ([{"min_items": 4}], ["scraped_at"], 7)


def test_a_failed_verdict_keeps_everything_and_is_an_exit_code(client: Client, capsys: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"min_items": 4}]))
    assert main(["rules", "set", "shop", str(rules)]) == 0
    assert main(["rules", "show", "shop"]) == 0
    assert capsys.readouterr().out == '1 rule in group shop\n[\n  {"min_items": 4}\n]\n'
    crawl(client, "monday", 5)
    assert main(["jobs", "finish", "shop", "monday"]) == 0
    assert capsys.readouterr().out == "monday finished: 5 created, 0 changed, 0 unchanged; verdict: passed\n"
    crawl(client, "tuesday", 3)
    assert main(["jobs", "finish", "shop", "tuesday", "--delete-missing"]) == 4
    out = capsys.readouterr().out
    assert out.startswith("tuesday finished: 0 created, 0 changed, 3 unchanged, 2 missing; verdict: failed\n  ")
    assert client.group("shop")["items"] == 5
    assert main(["jobs", "show", "shop", "tuesday", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "failed"


@pytest.mark.parametrize("rules", [[], [{"min_items": 4}, {"path": "price", "min_fill": 0.5}]])
def test_rules_are_set_as_they_were_shown(client: Client, capsys: Any, tmp_path: Path, rules: list[Any]) -> None:
    client.set_group("shop", rules=rules)
    assert main(["rules", "show", "shop"]) == 0
    (tmp_path / "rules.json").write_text(capsys.readouterr().out)
    assert main(["rules", "set", "copy", str(tmp_path / "rules.json")]) == 0
    assert client.group("copy")["rules"] == client.group("shop")["rules"] == rules


def test_a_job_of_a_group_that_is_not_there_is_not_finished(client: Client, capsys: Any) -> None:
    crawl(client, "monday", 1)
    assert main(["jobs", "finish", "shpo", "monday"]) == 1
    assert capsys.readouterr().err == "error: there is no group 'shpo' yet: nothing was stored; did you mean 'shop'?\n"
    assert client.jobs("shpo") == []


def test_a_job_that_began_without_items_is_finished(client: Client, capsys: Any) -> None:
    client.finish_job("shop", "monday", state="running")
    assert main(["jobs", "finish", "shop", "monday", "--failed"]) == 0
    assert client.job("shop", "monday")["state"] == "failed"


def test_the_retention_of_a_group_that_is_not_there_yet_is_set_with_a_warning(client: Client, capsys: Any) -> None:
    assert main(["groups", "retention", "shop", "30"]) == 0
    assert capsys.readouterr().err.startswith("warning: there is no group 'shop' yet: this setting is for its later")
    assert client.group("shop")["retention_days"] == 30
    crawl(client, "monday", 1)
    assert main(["groups", "retention", "shop", "31"]) == 0
    assert capsys.readouterr().err == ""


def test_a_token_that_may_not_read_finishes_a_job(
    client: Client, mongo_url: str, organization: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl(client, "monday", 1)
    monkeypatch.setenv("SDS_TOKEN", make_token(mongo_url, organization, "write"))
    assert main(["jobs", "finish", "shop", "monday"]) == 0


def test_rules_that_are_not_json_are_refused_before_anything_is_sent(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text("[")
    assert main(["rules", "set", "shop", str(tmp_path / "rules.json")]) == 1
    assert "rules.json is not JSON" in capsys.readouterr().err


def test_outputs_are_chosen_by_fields_and_by_what_a_job_did(client: Client, capsys: Any) -> None:
    crawl(client, "monday", 3)
    client.push("shop", [{**make_outputs(1, "Changed")[0], "root_job_id": "tuesday"}])
    assert [item["key_hash"] for item in client.outputs("shop", job_id="tuesday", change="missing")] == [
        "key-1",
        "key-2",
    ]
    assert [item["key_hash"] for item in client.outputs("shop", where="title:Lamp 1")] == ["key-1"]
    assert list(client.outputs("shop", missing="title")) == []
    assert main(["outputs", "approve", "shop", "--where", "title:Lamp 2"]) == 0
    assert capsys.readouterr().out == "1 updated, 0 unchanged\n"


def lamp(number: int, price: Any, **data: Any) -> dict[str, Any]:
    return make_output(number, key_hash=f"key-{number}", data={"price": {"amount": price}, **data})


@pytest.fixture
def two_crawls(client: Client) -> Client:
    """A client of a group in which the crawl `tuesday` has changed two prices and a title, and a later one a price."""
    crawls = {
        "monday": [lamp(1, 10, title="Oak"), lamp(2, 20, title="Ash"), lamp(3, 30)],
        "tuesday": [
            lamp(1, 12, title="Elm, with a shade of linen and a cord of three metres"),
            lamp(2, None),
            lamp(4, 4),
        ],
        "wednesday": [lamp(1, 14, title="Elm")],
    }
    for job, items in crawls.items():
        client.push("shop", [{**item, "root_job_id": job} for item in items])
    return client


def test_what_a_job_changed_is_yielded_item_by_item(two_crawls: Client) -> None:
    first, second = two_crawls.job_changes("shop", "tuesday")
    assert (first["key_hash"], second["key_hash"]) == ("key-1", "key-2")
    assert second["fields"] == [
        {"path": "data.price.amount", "before": 20, "after": None},
        {"path": "data.title", "before": "Ash"},
    ]
    prices = list(two_crawls.job_changes("shop", "tuesday", path="price.amount"))
    assert [item["fields"][0].get("after") for item in prices] == [12, None]
    assert list(two_crawls.job_changes("shop", "tuesday", path="tags")) == []
    assert two_crawls.job_changes_summary("shop", "tuesday") == {
        "items": 2,
        "fields": [{"path": "data.price.amount", "changed": 2}, {"path": "data.title", "changed": 2}],
        "more": False,
    }
    assert two_crawls.job_changes_summary("shop", "tuesday", path="price")["fields"] == [
        {"path": "data.price.amount", "changed": 2}
    ]


def test_changes_of_more_items_than_a_page_holds_come_in_order(client: Client) -> None:
    for job, price in (("monday", 1), ("tuesday", 2)):
        client.push("shop", [{**lamp(number, price), "root_job_id": job} for number in range(230)])
    ids = [item["id"] for item in client.job_changes("shop", "tuesday")]
    assert len(set(ids)) == 230
    assert ids == sorted(ids)


async def test_the_asynchronous_client_yields_what_a_job_changed(
    two_crawls: Client, running: ServiceProcess, token: str
) -> None:
    async with AsyncClient(running.url, token) as client:
        changes = [item["key_hash"] async for item in client.job_changes("shop", "tuesday", path="title")]
        assert changes == ["key-1", "key-2"]
        assert (await client.job_changes_summary("shop", "tuesday"))["items"] == 2


def test_what_a_job_changed_is_a_table_for_people_and_json_for_programs(two_crawls: Client, capsys: Any) -> None:
    command = ["changes", "shop", "--job", "tuesday"]
    assert main(command) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["KEY", "FIELD", "BEFORE", "AFTER"]
    assert [line.split() for line in table[3:]] == [
        ["key-2", "data.price.amount", "20", "null"],
        ["key-2", "data.title", "Ash", "-"],
    ]
    assert table[2].endswith("Oak     Elm, with a shade of linen and a cord o…")
    assert main([*command, "--path", "title", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == list(two_crawls.job_changes("shop", "tuesday", path="title"))
    assert main([*command, "--limit", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert [item["key_hash"] for item in json.loads(printed.out)] == ["key-1"]
    assert printed.err == "warning: only the first 1 item; --limit shows more\n"


@pytest.mark.usefixtures("two_crawls")
def test_what_a_job_changed_is_summed_up(capsys: Any) -> None:
    command = ["changes", "shop", "--summary", "--job"]
    assert main([*command, "tuesday"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["FIELD", "ITEMS"],
        ["data.price.amount", "2"],
        ["data.title", "2"],
        ["2", "items", "changed"],
    ]
    assert main([*command, "tuesday", "--path", "price", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fields"] == [{"path": "data.price.amount", "changed": 2}]
    assert main([*command, "monday"]) == 0
    assert capsys.readouterr().out == "job 'monday' did not change any item\n"


@pytest.mark.usefixtures("two_crawls")
def test_the_changes_of_a_job_that_does_not_exist_are_an_error(capsys: Any) -> None:
    assert main(["changes", "shop", "--job", "thursday"]) == 1
    assert "There is no such job" in capsys.readouterr().err
    assert main(["changes", "shpo", "--job", "tuesday", "--summary"]) == 1
    assert "did you mean shop?" in capsys.readouterr().err
