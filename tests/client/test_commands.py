"""`state import`, `state export`, `outputs export` and `outputs import` against a real process of the service."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli import main
from service.client import Client
from service.client.cli.progress import Progress
from service.client.cli.tables import flatten
from tests.client.test_formats import CURL, EDIT_THIS_COOKIE, PLAYWRIGHT
from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token


@pytest.fixture(scope="module")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def client(
    running: ServiceProcess, mongo_url: str, organization: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client of the organization whose token the commands find in the environment."""
    token = make_token(mongo_url, organization)
    monkeypatch.setenv("SDS_URL", running.url)
    monkeypatch.setenv("SDS_TOKEN", token)
    with Client(running.url, token) as client:
        yield client


def lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(text) if file.suffix == ".gz" else text).splitlines()]


def left(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


class Breaking:
    """A way to the service that ends or stalls each connection after some bytes of its answer."""

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
        with near, socket.create_connection(("127.0.0.1", self._port)) as far:
            while request := near.recv(65536):
                self.requests.append(request.split(b"\r\n")[0].decode())
                far.sendall(request)
                limit = self._limits.pop(0) if "/outputs/" in self.requests[-1] and self._limits else 10**9
                end = b""
                while piece := far.recv(4096):
                    near.sendall(piece[:limit])
                    # A packed answer can have any byte anywhere; one in chunks has an end of its own.
                    end = end or (b"\r\n0\r\n\r\n" if b"chunked" in piece.lower() else b"}")
                    limit -= len(piece)
                    if limit <= 0:
                        if self._stall:
                            time.sleep(20)
                        return
                    if piece.endswith(end):
                        break


# State


def test_state_goes_in_by_one_format_and_out_by_another(client: Client, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cookies.txt"
    file.write_text(CURL)
    assert main(["state", "import", str(file)]) == 0
    assert "cookies: 2 created, 0 updated" in capsys.readouterr().out
    assert main(["state", "export", "--format", "cookie-editor", "--domain", "shop.example"]) == 0
    found = {cookie["name"]: cookie for cookie in json.loads(capsys.readouterr().out)}
    assert (found["sid"]["hostOnly"], found["sid"]["expirationDate"]) == (False, 1893456000)
    assert (found["basket"]["hostOnly"], found["basket"]["session"]) == (True, True)


def test_playwrights_state_comes_back_as_it_went_in(client: Client, tmp_path: Path, capsys: Any) -> None:
    file, out = tmp_path / "state.json", tmp_path / "out.json"
    file.write_text(json.dumps(PLAYWRIGHT))
    assert main(["state", "import", str(file)]) == 0
    assert main(["state", "export", "--out", str(out)]) == 0
    state = json.loads(out.read_text())
    key = lambda cookie: cookie["name"]
    assert sorted(state["cookies"], key=key) == sorted(PLAYWRIGHT["cookies"], key=key)
    assert state["origins"] == PLAYWRIGHT["origins"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_what_a_format_cannot_hold_is_said(client: Client, tmp_path: Path, capsys: Any) -> None:
    client.set_storage_state(PLAYWRIGHT)
    assert main(["state", "export", "--format", "netscape"]) == 0
    told = capsys.readouterr()
    assert "local storage of 1 origins left out" in told.err
    assert "#HttpOnly_.shop.example\tTRUE\t/\tTRUE\t1893456000\tsid\t4f1c9a" in told.out


def test_a_faulty_file_stores_nothing_and_says_which_record(client: Client, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "cookies.json"
    file.write_text(json.dumps([EDIT_THIS_COOKIE[0], {**EDIT_THIS_COOKIE[0], "expirationDate": 1893456000000}]))
    assert main(["state", "import", str(file)]) == 1
    told = capsys.readouterr().err
    assert "cookie 2 ('sid' of '.shop.example')" in told and "milliseconds" in told
    assert client.cookies() == []


@pytest.mark.parametrize("command", [["state", "import", "none.json"], ["outputs", "import", "group", "none.ndjson"]])
def test_a_file_that_is_not_there_is_said(client: Client, command: list[str], capsys: Any) -> None:
    assert main(command) == 1
    assert re.search(r"error: none\.\w+: No such file", capsys.readouterr().err)


def test_without_a_token_the_word_is_where_to_put_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("SDS_TOKEN", raising=False)
    assert main(["state", "export"]) == 1
    assert "set SDS_TOKEN" in capsys.readouterr().err


def test_a_refused_token_is_not_told(client: Client, capsys: Any) -> None:
    assert main(["state", "export", "--token", "sds_not-this-one"]) == 1
    told = capsys.readouterr()
    assert "error: 401" in told.err
    assert "not-this-one" not in told.err + told.out


# Outputs


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


def test_an_export_of_nothing_is_an_empty_file(client: Client, tmp_path: Path) -> None:
    for name in ("x.ndjson", "x.csv"):
        assert main(["outputs", "export", "nothing", "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "x.ndjson").read_text() == ""
    assert (tmp_path / "x.csv").read_text() == "id\n"


@pytest.mark.parametrize(
    ("name", "word"), [("x.xlsx", "must end with .ndjson"), ("x.parquet", r"pip install .*\[parquet\]")]
)
def test_a_format_that_cannot_be_written_is_said_before_anything_is_read(
    client: Client, tmp_path: Path, name: str, word: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(["outputs", "export", "group", "--out", str(tmp_path / name)]) == 1
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
    cursors = [int(found[1]) for line in way.requests if (found := re.search(r"/outputs/.*cursor=(\d+)", line))]
    assert len(cursors) == 3 and cursors[0] == 0 < cursors[1] < cursors[2]


def test_an_export_stopped_by_the_user_goes_on_after_the_last_whole_line(
    client: Client, running: ServiceProcess, tmp_path: Path
) -> None:
    client.push("group", [make_output(n, data={"title": os.urandom(2000).hex()}) for n in range(100)])
    way = Breaking(running.port, [200_000], stall=True)
    out, part = tmp_path / "x.ndjson", tmp_path / "x.ndjson.part"
    command = [sys.executable, "-m", "service", "outputs", "export", "group", "--out", str(out), "--url", way.url]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert "run the same command again to go on" in process.communicate(timeout=20)[1]
    assert process.returncode == 130
    way.close()
    whole = part.read_bytes()
    assert 0 < whole.count(b"\n") < 100 and not out.exists()
    # As a crash would leave it: the last line is cut. The first one shows that it was not fetched again.
    part.write_bytes(whole.replace(b'"source_url"', b'"kept"', 1) + b'{"source_url": "https://sh')
    assert main(["outputs", "export", "group", "--out", str(out)]) == 0
    found = lines(out)
    assert [item["id"] for item in found] == [item["id"] for item in client.outputs("group")]
    assert [("kept" in item) for item in found] == [True] + [False] * 99
    assert left(tmp_path) == ["x.ndjson"]


def test_a_part_of_another_export_is_not_gone_on_with(client: Client, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "x.ndjson.part").write_text('{"id": 1}\n')
    (tmp_path / "x.ndjson.part.json").write_text('{"group": "other", "filters": {}}')
    assert main(["outputs", "export", "group", "--out", str(tmp_path / "x.ndjson")]) == 1
    assert "of another export" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["x.ndjson", "x.ndjson.gz"])
def test_an_export_can_be_imported_into_another_group(client: Client, tmp_path: Path, name: str, capsys: Any) -> None:
    client.push("group", [make_output(n) for n in range(1100)])
    file = tmp_path / name
    assert main(["outputs", "export", "group", "--out", str(file)]) == 0
    assert main(["outputs", "import", "copy", str(file)]) == 0
    assert "1,100 created, 0 updated, 0 unchanged" in capsys.readouterr().err
    given = ("id", "output_id", "create_date", "update_date")
    contents = [
        [{k: v for k, v in item.items() if k not in given} for item in client.outputs(group)]
        for group in ("group", "copy")
    ]
    assert contents[0] == contents[1]
    assert main(["outputs", "import", "copy", str(file)]) == 0
    assert "0 created, 0 updated, 1,100 unchanged" in capsys.readouterr().err
    assert left(tmp_path) == [name]


def test_an_import_goes_on_where_it_broke_off(client: Client, tmp_path: Path, capsys: Any) -> None:
    texts = [json.dumps(make_output(n)) + "\n\n" for n in range(1200)]
    file = tmp_path / "x.ndjson"
    file.write_text("".join(texts).replace('"root_job_id": "job-1", "key_hash": "key-1100"', '"root_job_id": 0'))
    moment = file.stat().st_mtime_ns
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert "error: 422: line 2201.root_job_id: Must be a string" in capsys.readouterr().err
    assert client.group("group")["items"] == 1000
    # The same file by its size and date, but for two items: the first is not read again, the faulty one is right.
    size = file.stat().st_size
    texts[0] = texts[0].replace("Lamp", "Leaf")
    texts[1100] = json.dumps({"source_url": "u", "root_job_id": "j", "data": {}}) + "\n\n"
    file.write_text("".join(texts).ljust(size)[:size])
    os.utime(file, ns=(moment, moment))
    assert main(["outputs", "import", "group", str(file)]) == 0
    assert "200 created, 0 updated, 0 unchanged" in capsys.readouterr().err
    assert left(tmp_path) == ["x.ndjson"]


def test_a_line_that_is_not_json_is_named(client: Client, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text(json.dumps(make_output(1)) + "\n{broken\n")
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert "line 2 of x.ndjson is not JSON" in capsys.readouterr().err


# Progress and tables


def test_progress_on_a_terminal_is_a_bar_with_rate_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("service.client.cli.progress.time.monotonic", lambda: clock[0])
    monkeypatch.setenv("COLUMNS", "100")
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        progress = Progress("export of lamps", 0, terminal)
        progress.update(0, 0.0)
        clock[0] += 10
        progress.update(2500, 0.25)
        told = os.read(ours, 1000).decode()
    os.close(ours)
    assert told.replace("\r\x1b[K", "") == "export of lamps: [####............] 25%, 2,500 items, 250/s, 0:00:30 left"


def test_progress_elsewhere_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("service.client.cli.progress.time.monotonic", lambda: clock[0])
    text = io.StringIO()
    progress = Progress("export of lamps", 0, text)
    for second in range(25):
        clock[0] = 100.0 + second
        progress.update(second * 100, second / 100)
    progress.finish("wrote x.ndjson")
    assert text.getvalue().splitlines() == [
        "export of lamps: 10%, 1,000 items, 100/s, 0:01:30 left",
        "export of lamps: 20%, 2,000 items, 100/s, 0:01:20 left",
        "export of lamps: wrote x.ndjson, 2,400 items, 100/s",
    ]


def test_nested_data_becomes_dotted_columns() -> None:
    item = {"a": {"b": {"c": 1}, "d": []}, "e": {}, "f": None, "g": [{"h": 1}]}
    assert flatten(item) == {"a.b.c": 1, "a.d": "[]", "e": "{}", "f": None, "g": '[{"h":1}]'}


def test_the_commands_work_without_the_server(client: Client) -> None:
    client.set_storage_state(PLAYWRIGHT)
    command = [sys.executable, "-m", "service.client", "state", "export", "--format", "cdp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert {cookie["name"] for cookie in json.loads(done.stdout)["cookies"]} == {"sid", "basket", "chip"}
