"""`outputs export` against a real process of the service."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from sds_client.__main__ import main
from tests.support.api import make_output
from tests.support.files import left, lines
from tests.support.processes import ServiceProcess, wait_until

pytestmark = pytest.mark.usefixtures("environment")


class Breaking:
    """A way to the service that ends or stalls each connection after some bytes of its response."""

    def __init__(self, port: int, limits: list[int], stall: bool = False) -> None:
        self._port, self._limits, self._stall = port, limits, stall
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._port)) as far, suppress(OSError):
            left = [10**9]  # bytes of the response under way
            threading.Thread(target=self._carry_back, args=(far, near, left), daemon=True).start()
            while request := near.recv(65536):
                self.requests.append(request.split(b"\r\n")[0].decode(errors="replace"))
                if "/outputs/" in self.requests[-1] and self._limits:
                    left[0] = self._limits.pop(0)
                far.sendall(request)

    def _carry_back(self, far: socket.socket, near: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while left[0] > 0 and (piece := far.recv(4096)):
                near.sendall(piece[: left[0]])
                left[0] -= len(piece)
            if not self._stall:
                near.shutdown(socket.SHUT_RDWR)


def interrupted(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """Run an export to a CSV that ends when everything is read."""
    with monkeypatch.context() as patch:
        # Nothing from outside ends it just then.
        patch.setattr("sds_client.cli.tables._cell", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(command)


@pytest.mark.parametrize("name", ["x.ndjson", "x.ndjson.gz", "x.jsonl"])
def test_an_export_holds_every_item_as_the_api_gives_it(client: Client, tmp_path: Path, name: str, capsys: Any) -> None:
    client.push("group", [make_output(n) for n in range(30)])
    assert main(["outputs", "export", "group", "--out", str(tmp_path / name)]) == 0
    assert lines(tmp_path / name) == list(client.outputs("group"))
    assert left(tmp_path) == [name]
    assert re.search(rf"export of group: wrote {re.escape(name)}, 30 items", capsys.readouterr().err)


def test_filters_and_fields_narrow_an_export(client: Client, tmp_path: Path) -> None:
    client.push("group", [make_output(1), make_output(2, root_job_id="job-2")])
    out = tmp_path / "x.ndjson"
    assert main(["outputs", "export", "group", "--out", str(out), "--job-id", "job-2", "--fields", "data.title"]) == 0
    [item] = lines(out)
    assert item == {"id": item["id"], "data": {"title": "Lamp 2"}}
    page = "https://shop.example/p/1"
    assert main(["outputs", "export", "group", "--out", str(out), "--source-url", page]) == 0
    assert [item["source_url"] for item in lines(out)] == [page]


def test_a_csv_for_spreadsheets_has_no_formulas(client: Client, tmp_path: Path) -> None:
    client.push("group", [make_output(1, data={"title": "=1+1", "price": -2, "note": " plain"})])
    out = tmp_path / "x.csv"
    for options, title in (([], "=1+1"), (["--safe"], "'=1+1")):
        assert main(["outputs", "export", "group", "--out", str(out), *options]) == 0
        with out.open(newline="") as file:
            [row] = csv.DictReader(file)
        assert (row["data.title"], row["data.price"], row["data.note"]) == (title, "-2", " plain")


def test_a_csv_has_a_column_for_all_that_occurs(client: Client, tmp_path: Path) -> None:
    first = make_output(1, data={"title": 'Oak, "big"\nlamp', "price": {"amount": 1.5}, "sizes": [1, 2], "new": True})
    later = [make_output(n, data={"title": "Ash", "stock": n}, tags={}) for n in range(2, 1200)]
    client.push("group", [first, *later])
    out = tmp_path / "x.csv"
    assert main(["outputs", "export", "group", "--out", str(out)]) == 0
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1199
    assert list(rows[0])[:6] == [
        "source_url",
        "data.title",
        "data.price.amount",
        "data.sizes",
        "data.new",
        "data.stock",
    ]
    oak = rows[0]
    assert (oak["data.title"], oak["data.price.amount"], oak["data.sizes"]) == ('Oak, "big"\nlamp', "1.5", "[1,2]")
    assert (oak["data.new"], oak["data.stock"], oak["tags.country"]) == ("true", "", "Germany")
    assert rows[-1]["data.stock"] == "1199"


def test_two_fields_with_the_same_dotted_name_have_a_column_each(client: Client, tmp_path: Path) -> None:
    client.push("group", [make_output(1, data={"a.b": 1, "a": {"b": 2}})])
    file = tmp_path / "x.csv"
    assert main(["outputs", "export", "group", "--out", str(file)]) == 0
    (row,) = csv.DictReader(file.open(newline="", encoding="utf-8"))
    assert {row["data.a.b"], row["data.a.b\\"]} == {"1", "2"}


def test_an_export_of_a_group_that_does_not_exist_says_so_and_exits_with_3(
    client: Client, tmp_path: Path, capsys: Any
) -> None:
    client.push("lamps", [make_output(1)])
    for name in ("x.ndjson", "x.csv"):
        assert main(["outputs", "export", "lamsp", "--out", str(tmp_path / name)]) == 3
        assert "error: there is no group 'lamsp'; did you mean 'lamps'?" in capsys.readouterr().err
    assert left(tmp_path) == []


def test_an_export_that_matches_nothing_says_so_and_keeps_the_file_of_an_earlier_one(
    client: Client, tmp_path: Path, capsys: Any
) -> None:
    client.push("group", [make_output(1)])
    out = tmp_path / "x.ndjson"
    assert main(["outputs", "export", "group", "--out", str(out)]) == 0
    before = out.read_text()
    assert main(["outputs", "export", "group", "--out", str(out), "--job-id", "job-2", "--country", "Peru"]) == 3
    assert "error: no output in group 'group' matches job_id=job-2, country=Peru" in capsys.readouterr().err
    assert (left(tmp_path), out.read_text()) == (["x.ndjson"], before)


def test_a_failed_export_does_not_block_the_corrected_command(client: Client, tmp_path: Path, capsys: Any) -> None:
    client.push("group", [make_output(1)])
    command = ["outputs", "export", "group", "--out", str(tmp_path / "x.csv")]
    assert main([*command, "--created-after", "yesterday"]) == 1
    assert "created_after" in capsys.readouterr().err
    assert left(tmp_path) == []
    assert main([*command, "--created-after", "2026-01-31"]) == 0
    assert left(tmp_path) == ["x.csv"]


def test_a_table_that_cannot_be_written_leaves_what_was_read_for_the_next_try(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.push("group", [make_output(1)])
    command = ["outputs", "export", "group", "--out", str(tmp_path / "x.csv")]
    interrupted(monkeypatch, command)
    assert left(tmp_path) == ["x.csv.part", "x.csv.part.json"]
    assert main(command) == 0
    assert left(tmp_path) == ["x.csv"]


def test_an_export_to_standard_output_is_ndjson(client: Client, capsys: Any) -> None:
    client.push("group", [make_output(n) for n in range(3)])
    assert main(["outputs", "export", "group", "--out", "-"]) == 0
    told = capsys.readouterr()
    assert [json.loads(line) for line in told.out.splitlines()] == list(client.outputs("group"))
    assert main(["outputs", "export", "nothing", "--out", "-"]) == 3
    assert capsys.readouterr().out == ""


def test_a_reader_of_standard_output_that_has_enough_is_no_error(client: Client) -> None:
    client.push("group", [make_output(n, data={"title": os.urandom(2000).hex()}) for n in range(500)])
    command = f"{sys.executable} -m sds_client outputs export group --out - | head -n 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["key_hash"] == "key-0"
    assert done.stderr == ""


def test_deletions_are_exported_when_they_are_asked_for(client: Client, tmp_path: Path) -> None:
    client.push("group", [make_output(n) for n in range(3)])
    client.delete_many("group", url=make_output(0)["source_url"])
    for options, found in (([], []), (["--deleted"], ["key-0"])):
        out = tmp_path / "x.ndjson"
        assert main(["outputs", "export", "group", "--out", str(out), *options]) == 0
        assert [item["key_hash"] for item in lines(out) if "deleted" in item] == found
        assert [item["key_hash"] for item in lines(out) if "deleted" not in item] == ["key-1", "key-2"]


def test_an_interrupted_export_without_deletions_is_not_continued_with_them(client: Client, tmp_path: Path) -> None:
    client.push("group", [make_output(n) for n in range(3)])
    out = tmp_path / "x.ndjson"
    organization = client.token()["organization_id"]
    about = {"url": client.url, "organization_id": organization, "group": "group", "query": {}}
    (tmp_path / "x.ndjson.part.json").write_text(json.dumps(about))
    (tmp_path / "x.ndjson.part").write_text(json.dumps({"id": 1, "key_hash": "from the part"}) + "\n")
    assert main(["outputs", "export", "group", "--out", str(out), "--deleted"]) == 0
    assert [item["key_hash"] for item in lines(out)] == ["key-0", "key-1", "key-2"]


@pytest.mark.parametrize(
    ("name", "word", "code"),
    [("x.xlsx", "must end with .ndjson", 2), ("x.parquet", r"pip install pyarrow", 1)],
)
def test_a_format_that_cannot_be_written_is_said_before_anything_is_read(
    client: Client, tmp_path: Path, name: str, word: str, code: int, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(["outputs", "export", "group", "--out", str(tmp_path / name)]) == code
    assert re.search(word, capsys.readouterr().err)
    assert left(tmp_path) == []


def test_an_export_goes_on_after_broken_connections(
    client: Client, running: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.push("group", [make_output(n, data={"title": os.urandom(2000).hex()}) for n in range(100)])
    way = Breaking(running.port, [60_000, 90_000])
    out = tmp_path / "x.ndjson"
    assert main(["outputs", "export", "group", "--out", str(out), "--url", way.url]) == 0
    way.close()
    assert lines(out) == list(client.outputs("group"))
    exports = [line for line in way.requests if "/export" in line]
    cursors = [int(found[1]) for line in exports if (found := re.search(r"cursor=(\d+)", line))]
    # The last one shows that the one before had not only been cut.
    assert len(exports) == 4 and cursors == sorted(set(cursors)) and cursors[-1] == lines(out)[-1]["id"]


@pytest.mark.slow
def test_an_export_stopped_by_the_user_goes_on_after_the_last_whole_line(
    client: Client, running: ServiceProcess, tmp_path: Path
) -> None:
    client.push("group", [make_output(n, data={"title": os.urandom(2000).hex()}) for n in range(100)])
    way = Breaking(running.port, [200_000], stall=True)
    out, part = tmp_path / "x.ndjson", tmp_path / "x.ndjson.part"
    command = [sys.executable, "-m", "sds_client", "outputs", "export", "group", "--out", str(out), "--url", way.url]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: part.exists() and part.stat().st_size > 0)
    process.send_signal(signal.SIGINT)
    assert "stopped" in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    way.close()
    whole = part.read_bytes()
    assert 0 < whole.count(b"\n") < 100 and not out.exists()
    # As a crash would leave it: the last line is cut. The first one shows that it was not fetched again.
    part.write_bytes(whole.replace(b'"source_url"', b'"kept"', 1) + b'{"source_url": "https://sh')
    about = tmp_path / "x.ndjson.part.json"
    about.write_text(about.read_text().replace(way.url, running.url))
    assert main(["outputs", "export", "group", "--out", str(out)]) == 0
    found = lines(out)
    assert [item["id"] for item in found] == [item["id"] for item in client.outputs("group")]
    assert [("kept" in item) for item in found] == [True] + [False] * 99
    assert left(tmp_path) == ["x.ndjson"]


def test_a_part_of_another_export_is_discarded(client: Client, tmp_path: Path) -> None:
    client.push("group", [make_output(1)])
    (tmp_path / "x.ndjson.part").write_text('{"id": 1000}\n')
    (tmp_path / "x.ndjson.part.json").write_text('{"group": "other", "query": {}}')
    assert main(["outputs", "export", "group", "--out", str(tmp_path / "x.ndjson")]) == 0
    assert lines(tmp_path / "x.ndjson") == list(client.outputs("group"))
    assert left(tmp_path) == ["x.ndjson"]


def test_a_part_of_another_organization_is_discarded(
    client: Client, running: ServiceProcess, other_token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.push("group", [make_output(n) for n in range(3)])
    command = ["outputs", "export", "group", "--out", str(tmp_path / "x.csv"), "--fields", "key_hash"]
    interrupted(monkeypatch, command)
    monkeypatch.setenv("SDS_TOKEN", other_token)
    with Client(running.url, other_token) as other:
        other.push("group", [make_output(n) for n in range(3, 8)])
    assert main(command) == 0
    with (tmp_path / "x.csv").open(newline="") as file:
        assert [row["key_hash"] for row in csv.DictReader(file)] == [f"key-{n}" for n in range(3, 8)]


def test_an_export_that_continues_says_so(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    client.push("group", [make_output(n) for n in range(3)])
    command = ["outputs", "export", "group", "--out", str(tmp_path / "x.csv")]
    interrupted(monkeypatch, command)
    os.utime(tmp_path / "x.csv.part", (1769860800, 1769860800))
    assert main(command) == 0
    assert "continuing x.csv.part of 2026-01-31T12:00:00Z, 3 items\n" in capsys.readouterr().err


def test_the_export_of_a_job_begins_again_because_an_unchanged_item_may_have_joined_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.push("group", [make_output(1), make_output(2, root_job_id="job-2")])
    command = ["outputs", "export", "group", "--out", str(tmp_path / "x.csv"), "--job-id", "job-2"]
    interrupted(monkeypatch, command)
    client.push("group", [make_output(1, root_job_id="job-2")])
    assert main(command) == 0
    with (tmp_path / "x.csv").open(newline="") as file:
        assert [row["key_hash"] for row in csv.DictReader(file)] == ["key-1", "key-2"]


@pytest.mark.slow
def test_a_consumer_that_takes_longer_than_the_patience_continues_after_a_lost_connection(
    client: Client, running: ServiceProcess, token: str
) -> None:
    client.push("group", [make_output(n, data={"title": os.urandom(2000).hex()}) for n in range(30)])
    way, blocks = Breaking(running.port, [20_000]), []
    with Client(way.url, token, patience=1) as patient:
        for block in patient.ndjson("group"):
            blocks.append(block)
            if len(way.requests) == 1:
                time.sleep(1.2)
    way.close()
    assert len(way.requests) == 3
    assert [json.loads(line) for line in b"".join(blocks).splitlines()] == list(client.outputs("group"))


def test_a_second_export_to_a_file_that_is_being_written_is_refused(
    client: Client, running: ServiceProcess, tmp_path: Path, capsys: Any
) -> None:
    client.push("group", [make_output(n, data={"title": os.urandom(2000).hex()}) for n in range(100)])
    way = Breaking(running.port, [200_000], stall=True)
    out, part = tmp_path / "x.ndjson", tmp_path / "x.ndjson.part"
    command = [sys.executable, "-m", "sds_client", "outputs", "export", "group", "--out", str(out), "--url", way.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: part.exists() and part.stat().st_size > 0)
        before = part.stat().st_size  # it may still grow
        assert main(["outputs", "export", "group", "--out", str(out)]) == 1
        assert "error: another export to x.ndjson is running" in capsys.readouterr().err
        assert part.stat().st_size >= before
        process.kill()
    way.close()
