"""A mongod without replica set and without authentication, as some people run it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pymongo import MongoClient

from service.runtime.local_mongo import find_program, free_port


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Yield the address of a standalone server on `folder`."""
    port = free_port()
    command = [find_program().path, "--dbpath", str(folder), "--bind_ip", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([*command, "--nounixsocket"], stdout=subprocess.DEVNULL)
    try:
        with MongoClient[dict[str, object]]("127.0.0.1", port) as client:
            client.admin.command("ping")
        yield f"mongodb://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
