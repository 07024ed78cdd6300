"""The files of a data folder; only their owner can read them.

mongod/         the database's own files
mongo.log       its log, locked by the process that runs it
mongo.json      its port and, while it runs, its process id
mongo.key       the key of the replica set         (0600)
mongo.password  the password of the service's user (0600)
secret.keys     the keys of SECRET_KEYS            (0600)
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOST, SET, USER = "127.0.0.1", "local", "service"


class LocalMongoError(Exception):
    """Tell why there is no MongoDB on this machine, and what to do about it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}\nOr set MONGO_URL to a MongoDB that runs already.")


class Folder:
    """The files of one data folder, which need not exist; only their owner can read them."""

    def __init__(self, path: Path) -> None:
        self.path = path = path.resolve()
        self.data, self.log, self.key = path / "mongod", path / "mongo.log", path / "mongo.key"
        self._state, self.password_file = path / "mongo.json", path / "mongo.password"
        self._secret_keys = path / "secret.keys"

    def create(self) -> None:
        """Make the folder, unless it exists."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def is_used(self) -> bool:
        """Return whether a database was started in this folder before."""
        return self.data.exists()

    def check(self) -> None:
        """Raise if the folder holds data that only an earlier version of the service can read."""
        if (self.path / "engine").exists() and not self.data.exists():
            raise LocalMongoError(
                f"{self.path} was written by an earlier version of this service, with a database engine that is no "
                "longer used. To keep the data, export it with that version. Then move the folder away, or set "
                "DATA_DIR to another one."
            )

    def secret(self, path: Path, make: Callable[[], str] = lambda: secrets.token_hex(48)) -> str:
        """Return the text of a file; make it the first time."""
        if not path.exists():
            write_private(path, make())
        path.chmod(0o600)
        return path.read_text().strip()

    def secret_keys(self, make: Callable[[], str]) -> str:
        """Return the keys that seal cookies and local storage; make them the first time."""
        return self.secret(self._secret_keys, make)

    def known_secret_keys(self) -> str:
        """Return the keys that seal cookies and local storage; empty if there are none."""
        return self._secret_keys.read_text().strip() if self._secret_keys.exists() else ""

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
        write_private(self._state, json.dumps({"port": port, "pid": pid, "version": version}))


def write_private(path: Path, text: str) -> None:
    """Replace a file at once by one that only its owner can read."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
