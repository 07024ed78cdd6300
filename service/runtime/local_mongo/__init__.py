"""Start a MongoDB on this machine, or share the one that runs there, when MONGO_URL names none.

A replica set of one on the loopback address, with authentication.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pymongo.errors import PyMongoError

from service.runtime.local_mongo import mongod
from service.runtime.local_mongo.folder import Folder, LocalMongoError
from service.runtime.local_mongo.mongod import find_program, free_port
from service.runtime.local_mongo.replica_set import responds, set_up

__all__ = ["Folder", "LocalMongo", "LocalMongoError", "find_program", "free_port", "local_mongo"]

Say = Callable[[str], None]

CACHE_GB = 0.25


@dataclass(frozen=True)
class LocalMongo:
    url: str
    pid: int
    started: bool


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def local_mongo(
    data_dir: Path,
    say: Say = _to_stderr,
    *,
    cache_gb: float = CACHE_GB,
    options: Sequence[str] = (),
    shared: bool = True,
) -> Iterator[LocalMongo]:
    """Yield the MongoDB of `data_dir`: the one running there, else a new one.

    It ends with the process that started it, also while another process still shares it. So a command starts one that
    is not `shared`: a service waits until the command has ended, instead of losing its database then.
    """
    folder = Folder(data_dir)
    folder.create()
    # The log is the lock too: as the database's output it stays locked until the database is gone, however it ends.
    with open(os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        running = _join_or_lock(log, folder, say)
        if running:
            yield running
            return
        program = find_program()
        folder.check()
        say(f"starting MongoDB {program.version} on {folder.path}")
        process, port = mongod.start(program, folder, log, cache_gb, options)
    try:
        try:
            url = set_up(process, folder, port)
        except PyMongoError as error:
            raise LocalMongoError(
                f"MongoDB does not become ready ({error}); the end of {folder.log}:\n{mongod.tail(folder.logged())}"
            ) from None
        folder.save(port, process.pid if shared else None, program.version)
        yield LocalMongo(url, process.pid, started=True)
    finally:
        with suppress(OSError):  # the disk may be full
            if folder.state().get("pid") in (process.pid, None):  # else it died, and another process has started one
                folder.save(port, None, program.version)  # nobody shares it from here on
        mongod.stop(process)


def _join_or_lock(log: IO[bytes], folder: Folder, say: Say) -> LocalMongo | None:
    """Return the MongoDB of the process that has `log` locked, or lock it and return None."""
    deadline = time.monotonic() + mongod.START_SECONDS + mongod.STOP_SECONDS
    waited = False
    while time.monotonic() < deadline:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            state = folder.state()
        if state.get("pid") and responds(folder, state["port"]):
            return LocalMongo(folder.address(state["port"]), state["pid"], started=False)
        if not waited:
            say("waiting for another process, which uses this MongoDB alone")
            waited = True
        time.sleep(mongod.POLL_SECONDS)
    raise LocalMongoError(f"{folder.log} is locked by a process that shares no MongoDB: wait for its end, or end it.")
