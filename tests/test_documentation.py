"""What the documentation says about the code is so: links, settings, errors, routes, commands, tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import sds_client
from sds_client.__main__ import parser as client_parser
from sds_client.aio.leased import LeasedSession
from service.cli import build_parser as server_parser
from service.http.errors import _HTTP, _INTERNAL
from service.routes import ROUTES
from service.settings import Settings
from service.store.errors import _FIXES
from tests.support.documentation import PAGES, ROOT
from tests.support.processes import run_command

README, API, SETTINGS = ROOT / "README.md", ROOT / "docs/api.md", ROOT / "docs/settings.md"
OPERATIONS = ROOT / "docs/operations.md"
EVERYTHING = {page: page.read_text() for page in PAGES}
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
# What a route is documented by is its path; these are listed together.
PAGE_FILES = {"/page/{name}", "/page/{folder}/{name}", "/docs/static/{name}"}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for found in LINK.findall(re.sub(r"^```.*?^```$", "", EVERYTHING[page], flags=re.M | re.S)):
            target = found[0] or found[1]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                broken.append((page.name, target))
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = {README}, [README]
    while waiting:
        page = waiting.pop()
        for found in LINK.findall(page.read_text()):
            file = (page.parent / found[0].partition("#")[0]).resolve()
            if file.suffix == ".md" and file.exists() and file not in reached:
                reached.add(file)
                waiting.append(file)
    assert [str(page) for page in PAGES if page not in reached] == []


def test_the_readme_is_short() -> None:
    assert len(EVERYTHING[README].splitlines()) <= 140


def test_the_table_of_settings_is_the_one_that_the_command_prints() -> None:
    printed = run_command("", "settings", "--markdown").stdout
    table = "\n".join(line for line in EVERYTHING[SETTINGS].splitlines() if line.startswith("|"))
    assert table == printed.strip(), "run `make docs`"


def test_every_setting_that_a_page_names_exists() -> None:
    known = {name for name, _, _ in Settings.table()}
    known |= {f"{name}_FILE" for name in known}
    named = re.findall(r"\[`([A-Z][A-Z_]+)`\]\((?:docs/)?settings\.md\)", "".join(EVERYTHING.values()))
    limits = EVERYTHING[API].partition("\n## Limits\n")[2].partition("\n## ")[0]
    assert (set(named) | set(re.findall(r"`([A-Z]+_[A-Z_]+)`", limits))) - known == set()


@cache
def calls_in_the_code() -> list[ast.Call]:
    """Return every call of a function in the service."""
    paths = [path for folder in ("schemas", "service") for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    return [node for node in nodes if isinstance(node, ast.Call)]


def error_types_in_the_code() -> set[str]:
    """Return the `type` of every problem that the service can name."""
    found = {kind for kind, _, _ in [*_HTTP.values(), _INTERNAL]}
    for call in calls_in_the_code():
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if name in ("problem", "messages", "invalid", "_refused") and call.args:
            first = call.args[0]
            found |= {str(first.value)} if isinstance(first, ast.Constant) else set()
    return found


@pytest.mark.slow
def test_every_type_of_error_is_documented() -> None:
    decided = {"missing", "unknown_field", "string_type", "datetime_invalid", "value_error", "json_invalid"}
    decided |= {"auth_missing", "auth_invalid", "scope_missing", "not_found", "too_large", "unavailable"}
    assert decided <= error_types_in_the_code()
    section = EVERYTHING[API].partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)) == error_types_in_the_code()


def test_the_api_page_has_every_route() -> None:
    assert [
        route.path for route in ROUTES if route.path not in PAGE_FILES and f"{route.path}`" not in EVERYTHING[API]
    ] == []


def test_the_readme_lists_the_methods_of_every_route() -> None:
    rows = re.findall(r"^\| ((?:`/[^`]*` ?)+)\| ((?:`[A-Z]+` ?)+)\|", EVERYTHING[README], re.MULTILINE)
    listed = {
        (method, path)
        for paths, methods in rows
        for path in re.findall("`(.+?)`", paths)
        for method in re.findall(r"\w+", methods)
    }
    assert listed == {(route.method, route.path) for route in ROUTES if route.path not in PAGE_FILES}


def test_every_public_name_of_the_python_client_is_documented() -> None:
    pages = "".join(EVERYTHING[ROOT / f"docs/{name}.md"] for name in ("scrapers", "sessions"))
    code = re.findall(r"^```.*?^```$|`[^`\n]+`", pages, re.MULTILINE | re.DOTALL)
    words = {word for text in code for word in re.findall(r"\w+", text)}
    for names in (sds_client.__all__, dir(sds_client.AsyncClient), dir(LeasedSession)):
        assert {name for name in names if not name.startswith("_")} - words == set()


def events_in_the_code() -> set[str]:
    """Return every event that the service logs under a fixed name, and what it says about the database's refusals."""
    calls = [call for call in calls_in_the_code() if isinstance(call.func, ast.Attribute)]
    logged = [call for call in calls if ast.unparse(call.func).startswith(("log.", "logging.getLogger('service')."))]
    said = [one.value for call in logged for one in call.args if isinstance(one, ast.Constant)]
    return {one for one in said if isinstance(one, str)} | {*_FIXES.values()}


@pytest.mark.slow
def test_every_event_of_the_log_is_documented() -> None:
    section = EVERYTHING[OPERATIONS].partition("\n## Logs\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([^`]+)`", section)
    beginnings = tuple(name.removesuffix("…").rstrip() for name in named if name.endswith("…"))
    assert [one for one in events_in_the_code() if one not in named and not one.startswith(beginnings)] == []


def commands_in(page: Path, program: str) -> list[list[str]]:
    """Return the commands of one program that a page names."""
    found = re.findall(rf"(?:{program}) ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", EVERYTHING[page])
    return [one.split() for one in found]


@pytest.mark.parametrize(
    ("program", "parser"), [("python -m service|scraping-data-service", server_parser), (r"\bsds", client_parser)]
)
def test_every_command_that_a_page_names_exists(program: str, parser: Callable[[], object]) -> None:
    known = _commands(parser())
    unknown = [
        (str(page), one)
        for page in PAGES
        for one in commands_in(page, program)
        if one[0] not in known or (known[one[0]] and one[1:] and one[1] not in known[one[0]])
    ]
    assert unknown == []


def _commands(parser: object) -> dict[str, set[str]]:
    choices = _choices(parser)
    return {name: set(_choices(sub)) for name, sub in choices.items()}


def _choices(parser: object) -> dict[str, object]:
    for action in parser._actions:  # type: ignore[attr-defined]
        if hasattr(action, "choices") and isinstance(action.choices, dict):
            return dict(action.choices)
    return {}


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(EVERYTHING.values())
    named = {a or b for a, b in re.findall(r"`make ([a-z][a-z0-9-]*)|^make ([a-z][a-z0-9-]*)", text, re.M)}
    assert named - targets == set()


def test_every_file_and_test_that_a_page_names_exists() -> None:
    missing, text = [], "\n".join(EVERYTHING.values())
    folders = r"(?:service|schemas|client|scripts|tests|docs|docker)"
    for name in re.findall(rf"`({folders}/[\w/.*-]+)(?:::[\w…:]*)?`", text):
        if not list(ROOT.glob(name.rstrip("/"))):
            missing.append(name)
    for name in re.findall(r"`(?:python -m )?(scripts(?:\.\w+)+)", text):
        path = ROOT / name.replace(".", "/")
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
            missing.append(name)
    assert missing == []


def test_the_tests_behind_the_promises_exist() -> None:
    text = EVERYTHING[ROOT / "docs/verification.md"]
    missing = []
    for file, name in re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py)(?:::(\w+)(?:…\w*)?)?`", text):
        found = [path for path in (ROOT / "tests").rglob("test_*.py") if str(path).endswith(f"/{file}")]
        if not found or not any(name in path.read_text() for path in found):
            missing.append(f"{file}::{name}")
    assert missing == []


def test_the_table_of_scripts_has_every_command() -> None:
    table, parts = (
        (ROOT / "scripts/README.md").read_text(),
        ("checker.service", "attack.tenant", "member_proxy", "peers"),
    )
    commands = [path for path in (ROOT / "scripts").rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in commands]
    missing = [name for name in names if not re.search(rf"{re.escape(name)}[` ]", table)]
    assert [name for name in missing if not any(part in name for part in parts)] == []
