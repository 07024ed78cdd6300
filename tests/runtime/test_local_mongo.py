"""Really starts, shares and kills the database; needs npm (and apt-get on an old Debian) the first time."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient, WriteConcern

from service.runtime.local_mongo import LocalMongoError, local_mongo

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from service.runtime.local_mongo import local_mongo
with local_mongo(Path(sys.argv[1]), lambda line: None) as mongo:
    try:
        print(mongo.started, mongo.pid, mongo.url, flush=True)
        time.sleep(60)
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
        )

    def ready(self) -> "Holder":
        started, pid, self.url = self.line().split()
        self.started, self.pid = started == "True", int(pid)
        return self

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_after(pid: int, limit: float = 5) -> None:
    start = time.monotonic()
    while alive(pid):
        assert time.monotonic() - start < limit, f"{pid} still runs after {limit} s"
        time.sleep(0.01)


def client(url: str) -> "MongoClient[dict[str, Any]]":
    return MongoClient(url, serverSelectionTimeoutMS=3000)


def test_restart_keeps_the_data(tmp_path: Path) -> None:
    for count in range(3):
        with local_mongo(tmp_path) as mongo, client(mongo.url) as mongo_client:
            assert mongo_client.db.items.count_documents({}) == count
            mongo_client.db.items.insert_one({})
        assert not alive(mongo.pid)


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
    assert holder.process.wait(10) == 0
    gone_after(holder.pid)


def test_after_kill_9_of_the_database_it_starts_again(tmp_path: Path) -> None:
    holder = Holder(tmp_path).ready()
    with client(holder.url) as mongo_client:
        mongo_client.db.items.insert_one({"_id": 1})
        durable = mongo_client.db.items.with_options(write_concern=WriteConcern(w="majority", j=True))
        durable.insert_one({"_id": 2})
        # The engine may answer a moment before its journal is written: killed in that very moment, 13 of
        # 240 times on a busy machine the document was gone. After one more answer none was, of 90.
        mongo_client.admin.command("serverStatus")
    run_dir = Path(json.loads((tmp_path / "mongo.json").read_text())["run_dir"])
    os.kill(holder.pid, signal.SIGKILL)
    gone_after(holder.pid)
    with local_mongo(tmp_path) as mongo, client(mongo.url) as mongo_client:
        assert mongo.started
        assert 2 in [document["_id"] for document in mongo_client.db.items.find()]
        assert not run_dir.exists()
        holder.process.terminate()
        holder.process.wait()
        assert 2 in [document["_id"] for document in mongo_client.db.items.find()]


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


@pytest.mark.cold
def test_racing_installs_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    holders = [Holder(tmp_path / str(number)) for number in range(3)]
    assert all(holder.ready().started for holder in holders)
    for holder in holders:
        holder.process.terminate()
    assert not list((tmp_path / "cache/scraping-data-service").glob("*.part"))


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of our own: only what the test puts there, and sh."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "env", "cat"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


FAKE_MONGOD = f"""#!{sys.executable}
import signal, socket, sys, time
path = sys.argv[sys.argv.index("--bind_ip") + 1]
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
def end(*_):
    open(sys.argv[sys.argv.index("--dbpath") + 1] + "/clean", "w"); sys.exit(0)
signal.signal(signal.SIGTERM, end)
while True:
    client = server.accept()[0]; client.recv(51); client.send(b'x'); client.close()
"""


def test_mongod_on_the_path_comes_first_and_is_ended_cleanly(tmp_path: Path, bin_dir: Path) -> None:
    fake(bin_dir, "mongod", FAKE_MONGOD)
    with local_mongo(tmp_path / "data") as mongo:
        assert mongo.kind == "mongod"
        assert alive(mongo.pid)
    assert (tmp_path / "data/mongod/clean").exists()
    assert not alive(mongo.pid)


def test_mongod_ends_with_a_killed_starter_and_can_be_killed_itself(tmp_path: Path, bin_dir: Path) -> None:
    fake(bin_dir, "mongod", FAKE_MONGOD)
    holder = Holder(tmp_path / "data").ready()
    holder.process.kill()
    gone_after(holder.pid)
    assert (tmp_path / "data/mongod/clean").exists()
    holder = Holder(tmp_path / "data").ready()
    os.kill(holder.pid, signal.SIGKILL)
    gone_after(holder.pid)
    with local_mongo(tmp_path / "data") as mongo:
        assert mongo.started
    holder.process.kill()


def errors(data_dir: Path) -> str:
    with pytest.raises(LocalMongoError) as raised, local_mongo(data_dir):
        pass
    return str(raised.value)


def test_errors_tell_the_three_ways(tmp_path: Path, bin_dir: Path) -> None:
    text = errors(tmp_path / "data")
    for way in ("MONGO_URL", "mongod on the PATH", "Node >= 20"):
        assert way in text
    fake(bin_dir, "npm", "#!/bin/sh\necho no network >&2; exit 1")
    fake(bin_dir, "node", "#!/bin/sh\necho 18.1.0 /bin/node")
    assert "Node is only 18.1.0" in errors(tmp_path / "data")
    fake(bin_dir, "node", "#!/bin/sh\necho 20.1.0 /bin/node")
    assert "npm ended with 1:\nno network" in errors(tmp_path / "data")
    fake(bin_dir, "mongod", "#!/bin/sh\necho bad data files; exit 62")
    text = errors(tmp_path / "data")
    assert "ended with 62" in text
    assert "bad data files" in text


def test_a_database_that_hangs_is_killed(tmp_path: Path, bin_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.runtime.local_mongo.STOP_SECONDS", 0.5)
    fake(
        bin_dir,
        "mongod",
        FAKE_MONGOD.replace("signal.SIGTERM, end", "signal.SIGTERM, signal.SIG_IGN"),
    )
    with local_mongo(tmp_path / "data") as mongo:
        pass
    assert not alive(mongo.pid)


def test_a_deep_data_folder_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with local_mongo(deep) as mongo, client(mongo.url) as mongo_client:
        assert mongo_client.admin.command("ping")["ok"]


def test_a_cache_that_cannot_be_written_is_an_error_with_the_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "Cannot install into" in errors(tmp_path / "data")
