"""The two distributions: every requirement is pinned with hashes, and the versions agree."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sds_client
import service
from scripts.dist import VERSIONED, absolute_links, newest_version, outdated_files

ROOT = Path(__file__).parents[1]
CLIENT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
FILES = {
    "constraints.txt": ("local",),
    "constraints-dev.txt": ("local", "dev"),
    "constraints-e2e.txt": ("local", "dev", "e2e"),
}


def pins(name: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[a-z0-9,-]+\])?==([^ ;\\]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


def wanted(extras: tuple[str, ...]) -> list[Requirement]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    texts = [config["options"]["install_requires"], *(config["options.extras_require"].get(e, "") for e in extras)]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [Requirement(line) for line in [*lines, *CLIENT["dependencies"]] if line and not line.startswith("#")]


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_has_a_pinned_version_that_suits_it(name: str) -> None:
    pinned = pins(name)
    unsuited = [
        str(one)
        for one in wanted(FILES[name])
        if not one.specifier.contains(pinned.get(canonicalize_name(one.name), "0"))
    ]
    assert unsuited == [], f"run `make lock`: {name} does not suit setup.cfg"


@pytest.mark.parametrize("name", FILES)
def test_every_pinned_version_has_hashes_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    requirements = re.split(r"\n(?=[A-Za-z0-9])", text)
    without = [one.split("==")[0] for one in requirements if "==" in one and "--hash=sha256:" not in one]
    assert without == []
    assert "://" not in text


@pytest.mark.parametrize("name", [name for name in FILES if name != "constraints.txt"])
def test_a_package_is_pinned_with_the_extras_that_others_ask_of_it(name: str) -> None:
    """For the name with an extra, pip would look at a newer release first, whose hash is not in the list."""
    text = (ROOT / name).read_text()
    asked = [Requirement(line) for installed in distributions() for line in installed.requires or ()]
    asked = [one for one in asked if one.extras and (one.marker is None or one.marker.evaluate({"extra": ""}))]
    assert "coverage" in {one.name for one in asked}
    for one in asked:
        assert re.search(rf"^{re.escape(one.name)}\[{','.join(sorted(one.extras))}\]==", text, re.MULTILINE), one


@pytest.mark.parametrize("name", [name for name in FILES if name != "constraints.txt"])
def test_tests_run_with_the_versions_that_make_run_installs(name: str) -> None:
    running, testing = pins("constraints.txt"), pins(name)
    assert {package: testing.get(package) for package in running} == running


def test_every_package_has_the_version_of_the_changelog() -> None:
    version = newest_version()
    assert (service.__version__, sds_client.__version__) == (version, version)
    assert [str(path) for path in outdated_files(version)] == [], "run `make version`"


def test_make_version_writes_into_every_file_that_repeats_the_version() -> None:
    assert {str(path.relative_to(ROOT)) for path in outdated_files("12.0.0rc1")} == {*VERSIONED}
    assert all("12.0.0rc1" in text for text in outdated_files("12.0.0rc1").values())


@pytest.mark.parametrize(
    ("readme", "link"),
    [
        ("README.md", "[docs/api.md](https://git.example/sds/blob/main/docs/api.md)"),
        ("README.md", "(https://git.example/sds/raw/main/docs/screenshots/group.png)"),
        ("clients/python/README.md", "(https://git.example/sds/blob/main/docs/scrapers.md)"),
        (
            "clients/typescript/README.md",
            "(https://git.example/sds/blob/main/docs/performance.md#further-measurements)",
        ),
    ],
)
def test_links_of_a_readme_work_on_the_page_of_a_registry(readme: str, link: str) -> None:
    text = absolute_links(ROOT / readme, "https://git.example/sds")
    assert link in text
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []


def test_the_client_needs_aiohttp_only() -> None:
    assert [Requirement(line).name for line in CLIENT["dependencies"]] == ["aiohttp"]


@pytest.mark.slow
def test_the_image_installs_the_pinned_server_without_a_database() -> None:
    printed = subprocess.run(
        [sys.executable, "docker/requirements.py", "setup.cfg", "constraints.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    packages = {canonicalize_name(name) for name in re.findall(r"^([A-Za-z0-9_.-]+)==", printed, re.MULTILINE)}
    local = {canonicalize_name(one.name) for one in wanted(("local",))} - {
        canonicalize_name(one.name) for one in wanted(())
    }
    assert packages == set(pins("constraints.txt")) - local
    # What the documentation shows needs no further installation.
    assert {"motor", "aiohttp", "setuptools", "cython", "pyarrow"} <= packages
