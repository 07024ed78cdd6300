"""`sds` for looking: groups, jobs, reviews, fields, cookies, storage, token; as tables and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from sds_client.__main__ import main
from sds_client.cli.printing import count, table
from tests.support.api import make_outputs
from tests.support.processes import free_port

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture
def shop(client: Client) -> Client:
    client.push("shop", make_outputs(3))
    client.add_reviews("shop", [{"job_id": "job-1", "status": "approved", "comment": "fine"}])
    client.set_cookies([{"domain": ".shop.example", "name": "session", "value": "4f1c9a", "secure": True}])
    client.set_local_storage([{"domain": "shop.example", "key": "theme", "value": "dark"}])
    return client


def printed(capsys: Any, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return str(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "heading", "row"),
    [
        (["groups", "list"], "GROUP", "shop       3         0     1"),
        (["jobs", "list", "shop"], "JOB", "job-1      3        3        0          0"),
        (["reviews", "list", "shop"], "JOB", "job-1  approved"),
        (["fields", "shop"], "FIELD", "title    100%  string 3  Lamp 2, Lamp 1, Lamp 0\nover 3 items"),
        (["cookies", "list"], "DOMAIN", ".shop.example  /     session  session  yes"),
        (["storage", "list", "--domain", "shop.example"], "DOMAIN", "shop.example  /     theme  never"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_list_is_a_table_for_people_and_json_for_programs(
    shop: Client, capsys: Any, arguments: list[str], heading: str, row: str
) -> None:
    text = printed(capsys, *arguments)
    assert text.startswith(heading)
    assert row in text
    assert "4f1c9a" not in text  # the value of a cookie is not for shoulders to look over
    found = json.loads(printed(capsys, *arguments, "--json"))
    assert len(found["fields"] if isinstance(found, dict) else found) >= 1


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("arguments", [["jobs", "list"], ["fields"], ["reviews", "list"]])
def test_a_group_that_does_not_exist_is_told_the_similar_one(capsys: Any, arguments: list[str]) -> None:
    assert printed(capsys, *arguments, "shpo") == "there is no group 'shpo'; did you mean 'shop'?\n"
    assert json.loads(printed(capsys, *arguments, "shpo", "--json")) in ([], {"items": 0, "fields": []})


@pytest.mark.slow
def test_a_command_about_a_group_that_does_not_exist_warns_of_the_similar_one(
    shop: Client, capsys: Any, tmp_path: Path
) -> None:
    (rules := tmp_path / "rules.json").write_text("[]")
    (items := tmp_path / "items.csv").write_text("source_url,sku\nhttps://shop.example/1,1\n")
    for arguments in (
        ["follow", "shpo", "--once"],
        ["singer", "shpo"],
        ["rules", "show", "shpo"],
        ["outputs", "delete", "shpo", "--all", "--yes"],
        ["outputs", "approve", "shpo", "--all"],
        ["groups", "delete", "shpo", "--yes"],
        ["rules", "set", "shpo", str(rules)],
        ["reviews", "add", "shpo", "job-1", "approved"],
        ["outputs", "import", "shpo", str(items), "--job-id", "job-1"],  # the last one: it makes the group
    ):
        assert main(arguments) == 0
        warning = capsys.readouterr().err.splitlines()[0]
        assert warning.startswith("warning: there is no group 'shpo'"), arguments
        assert warning.endswith("; did you mean 'shop'?"), arguments
    assert main(["outputs", "import", "lamps", str(items), "--job-id", "job-1"]) == 0  # resembles none
    assert "warning" not in capsys.readouterr().err


def test_the_newest_items_are_listed_and_one_is_got_by_its_key_or_id(shop: Client, capsys: Any) -> None:
    lines = printed(capsys, "outputs", "list", "shop", "--limit", "2").splitlines()
    assert lines[0].split() == ["KEY", "JOB", "CHANGED", "PAGE"]
    assert [line.split()[0] for line in lines[1:]] == ["key-2", "key-1"]
    assert (
        printed(capsys, "outputs", "list", "shop", "--fields", "data.title", "--limit", "1") == "data.title\nLamp 2\n"
    )
    [found] = json.loads(printed(capsys, "outputs", "list", "shop", "--key-hash", "key-0", "--json"))
    for name in ([found["output_id"]], ["--key-hash", "key-0"]):
        assert json.loads(printed(capsys, "outputs", "get", "shop", *name))["data"] == {"title": "Lamp 0"}
    assert printed(capsys, "outputs", "list", "shpo") == "there is no group 'shpo'; did you mean 'shop'?\n"
    assert main(["outputs", "get", "shop", "--key-hash", "key-9"]) == 3
    assert capsys.readouterr().err == "error: no output in group 'shop' matches key_hash=key-9\n"
    assert main(["outputs", "get", "shop"]) == 2
    assert main(["outputs", "delete", "shop", "--key-hash", "key-1", "--yes"]) == 0
    assert [item["key_hash"] for item in shop.outputs("shop")] == ["key-0", "key-2"]


def test_a_group_is_shown_and_set_up(shop: Client, capsys: Any) -> None:
    text = printed(
        capsys, "groups", "set", "shop", "--history-days", "7", "--ignore", "title,x", "--retention-days", "90"
    )
    assert text == "history_days 7, retention_days 90, ignore title, x\n"
    shown = printed(capsys, "groups", "show", "shop")
    for line in ("items           3", "retention_days  90", "history_days    7", "ignore          title, x"):
        assert line in shown
    printed(capsys, "groups", "set", "shop", "--retention-days", "never", "--ignore", "")
    group = shop.group("shop")
    assert (group["retention_days"], group["history_days"], group["ignore"]) == (None, 7, [])
    assert main(["groups", "set", "shop"]) == 2
    assert main(["groups", "show", "shpo"]) == 1
    assert "did you mean 'shop'?" in capsys.readouterr().err
    printed(capsys, "groups", "set", "later", "--retention-days", "3")
    assert "retention_days  3" in printed(capsys, "groups", "show", "later")


def test_the_token_tells_whose_it_is(client: Client, organization: int, capsys: Any) -> None:
    assert f"of organization {organization}: " in printed(capsys, "token")
    assert json.loads(printed(capsys, "token", "--json"))["organization_id"] == organization


def test_commands_that_change_something_report_it_as_json_too(shop: Client, capsys: Any) -> None:
    assert json.loads(printed(capsys, "reviews", "add", "shop", "job-1", "rejected", "--json"))["status"] == "rejected"
    assert shop.reviews("shop")[0]["status"] == "rejected"
    assert json.loads(printed(capsys, "groups", "retention", "shop", "30", "--json"))["retention_days"] == 30
    assert shop.group("shop")["retention_days"] == 30
    text = printed(capsys, "groups", "retention", "shop", "30")
    assert text == "items of shop are kept for 30 days after they were last scraped; the service deletes older ones\n"
    assert printed(capsys, "groups", "retention", "shop", "never") == "items of shop are kept for ever\n"
    deleted = printed(capsys, "cookies", "delete", "--domain", ".shop.example", "--yes", "--json")
    assert json.loads(deleted) == {"deleted": 1}
    assert printed(capsys, "storage", "delete", "--all", "--yes") == "deleted 1 entry\n"
    assert printed(capsys, "groups", "delete", "shop", "--yes") == "deleted 3 items\n"
    assert (shop.groups(), shop.cookies(), shop.local_storage()) == ([], [], [])


def test_items_that_match_filters_are_approved(shop: Client, capsys: Any) -> None:
    shop.push("shop", [{**item, "root_job_id": "job-2"} for item in make_outputs(1)])
    assert printed(capsys, "outputs", "approve", "shop", "--job-id", "job-2") == "1 updated, 0 unchanged\n"
    assert shop.group("shop")["approved"] == 1
    assert json.loads(printed(capsys, "outputs", "approve", "shop", "--all", "--json"))["updated"] == 2
    assert printed(capsys, "outputs", "approve", "shop", "--job-id", "job-1", "--withdraw").startswith("2 updated")
    assert [item["root_job_id"] for item in shop.outputs("shop", is_approved=True)] == ["job-2"]


def test_approving_names_one_way_of_choosing(shop: Client, capsys: Any) -> None:
    assert main(["outputs", "approve", "shop"]) == 2
    assert "name what to approve" in capsys.readouterr().err
    assert shop.group("shop")["approved"] == 0


def test_follow_prints_what_is_new_and_remembers_its_place(shop: Client, capsys: Any, tmp_path: Path) -> None:
    place = str(tmp_path / "cursor")
    follow = ["follow", "shop", "--once", "--deleted", "--cursor-file", place, "--fields", "key_hash"]
    assert [json.loads(line)["key_hash"] for line in printed(capsys, *follow).splitlines()] == [
        "key-0",
        "key-1",
        "key-2",
    ]
    assert printed(capsys, *follow) == ""
    shop.delete_many("shop", job_id="job-1")
    assert len(printed(capsys, *follow).splitlines()) == 3


def test_an_export_is_followed_from_its_last_id(shop: Client, capsys: Any, tmp_path: Path) -> None:
    exported = [json.loads(line) for line in printed(capsys, "outputs", "export", "shop", "--out", "-").splitlines()]
    follow = ["follow", "shop", "--once", "--cursor", str(exported[-1]["id"]), "--cursor-file"]
    quiet = str(tmp_path / "nothing-new-yet")
    assert printed(capsys, *follow, quiet) == ""
    shop.push("shop", make_outputs(1, "Changed"))
    [changed] = printed(capsys, "follow", "shop", "--once", "--cursor-file", quiet).splitlines()
    assert json.loads(changed)["data"]["title"] == "Changed 0"
    place = tmp_path / "cursor"
    follow.append(str(place))
    assert [json.loads(line)["data"]["title"] for line in printed(capsys, *follow).splitlines()] == ["Changed 0"]
    kept = place.read_text()
    assert main(follow) == 2
    assert "already has a position: leave out --cursor" in capsys.readouterr().err
    assert place.read_text() == kept
    with pytest.raises(SystemExit):
        main(["follow", "shop", "--once", "--cursor", "-1"])


def test_webhooks_are_added_listed_and_deleted(client: Client, capsys: Any) -> None:
    added = json.loads(
        printed(capsys, "webhooks", "add", "https://hooks.example/in", "--event", "job.finished", "--json")
    )
    assert added["secret"] and added["events"] == ["job.finished"]
    assert "https://hooks.example/in  job.finished" in printed(capsys, "webhooks", "list")
    assert printed(capsys, "webhooks", "deliveries", added["webhook_id"]) == "no deliveries\n"
    assert main(["webhooks", "test", added["webhook_id"]]) == 1
    assert capsys.readouterr().out.startswith("failed: ")  # there is no such host
    assert printed(capsys, "webhooks", "delete", added["webhook_id"], "--yes") == "deleted\n"
    assert printed(capsys, "webhooks", "list") == "no webhooks\n"


@pytest.mark.parametrize(
    "command", [["groups", "list"], ["outputs", "export", "shop", "--out", "-"], ["follow", "shop"]]
)
def test_a_service_that_is_away_is_an_error_in_one_line_at_once(capsys: Any, command: list[str]) -> None:
    port, began = free_port(), time.monotonic()
    assert main([*command, "--url", f"http://127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err == f"error: cannot connect to 127.0.0.1:{port}\n"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("command", [["export", "shop", "--out", "-"], ["delete", "shop", "--all", "--yes"]])
def test_a_page_given_as_the_address_of_the_service_does_not_get_the_token(
    shop: Client, capsys: Any, command: list[str]
) -> None:
    assert main(["outputs", *command, "--url", "http://shop.example/lamps/7"]) == 2
    assert "name a page with --source-url" in capsys.readouterr().err
    # Another service, with its own token.
    assert main(["outputs", *command, "--url", f"http://localhost:{free_port()}", "--token", "other"]) == 1
    assert "cannot connect to localhost" in capsys.readouterr().err


def test_an_unknown_command_names_the_nearest_or_the_known_ones(capsys: Any) -> None:
    for arguments, message in (
        (["group"], "error: there is no command group; did you mean groups? (--help explains)\n"),
        (["jobs", "x"], "error: there is no command x; known are list"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith(message)


@pytest.mark.slow
def test_a_reader_that_has_enough_is_not_an_error(shop: Client) -> None:
    shop.push("many", make_outputs(500))
    for arguments in ("follow many --once", "groups list --json", "outputs export many --out -"):
        command = f"set -o pipefail; {sys.executable} -m sds_client {arguments} | head -n 1 >/dev/null"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_one_clear_line(shop: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # else nothing is left to write at the exit
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "sds_client", "groups", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_bash_completes_commands_actions_and_options(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "sds.bash").write_text(printed(capsys, "completion", "bash"))

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in ("sds", *words))
        code = f"source {tmp_path}/sds.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _sds; echo ${{COMPREPLY[@]}}"
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert completed("gr") == ["groups"]
    assert completed("outputs", "") == ["--help", "approve", "delete", "export", "get", "import", "list"]
    assert completed("outputs", "export", "lamps", "--fi") == ["--fields"]
    assert completed("completion", "") == ["--help", "bash", "zsh"]


def test_one_of_something_is_singular() -> None:
    assert (count(1, "item"), count(0, "item"), count(1200, "item")) == ("1 item", "0 items", "1,200 items")


def test_a_value_that_was_scraped_is_one_line_and_cannot_control_the_terminal() -> None:
    value = "two\nlines \x1b]0;title\x07\x9b31m"
    text = table([{"one": value, "many": [value, 7]}], {"one": "ONE", "many": "MANY"}, "none")
    assert [line.split("  ") for line in text.splitlines()][1] == [
        "two lines ]0;title 31m",
        "two lines ]0;title 31m, 7",
    ]
    assert text.replace("\n", "").isprintable()


def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    records = [{"group_id": "g" * 100, "items": 1200, "label": "x" * 30}]
    text = table(records, {"group_id": "GROUP", "items": "ITEMS", "label": "LABEL"}, "none")
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "1,200" in text and "g…" in text
