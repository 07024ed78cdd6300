"""`python -m service organization`: list, show and delete all that one organization has."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from pymongo import MongoClient

from service.settings import Settings
from service.store import Store
from tests.support import processes
from tests.support.api import Api, make_cookie, make_entry, make_output, make_review
from tests.support.sessions import lease, make_state, put, release

DATABASE = "organizations"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """A database without the organizations of the other tests, which are listed too; commands find it."""
    return replace(settings, mongo_database=DATABASE)


def run_command(mongo_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.run_command(mongo_url, *arguments, MONGO_DATABASE=DATABASE)


@pytest.fixture
async def filled(api: Api) -> Api:
    """An organization with records of every kind."""
    await api.ok("/v1/outputs/lamps", [make_output(n) for n in range(3)])
    await api.put("/v1/groups/lamps", {"history_days": 3})
    await api.ok("/v1/outputs/lamps", [make_output(1, data={"title": "other"})])
    await api.ok("/v1/reviews/lamps", [make_review()])
    await api.ok("/v1/cookies", [make_cookie()])
    await api.ok("/v1/local-storage", [make_entry()])
    await put(api, "/v1/sessions/shop/anna", {"storage_state": make_state()})
    await release(api, (await lease(api, "shop"))["lease_id"])
    return api


def documents(mongo_url: str, organization: int) -> dict[str, int]:
    """Return how many documents each collection of the database has of an organization."""
    with MongoClient[dict[str, Any]](mongo_url) as client:
        database = client[DATABASE]
        names = [name for name in database.list_collection_names() if not name.startswith("system.")]
        counts = {name: database[name].count_documents({"organization_id": organization}) for name in names}
        counts["sequences"] = database["sequences"].count_documents({"_id": organization})
    return {name: number for name, number in counts.items() if number}


@pytest.mark.slow
async def test_everything_of_an_organization_is_shown_and_deleted_but_nothing_of_others(
    filled: Api, stranger: Api, mongo_url: str
) -> None:
    await stranger.ok("/v1/outputs/lamps", [make_output()])
    organization, other = filled.organization_id, documents(mongo_url, stranger.organization_id)
    before = documents(mongo_url, organization)
    assert {"outputs", "versions", "groups", "days", "reviews", "cookies", "local_storage", "tokens"} <= set(before)
    assert {"pools", "sessions", "session_secrets", "released_leases"} <= set(before)
    listed = run_command(mongo_url, "organization", "list").stdout.splitlines()
    assert [str(organization), "1", "1", "3"] in [line.split() for line in listed]
    shown = run_command(mongo_url, "organization", "show", str(organization)).stdout
    assert {name: int(number) for name, number in map(str.split, shown.splitlines())} == before

    refused = run_command(mongo_url, "organization", "delete", str(organization), "--confirm", "0")
    assert (refused.returncode, documents(mongo_url, organization)) == (1, before)
    done = run_command(mongo_url, "organization", "delete", str(organization), "--confirm", str(organization))
    assert done.returncode == 0, done.stderr
    assert f"deleted {sum(before.values())} documents of organization {organization}" in done.stderr
    assert documents(mongo_url, organization) == {}
    assert documents(mongo_url, stranger.organization_id) == other
    again = run_command(mongo_url, "organization", "delete", str(organization), "--confirm", str(organization))
    assert (again.returncode, again.stderr.split(";")[0]) == (
        1,
        f"error: there is nothing of organization {organization}",
    )


async def test_an_organization_that_has_only_sessions_is_listed(api: Api, store: Store, mongo_url: str) -> None:
    await put(api, "/v1/sessions/shop/anna", {})
    await store.database["tokens"].delete_many({"organization_id": api.organization_id})
    listed = run_command(mongo_url, "organization", "list").stdout.splitlines()
    assert [str(api.organization_id), "0", "0", "0"] in [line.split() for line in listed]


async def test_a_deletion_that_was_interrupted_is_completed_by_the_next(
    filled: Api, store: Store, mongo_url: str
) -> None:
    def interrupt(name: str, number: int) -> None:
        if name == "outputs":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await store.organizations.delete(filled.organization_id, interrupt, settle=0)
    rest = documents(mongo_url, filled.organization_id)
    assert "tokens" not in rest and "groups" in rest and "outputs" not in rest
    assert await store.organizations.delete(filled.organization_id, lambda name, number: None, settle=0)
    assert documents(mongo_url, filled.organization_id) == {}


@pytest.mark.slow
async def test_what_is_written_meanwhile_is_deleted_by_a_later_pass(filled: Api, store: Store, mongo_url: str) -> None:
    late = {"organization_id": filled.organization_id, "group_id": "late", "job_id": "late"}

    def progress(name: str, number: int) -> None:
        if name == "groups":
            with MongoClient[dict[str, Any]](mongo_url) as client:
                client[DATABASE]["jobs"].insert_one(late)

    assert await store.organizations.delete(filled.organization_id, progress, settle=0)
    assert "_id" in late and documents(mongo_url, filled.organization_id) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "code"), [("{}\n", 0), ("y\n", 1), ("\x04", 1)])
async def test_a_deletion_is_confirmed_by_typing_the_number(filled: Api, mongo_url: str, typed: str, code: int) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "service", "organization", "delete", str(filled.organization_id)]
    environ = {**os.environ, "MONGO_URL": mongo_url, "MONGO_DATABASE": DATABASE}
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)
    os.write(ours, typed.format(filled.organization_id).encode())
    out, error = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code, error
    assert f"Type {filled.organization_id} to delete all of this".encode() in out
    assert bool(documents(mongo_url, filled.organization_id)) == bool(code)


@pytest.mark.slow
async def test_without_a_terminal_the_number_is_given_as_an_option(filled: Api, mongo_url: str) -> None:
    command = [sys.executable, "-m", "service", "organization", "delete", str(filled.organization_id)]
    environ = {**os.environ, "MONGO_URL": mongo_url, "MONGO_DATABASE": DATABASE}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ, timeout=60)
    assert (done.returncode, f"give --confirm {filled.organization_id}" in done.stderr) == (1, True)
    assert documents(mongo_url, filled.organization_id)
