"""Analysts, on a server with authentication: what they may read, and that they may do nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from service.cli import main
from service.runtime.local_mongo import local_mongo
from service.settings import Settings
from service.store import Store
from service.store.analysts import READABLE, Analysts
from tests.support.mongod import standalone

DATABASE = "analysts"
HIDDEN = [
    *("cookies", "local_storage", "origins", "session_secrets", "sessions", "pools", "released_leases"),
    *("webhooks", "deliveries", "tokens", "sequences", "other"),
]
UNAUTHORIZED, AUTHENTICATION_FAILED = 13, 18


@pytest.fixture(scope="module")
def url(mongo_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with authentication, whatever TEST_MONGO_URL names."""
    if "TEST_MONGO_URL" not in os.environ:
        yield mongo_url
        return
    with local_mongo(Path(tmp_path_factory.mktemp("analysts"))) as mongo:
        yield mongo.url


@pytest.fixture
def environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGO_URL", url)
    monkeypatch.setenv("MONGO_DATABASE", DATABASE)


@pytest.fixture
def database(url: str) -> Iterator[Any]:
    with MongoClient[dict[str, Any]](url) as client:
        for user in client[DATABASE].command("usersInfo", 1)["users"]:
            client[DATABASE].command("dropUser", user["user"])
        yield client[DATABASE]


@pytest.fixture
def address(environment: None, database: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """The address that `analyst create` prints."""
    assert main(["analyst", "create", "--name", "ada"]) == 0
    return capsys.readouterr().out.strip()


@pytest.fixture
def analyst(address: str) -> Iterator[Any]:
    """The client of an analyst who reads all organizations."""
    with MongoClient[dict[str, Any]](address) as client:
        yield client


def code(work: Callable[..., Any], *arguments: Any) -> int | None:
    """Return the code of the server's refusal."""
    try:
        work(*arguments)
    except OperationFailure as error:
        return error.code
    return None


def test_the_address_opens_the_database_with_its_replica_set_and_user(address: str) -> None:
    assert re.fullmatch(
        r"mongodb://ada:[\w-]{32}@127\.0\.0\.1:\d+/analysts\?authSource=analysts&replicaSet=local", address
    )
    with MongoClient[dict[str, Any]](address) as client:
        assert client.get_default_database().name == DATABASE
        assert client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"] == [
            {"user": "ada", "db": DATABASE}
        ]


def test_an_analyst_reads_and_aggregates(analyst: Any, database: Any) -> None:
    for name in READABLE:
        database[name].insert_one({"organization_id": 1})
        found = analyst.get_default_database()[name]
        assert found.find_one({"organization_id": 1})
        assert list(found.aggregate([{"$group": {"_id": "$organization_id", "n": {"$sum": 1}}}]))
        assert found.find({"organization_id": 1}).explain()
        assert found.index_information()
        assert name in analyst.get_default_database().list_collection_names()


def look_up(collection: Any, name: str) -> Any:
    """Try to read a collection through another one."""
    return list(collection.aggregate([{"$lookup": {"from": name, "pipeline": [], "as": "found"}}]))


def test_an_analyst_reads_nothing_else(analyst: Any) -> None:
    for name in HIDDEN:
        assert code(analyst[DATABASE][name].find_one) == UNAUTHORIZED, name
        assert code(look_up, analyst[DATABASE].outputs, name) == UNAUTHORIZED, name


def test_an_analyst_writes_nothing(analyst: Any) -> None:
    database = analyst[DATABASE]
    for name in READABLE:
        collection = database[name]
        writes: list[Callable[[], Any]] = [
            partial(collection.insert_one, {}),
            partial(collection.update_one, {}, {"$set": {"a": 1}}),
            partial(collection.delete_many, {}),
            collection.drop,
            partial(collection.create_index, "a"),
            partial(database.outputs.aggregate, [{"$out": name}]),
            partial(database.command, "createUser", "eve", pwd="x", roles=[]),
            analyst.other[name].find_one,
        ]
        assert [code(write) for write in writes] == [UNAUTHORIZED] * len(writes), name


@pytest.fixture
def address_of_7(environment: None, database: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """The address of an analyst who reads organization 7 alone."""
    assert main(["analyst", "create", "--name", "seven", "--organization", "7"]) == 0
    return capsys.readouterr().out.strip()


@pytest.fixture
def analyst_of_7(address_of_7: str) -> Iterator[Any]:
    with MongoClient[dict[str, Any]](address_of_7) as client:
        yield client


def test_an_analyst_of_one_organization_reads_its_data_and_no_other(analyst_of_7: Any, database: Any) -> None:
    own = analyst_of_7[DATABASE]
    for name in READABLE:
        database[name].insert_many([{"organization_id": 7}, {"organization_id": 8}])
        view = own[f"{name}_7"]
        assert {document["organization_id"] for document in view.find()} == {7}
        assert {found["_id"] for found in view.aggregate([{"$group": {"_id": "$organization_id"}}])} == {7}
        assert code(own[name].find_one) == UNAUTHORIZED, name
        assert code(look_up, own.outputs_7, name) == UNAUTHORIZED, name
    assert code(own.cookies.find_one) == UNAUTHORIZED


def test_an_error_in_the_query_of_an_analyst_shows_nothing_of_other_organizations(
    analyst_of_7: Any, database: Any
) -> None:
    number = {"$eq": [{"$toInt": "$group_id"}, 0]}  # fails with the text that is not a number
    query = {"$or": [{"$expr": number}, {"none": 1}]}
    for name in READABLE:
        database[name].insert_one({"organization_id": 8, "group_id": "secret of 8"})
        for hint in ([("$natural", 1)], "_id_"):
            assert list(analyst_of_7[DATABASE][f"{name}_7"].find(query).hint(hint)) == [], (name, hint)


def test_a_view_of_an_earlier_version_is_replaced(
    address_of_7: str, database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = database.list_collections(filter={"name": "outputs_7"})
    database.drop_collection("outputs_7")
    database.command("create", "outputs_7", viewOn="outputs", pipeline=[{"$match": {"organization_id": 7}}])
    assert main(["analyst", "create", "--name", "other", "--organization", "7"]) == 0
    (replaced,) = database.list_collections(filter={"name": "outputs_7"})
    assert replaced["options"] == made["options"]


def test_the_views_of_an_organization_go_with_its_last_analyst(
    address_of_7: str, database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyst", "create", "--name", "other", "--organization", "7"]) == 0
    capsys.readouterr()
    assert main(["analyst", "list"]) == 0
    assert capsys.readouterr().out == "other (organization 7)\nseven (organization 7)\n"
    assert main(["analyst", "remove", "other"]) == 0
    assert "outputs_7" in database.list_collection_names()
    assert main(["analyst", "remove", "seven"]) == 0
    assert not [name for name in database.list_collection_names() if name.endswith("_7")]


@pytest.mark.usefixtures("environment")
def test_analysts_are_listed_and_removed_by_name(
    address: str, database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyst", "create"]) == 0
    assert main(["analyst", "create", "--name", "ada"]) == 1
    said = capsys.readouterr()
    assert "There is a user ada already" in said.err
    assert main(["analyst", "list"]) == 0
    assert capsys.readouterr().out == "ada\nanalyst\n"
    assert main(["analyst", "remove", "ada"]) == 0
    assert main(["analyst", "remove", "ada"]) == 1
    assert "no such analyst" in capsys.readouterr().err
    assert main(["analyst", "list"]) == 0
    assert capsys.readouterr().out == "analyst\n"
    with MongoClient[dict[str, Any]](address) as client:
        assert code(client.admin.command, "ping") == AUTHENTICATION_FAILED


@pytest.mark.usefixtures("environment")
def test_a_user_that_is_no_analyst_is_neither_listed_nor_removed(
    database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    database.command("createUser", "other", pwd="x", roles=["readWrite"])
    assert main(["analyst", "list"]) == 0
    assert main(["analyst", "remove", "other"]) == 1
    assert capsys.readouterr().out == ""
    assert database.command("usersInfo", "other")["users"]


@pytest.mark.usefixtures("environment")
def test_a_name_that_cannot_be_one_is_one_clear_line(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "a b", "a@b", "a/b", "x" * 65):
        assert main(["analyst", "create", "--name", name]) == 1
        assert capsys.readouterr().err.startswith("error: The name of an analyst is 1 to 64 letters")


def test_a_user_who_may_not_manage_users_is_told_what_to_do(
    url: str, database: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database.command("createUser", "weak", pwd="x", roles=["readWrite"])
    hosts = url.partition("@")[2].partition("/")[0]
    monkeypatch.setenv("MONGO_DATABASE", DATABASE)
    for password, said in (("x", f"role userAdmin on the database {DATABASE}"), ("wrong", "correct them")):
        monkeypatch.setenv("MONGO_URL", f"mongodb://weak:{password}@{hosts}/?authSource={DATABASE}&replicaSet=local")
        for arguments in (["create"], ["list"], ["remove", "ada"]):
            assert main(["analyst", *arguments]) == 1
            written = capsys.readouterr()
            assert written.out == "" and said in written.err, arguments


@pytest.mark.slow
def test_a_server_without_authentication_gets_no_analyst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with standalone(tmp_path) as plain, MongoClient[dict[str, Any]](plain) as client:
        monkeypatch.setenv("MONGO_URL", plain)
        assert main(["analyst", "create"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert "Start it with authentication" in said.err
        assert client.scraping.command("usersInfo", 1)["users"] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mongodb://u:p@a,b:2/?replicaSet=rs&authSource=admin", "a,b:2/scraping?authSource=scraping&replicaSet=rs"),
        ("mongodb://u:p@a/x?directConnection=true", "a/scraping?authSource=scraping&directConnection=true"),
        (
            "mongodb://a/?replicaSet=rs&tls=true&tlsCAFile=/ca.pem&tlsCertificateKeyFilePassword=secret&w=1",
            "a/scraping?authSource=scraping&replicaSet=rs&tls=true&tlsCAFile=/ca.pem",
        ),
    ],
    ids=["replica set", "direct", "TLS"],
)
async def test_the_address_keeps_how_to_reach_the_server_and_nothing_else_of_the_services(
    given: str, expected: str
) -> None:
    store = Store.connect(Settings(), "mongodb://127.0.0.1:1")
    for scheme in ("mongodb://", "mongodb+srv://"):
        analysts = Analysts(Settings(), store.database, given.replace("mongodb://", scheme))
        assert await analysts.address("ada", "p@/ß") == f"{scheme}ada:p%40%2F%C3%9F@{expected}"
    await store.close()
