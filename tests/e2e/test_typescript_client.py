"""The TypeScript client: its types are current, its tests pass against a real service, and it packs cleanly."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sds_client.writing import key_hash
from tests.e2e.conftest import Caller, chromium_path
from tests.e2e.node import node_modules, run
from tests.e2e.serving import Site
from tests.support.api import make_output
from tests.support.documentation import ROOT

CLIENT = ROOT / "clients/typescript"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package's folder alone, beside its tools."""
    folder = tmp_path_factory.mktemp("typescript") / "package"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist", "build", "*.tgz"))
    (folder / "node_modules").symlink_to(node_modules(CLIENT))
    return folder


@pytest.fixture(scope="session")
def packed(package: Path) -> Path:
    """The built package as npm would publish it; its size is printed."""
    run("npm", "run", "build", cwd=package)
    (about,) = json.loads(run("npm", "pack", "--json", cwd=package))
    print(f"{about['filename']}: {about['size']} bytes, {about['unpackedSize']} unpacked")
    return package / str(about["filename"])


def test_the_committed_types_are_those_of_the_service(document: Path, package: Path, tmp_path: Path) -> None:
    current = tmp_path / "schema.ts"
    run("node_modules/.bin/openapi-typescript", document, "--output", current, cwd=package)
    assert (package / "src/schema.ts").read_text() == current.read_text(), "run `make types`"


def test_its_tests_pass_against_the_service(caller: Caller, package: Path) -> None:
    printed = run("npm", "test", cwd=package, env={"SDS_URL": caller.address, "SDS_TOKEN": caller.token})
    assert re.search(r"^# pass [1-9]\d+$", printed, re.MULTILINE), printed
    assert re.search(r"^# (fail|skipped|todo|cancelled) [1-9]", printed, re.MULTILINE) is None, printed


def test_publint_and_arethetypeswrong_find_nothing(packed: Path) -> None:
    run("npm", "run", "check", cwd=packed.parent)


@pytest.fixture
def project(packed: Path, tmp_path: Path) -> Path:
    """A project with the packed client and the real Crawlee, and the examples of the client."""
    modules = tmp_path / "node_modules"
    modules.mkdir()
    for module in node_modules().iterdir():
        (modules / module.name).symlink_to(module)
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "package").rename(modules / "scraping-data-client")
    shutil.copytree(CLIENT / "examples", tmp_path, dirs_exist_ok=True)
    return tmp_path


def respond(site: Site, request: Any) -> tuple[int, dict[str, str], bytes]:
    """Show a list of lamps, and a page of each."""
    if request.path == "/":
        page = "".join(f'<a class="product" href="/{number}">lamp</a>' for number in range(4))
    else:
        number = request.path[1:]
        page = f'<h1>Lamp {number}</h1><b class="sku">sku-{number}</b><i class="price">2{number}.5</i>'
    return 200, {"Content-Type": "text/html"}, f"<!doctype html><title>Lamps</title>{page}".encode()


@pytest.mark.parametrize("crawler", ["cheerio", "playwright"])
def test_crawlee_stores_what_it_scrapes_and_deletes_what_is_gone(crawler: str, caller: Caller, project: Path) -> None:
    environ = {
        "SDS_URL": caller.address,
        "SDS_TOKEN": caller.token,
        "CHROMIUM": chromium_path(),
    }
    gone = make_output(9, key_hash="gone", root_job_id="earlier")
    caller.post(f"outputs/{crawler}", [gone])
    with Site(respond) as site:
        printed = run("node", f"{crawler}.mjs", f"{site.url}/", crawler, cwd=project, env=environ)
        assert json.loads(printed.splitlines()[-1]) == {"state": "finished", "items": 4, "deleted": 1}
        items = {item["data"]["sku"]: item for item in caller.get(f"outputs/{crawler}")["items"]}
        assert set(items) == {"sku-0", "sku-1", "sku-2", "sku-3"}
        assert items["sku-3"]["source_url"] == f"{site.url}/3"
        assert items["sku-3"]["data"] == {"url": f"{site.url}/3", "sku": "sku-3", "title": "Lamp 3", "price": 23.5}
        # As the Python client makes it.
        assert items["sku-3"]["key_hash"] == key_hash({"sku": "sku-3"}, ["sku"])


@pytest.mark.parametrize(
    ("refusals", "given_back"),
    [
        ({"a-blocked": 403, "b-logged-out": 401}, [("blocked", 1, 0), ("needs_login", 1, 0)]),
        ({"a-broken": 500}, [("ready", 1, 1)]),  # three times markBad, after which Crawlee retires the session
    ],
    ids=["retire", "markBad"],
)
def test_crawlee_gives_an_account_back_with_what_became_of_it_and_takes_another(
    refusals: dict[str, int], given_back: list[tuple[str, int, float]], caller: Caller, project: Path
) -> None:
    def respond_to(site: Site, request: Any) -> tuple[int, dict[str, str], bytes]:
        if refusal := refusals.get(request.headers.get("Cookie", "").removeprefix("account=")):
            return refusal, {}, b""
        status, headers, body = respond(site, request)
        return status, {**headers, "Set-Cookie": "visited=yes; Path=/"}, body

    names = [*refusals, "good"]
    for name in names:
        cookie = {"name": "account", "value": name, "domain": "127.0.0.1", "path": "/", "expires": -1}
        state = {"cookies": [{**cookie, "httpOnly": False, "secure": False, "sameSite": "Lax"}], "origins": []}
        caller.call("PUT", f"sessions/lamps/{name}", {"storage_state": state})
    with Site(respond_to) as site:
        environ = {"SDS_URL": caller.address, "SDS_TOKEN": caller.token}
        printed = run("node", "cheerio.mjs", f"{site.url}/", "lamps", "lamps", cwd=project, env=environ)
        assert json.loads(printed.splitlines()[-1])["items"] == 4
    found = [caller.get(f"sessions/lamps/{name}") for name in names]
    assert [(one["state"], one["uses"], one["errors"]) for one in found] == [*given_back, ("ready", 1, 0)]
    saved = {cookie["name"]: cookie["value"] for cookie in found[-1]["storage_state"]["cookies"]}
    assert saved == {"account": "good", "visited": "yes"}
