"""The page at / and its assets, as the service serves them. What people do with it is in tests/e2e."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

import pytest

import service
from service.store import Store
from tests.conftest import MakeApi
from tests.support.api import Api

TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FOLDER = Path(service.__file__).parent / "page"
ASSETS = sorted(
    str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*") if file.is_file() and file.suffix[1:] in TYPES
)


@pytest.fixture
def store(mock_store: Store) -> Store:
    """Nothing here asks the database."""
    return mock_store


@pytest.fixture
async def nobody(make_api: MakeApi) -> Api:
    """A caller whose token counts for nothing: the page is for everybody, the data behind it is not."""
    api = await make_api()
    api.token = "none"
    return api


async def test_the_page_is_served_at_the_root(nobody: Api) -> None:
    response = await nobody.get("/")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.body == (FOLDER / "index.html").read_bytes()


async def test_each_asset_is_served_with_its_type(nobody: Api) -> None:
    for name in ASSETS:
        response = await nobody.get(f"/page/{name}")
        assert response.status == 200, name
        assert response.headers["Content-Type"] == f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8", name
        assert response.body == (FOLDER / name).read_bytes(), name


async def test_what_the_page_loads_is_there_and_nothing_is_from_elsewhere(nobody: Api) -> None:
    for name in ASSETS:
        text = (FOLDER / name).read_text()
        for asset, module in re.findall(r"""(?:src|href)="page/([^"]+)"|(?:from |import\()"(\.[^"]+)\"""", text):
            path = asset or posixpath.normpath(PurePosixPath(name).parent / module)
            assert (await nobody.get(f"/page/{path}")).status == 200, f"{name}: {path}"
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not {address for address in addresses if re.match(r"https?://\w", address)}, name


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
async def test_nothing_but_the_services_own_scripts_and_styles_may_run(nobody: Api, path: str) -> None:
    headers = (await nobody.get(path)).headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["img-src"] == "'self' data: https: http:"  # pictures of items, when a person asks for them
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("name", ["index.html", "docs/docs.html"])
def test_the_pages_have_no_script_or_style_inside_and_work_behind_a_path_prefix(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not any(re.findall(r"<script[^>]*>(.*?)</script>", text, re.S))
    assert not re.findall(r"""(?:src|href)="/""", text)
    assert "<style" not in text and "style=" not in text and not re.search(r"\son\w+=", text)


def needed_by(*modules: str) -> list[str]:
    """Return these modules with everything that they import, in the order of their names."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            imports = re.findall(r"""^import .* from "(\.[^"]+)";""", (FOLDER / name).read_text(), re.M)
            waiting += [posixpath.normpath(PurePosixPath(name).parent / module) for module in imports]
    return sorted(found)


def test_what_the_items_of_a_group_need_is_loaded_at_once_instead_of_one_after_the_other() -> None:
    text = (FOLDER / "index.html").read_text()
    modules = needed_by("shell.js", "groups/group.js", "items/items.js")
    assert re.findall(r"""<link rel="modulepreload" href="page/([^"]+)">""", text) == modules


async def test_an_asset_is_sent_once_and_asked_about_afterwards(nobody: Api) -> None:
    first = await nobody.get("/page/main.js")
    assert first.headers["Cache-Control"] == "no-cache"
    again = await nobody.get("/page/main.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert (await nobody.get("/page/base/dom.js", headers={"If-None-Match": first.headers["ETag"]})).status == 200


async def test_an_asset_is_compressed_only_when_asked(nobody: Api) -> None:
    gzipped = await nobody.get("/page/page.css", headers={"Accept-Encoding": "gzip"})
    assert gzipped.headers["Content-Encoding"] == "gzip"
    assert int(gzipped.headers["Content-Length"]) < len((FOLDER / "page.css").read_bytes()) / 2
    plain = await nobody.get("/page/page.css", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers


async def test_what_is_not_an_asset_is_not_served(nobody: Api) -> None:
    for name in ["nothing.js", "..%2F__init__.py", "base/..%2F..%2F__init__.py", "base", "index.html%00", ""]:
        response = await nobody.get(f"/page/{name}")
        assert response.status in (404, 422), name
        response.problems()


async def test_head_works_and_writing_does_not(nobody: Api) -> None:
    for path in ("/", "/page/main.js"):
        assert (await nobody.request("HEAD", path)).status == 200
        response = await nobody.post(path, {})
        assert response.status == 405
        response.problems()
