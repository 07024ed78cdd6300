"""Backup and restore: nothing is left out, sealed values stay sealed, no consumer misses anything."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from service.runtime.backup_file import writing
from service.settings import Settings
from service.store import Store, Vault
from service.store.backup import COLLECTIONS
from service.store.indexes import INDEXES
from tests.support.api import make_cookie, make_entry, make_output, make_review
from tests.support.processes import ServiceProcess, make_token, run_command

pytestmark = pytest.mark.slow

KEYS = Vault.new_key("k1")
# Of this process alone: others may use the same server.
PREFIX = f"backup-{os.getpid()}-"
# Data that is like MongoDB Extended JSON, also like such as cannot be read.
LOOK_ALIKES: list[Any] = [
    {"$oid": "0123456789abcdef01234567"},
    {"$oid": "nonsense"},
    {"$numberInt": "many"},
    {"$date": "2026-01-01"},
    {"$ref": "outputs", "$id": 1, "$db": None},
    {"$$ref": 1, "$": 2, "deep": [{"$uuid": "x"}]},
    {"$binary": {"base64": "AA==", "subType": "00"}},
]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
Token = Callable[..., str]


@pytest.fixture
def client(mongo_url: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """The database server, with the two databases of these tests empty."""
    with MongoClient[dict[str, Any]](mongo_url) as client:
        for name in ("from", "to"):
            client.drop_database(PREFIX + name)
        yield client
        for name in ("from", "to"):
            client.drop_database(PREFIX + name)


@pytest.fixture
def command(mongo_url: str, client: object) -> Command:
    """Runs a command on one of the databases: `command("from", "backup", …)`."""
    return lambda database, *arguments: run_command(
        mongo_url, *arguments, MONGO_DATABASE=PREFIX + database, SECRET_KEYS=KEYS
    )


class Caller:
    """A running service on one of the databases, and a token of it."""

    def __init__(self, mongo_url: str, database: str, token: str) -> None:
        self._process = ServiceProcess(mongo_url, mongo_database=PREFIX + database, secret_keys=KEYS)
        self._token = token

    def __enter__(self) -> Caller:
        self._process.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__()

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:
        request = urllib.request.Request(
            self._process.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def everything(self) -> list[Any]:
        return [
            self.call(path)
            for path in (
                "/v1/cookies",
                "/v1/local-storage",
                "/v1/groups",
                "/v1/outputs/g?limit=1000&deleted=true",
                "/v1/outputs/other?limit=1000",
                "/v1/reviews/g",
                "/v1/reviews/only-reviews",
                "/v1/groups/g/jobs",
                "/v1/webhooks",
            )
        ]


def fill(service: Caller) -> None:
    service.call("/v1/outputs/g", [make_output(n) for n in range(10)])
    service.call("/v1/outputs/g", [make_output(1, data={"title": "changed"})])
    service.call("/v1/outputs/other", [make_output(n) for n in range(3)])
    service.call("/v1/outputs/other", [make_output(n, data={"x": value}) for n, value in enumerate(LOOK_ALIKES, 10)])
    service.call("/v1/reviews/g", [make_review()])
    service.call("/v1/reviews/only-reviews", [make_review()])
    service.call("/v1/cookies", [make_cookie(value="c00kie-value")])
    service.call("/v1/local-storage", [make_entry(value="st0red-value")])
    service.call("/v1/webhooks", {"url": "https://hooks.example/finished", "events": ["job.finished"]})
    deleted = service.call("/v1/outputs/g?limit=1")["items"][0]["output_id"]
    service.call(f"/v1/outputs/g/{deleted}", method="DELETE")


@pytest.fixture
def token(mongo_url: str, client: object) -> Token:
    """Makes a token in one of the databases: `token("from", 1)`."""
    return lambda database, organization=1: make_token(
        mongo_url, organization, "read", "write", "delete", "state", database=PREFIX + database
    )


def test_a_restored_database_serves_the_same_and_a_consumer_with_an_old_cursor_misses_nothing(
    mongo_url: str, client: MongoClient[dict[str, Any]], command: Command, token: Token, tmp_path: Path
) -> None:
    secret, file = token("from"), tmp_path / "backup.ndjson.gz"
    with Caller(mongo_url, "from", secret) as service:
        fill(service)
        before = service.everything()
        done = command("from", "backup", "--out", str(file))
        assert done.returncode == 0, done.stderr
        # A consumer goes on after the backup: what it reads is lost by the restore.
        service.call("/v1/outputs/g", [make_output(n) for n in range(100, 105)])
        cursor = service.call("/v1/outputs/g?limit=1000")["items"][-1]["id"]
    done = command("to", "restore", str(file))
    assert done.returncode == 0, done.stderr
    with Caller(mongo_url, "to", secret) as service:  # the token is restored too
        assert service.everything() == before
        service.call("/v1/outputs/g", [make_output(n) for n in range(200, 203)])
        service.call("/v1/outputs/g", [make_output(2, data={"title": "changed after the restore"})])
        new = service.call(f"/v1/outputs/g?limit=1000&cursor={cursor}")["items"]
        assert [item["key_hash"] for item in new] == ["key-200", "key-201", "key-202", "key-2"]
        # A group that is not in the backup may have had any ids.
        service.call("/v1/outputs/younger", [make_output(1)])
        assert service.call("/v1/outputs/younger")["items"][0]["id"] > 10**12
    # Every collection is in the backup, and what is sealed is sealed in it.
    assert set(INDEXES) <= set(COLLECTIONS)
    source = client[f"{PREFIX}from"]
    kept = {name for name in source.list_collection_names() if source[name].find_one()}
    assert kept - {"meta", "probes"} <= set(COLLECTIONS)
    text = gzip.decompress(file.read_bytes())
    assert b"c00kie-value" not in text
    assert b"st0red-value" not in text
    assert secret.encode() not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_ids_given_while_a_backup_is_made_are_not_given_again_after_its_restore(
    mongo_url: str, command: Command, token: Token, tmp_path: Path
) -> None:
    secret, file = token("from"), tmp_path / "backup"

    async def back_up() -> None:
        store = Store.connect(Settings(mongo_database=f"{PREFIX}from", secret_keys=KEYS), mongo_url)
        with writing(str(file)) as out:

            def write(part: bytes) -> None:
                out.write(part)
                if b'"layout"' in part:  # the header: the documents are read after it
                    return
                service.call("/v1/local-storage", [make_entry(key=str(len(parts)))])
                service.call("/v1/reviews/g", [make_review(job_id=str(len(parts)))])
                parts.append(part)

            await store.backup.write(None, write, lambda count: None)
        await store.close()

    parts: list[bytes] = []
    with Caller(mongo_url, "from", secret) as service:
        fill(service)
        asyncio.run(back_up())
    assert command("to", "restore", str(file)).returncode == 0
    with Caller(mongo_url, "to", secret) as service:
        service.call("/v1/local-storage", [make_entry(key="new")])
        ids = [entry["id"] for entry in service.call("/v1/local-storage")]
        assert len(set(ids)) == len(ids)
        before = len(service.call("/v1/reviews/g"))
        service.call("/v1/reviews/g", [make_review(job_id=f"new-{n}") for n in range(50)])
        reviewed = [review["job_id"] for review in service.call("/v1/reviews/g")]
        assert len(set(reviewed)) == len(reviewed) == before + 50


def test_one_organization_is_restored_beside_another(
    mongo_url: str, command: Command, token: Token, tmp_path: Path
) -> None:
    first, second, file = token("from", 1), token("from", 2), tmp_path / "one.ndjson.gz"
    with Caller(mongo_url, "from", first) as service:
        fill(service)
        before = service.everything()
    with Caller(mongo_url, "from", second) as service:
        service.call("/v1/outputs/g", [make_output(7)])
    assert command("from", "backup", "--organization", "1", "--out", str(file)).returncode == 0
    other = token("to", 3)
    with Caller(mongo_url, "to", other) as service:
        service.call("/v1/outputs/g", [make_output(8)])
    done = command("to", "restore", str(file))
    assert done.returncode == 0, done.stderr
    with Caller(mongo_url, "to", first) as service:
        assert service.everything() == before
    with Caller(mongo_url, "to", other) as service:
        assert [item["key_hash"] for item in service.call("/v1/outputs/g")["items"]] == ["key-8"]
    # The list shows no token's text, but whose it is.
    listed = command("to", "token", "list").stdout.splitlines()[1:]
    assert sorted(line.split()[1] for line in listed) == ["1", "3"]


def test_the_backup_of_one_organization_restores_nothing_of_others(
    command: Command, token: Token, tmp_path: Path
) -> None:
    token("from", 1)
    whole, forged = tmp_path / "whole", tmp_path / "forged"
    assert command("from", "backup", "--out", str(whole)).returncode == 0
    head, _, rest = gzip.decompress(whole.read_bytes()).partition(b"\n")
    for organization, message in ((5, "the backup of organization 5 has records of others"), ("5", "not a backup")):
        changed = json.dumps({**json.loads(head), "organization": organization}).encode()
        forged.write_bytes(gzip.compress(changed + b"\n" + rest))
        done = command("to", "restore", str(forged))
        assert done.returncode == 1 and message in done.stderr
    assert command("to", "token", "list").stdout == command("empty", "token", "list").stdout


def test_a_backup_goes_through_pipes(mongo_url: str, command: Command, token: Token, tmp_path: Path) -> None:
    secret, file = token("from"), tmp_path / "piped"
    environ = {"MONGO_URL": mongo_url, "SECRET_KEYS": KEYS}
    with file.open("wb") as out:
        subprocess.run(
            [sys.executable, "-m", "service", "backup", "--out", "-"],
            env={**os.environ, **environ, "MONGO_DATABASE": f"{PREFIX}from"},
            stdout=out,
            check=True,
        )
    subprocess.run(
        [sys.executable, "-m", "service", "restore", "-"],
        env={**os.environ, **environ, "MONGO_DATABASE": f"{PREFIX}to"},
        input=file.read_bytes(),
        check=True,
    )
    with Caller(mongo_url, "to", secret) as service:
        assert service.call("/v1/outputs/g")["items"] == []


def test_a_backup_is_not_restored_into_a_database_that_has_records(
    command: Command, token: Token, tmp_path: Path
) -> None:
    token("from")
    file = str(tmp_path / "backup")
    assert command("from", "backup", "--out", file).returncode == 0
    assert command("to", "restore", file).returncode == 0
    done = command("to", "restore", file)
    assert done.returncode == 1
    assert done.stderr == "error: the database has records already: restore into an empty one\n"


def test_nothing_is_no_backup(command: Command, token: Token, tmp_path: Path) -> None:
    token("from", 1)
    file = tmp_path / "backup"
    file.write_text("yesterday's")
    done = command("from", "backup", "--out", str(file), "--organization", "2")
    assert (done.returncode, "there is nothing to back up" in done.stderr) == (1, True), done.stderr
    assert file.read_text() == "yesterday's"


def test_groups_and_tokens_are_restored_after_what_belongs_to_them(
    mongo_url: str, command: Command, token: Token, tmp_path: Path
) -> None:
    secret, file = token("from"), tmp_path / "backup"
    with Caller(mongo_url, "from", secret) as service:
        fill(service)
    assert command("from", "backup", "--out", str(file)).returncode == 0
    lines = gzip.decompress(file.read_bytes()).split(b"\n")
    blocks = [json.loads(line[line.rindex(b'{"collection"') :]) for line in lines if b'{"collection"' in line]
    order = [block["collection"] for block in blocks]
    assert order[-1] == "tokens"
    assert order[0] == "outputs" and order.index("groups") > order.index("reviews")


def _repacked(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda content: gzip.compress(change(gzip.decompress(content)))


def _without_blocks(content: bytes) -> bytes:
    return content[: content.index(b"\n") + 1] + content[content.rindex(b'{"end"') :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"plain text", "not packed with gzip"),
        (lambda content: content[:-20], "cut off or damaged"),
        (_repacked(lambda text: b'{"a": 1}\n'), "not a backup of this service"),
        (_repacked(lambda text: text[: text.rindex(b'{"end"')]), "the backup is cut off"),
        (_repacked(lambda text: text[: text.rindex(b'{"end"') - 10]), "damaged"),
        (_repacked(_without_blocks), "documents are missing"),
        (_repacked(lambda text: text.replace(b'"layout": ', b'"layout": 9')), "the backup has layout 9"),
        (_repacked(lambda text: text.replace(b'"bytes": ', b'"bytes": -')), "damaged"),
    ],
    ids=["no gzip", "half a file", "another file", "no end", "half a block", "no blocks", "other layout", "size"],
)
def test_a_file_that_is_not_a_whole_backup_is_one_clear_line_and_restores_nothing(
    client: MongoClient[dict[str, Any]],
    command: Command,
    token: Token,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    message: str,
) -> None:
    token("from")
    file = tmp_path / "backup"
    assert command("from", "backup", "--out", str(file)).returncode == 0
    file.write_bytes(damage(file.read_bytes()))
    done = command("to", "restore", str(file))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert message in done.stderr
    target = client[f"{PREFIX}to"]
    assert not any(target[name].find_one() for name in COLLECTIONS)


@pytest.mark.parametrize(
    ("organization", "mend"), [(None, "drop the database"), (1, "remove all records of organization 1")]
)
@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:-20], _repacked(lambda text: text[: text.rindex(b'{"end"')])],
    ids=["half a file", "no end"],
)
def test_a_restore_that_ends_half_way_says_what_to_remove(
    mongo_url: str,
    client: MongoClient[dict[str, Any]],
    command: Command,
    token: Token,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    organization: int | None,
    mend: str,
) -> None:
    """The other organizations' records may be in the same database."""
    token("from", 1)
    cookies = [{"organization_id": 1, "name": str(n), "value": os.urandom(1000)} for n in range(1000)]
    client[f"{PREFIX}from"].cookies.insert_many(cookies)  # what cannot be packed is not read at once
    file = tmp_path / "backup"
    only = [] if organization is None else ["--organization", str(organization)]
    assert command("from", "backup", "--out", str(file), *only).returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "service", "restore", "-"],
        env={**os.environ, "MONGO_URL": mongo_url, "MONGO_DATABASE": f"{PREFIX}to", "SECRET_KEYS": KEYS},
        input=damage(file.read_bytes()),
        capture_output=True,
    )
    assert done.returncode == 1
    assert client[f"{PREFIX}to"].cookies.find_one() is not None
    assert done.stderr.decode().endswith(f"; a part of it is restored: {mend} and begin again\n")


def test_a_backup_that_could_not_be_restored_is_not_made(
    client: MongoClient[dict[str, Any]], command: Command, tmp_path: Path
) -> None:
    client[f"{PREFIX}from"].meta.insert_one({"_id": "layout", "version": 1})
    done = command("from", "backup", "--out", str(tmp_path / "backup"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: the database has layout 1, and this version restores layout ")
    assert list(tmp_path.iterdir()) == []
