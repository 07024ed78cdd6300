"""Builds every package into `dist`, tries each in an empty environment, and writes their version."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path
from typing import Any

from scripts.processes import free_port

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHON_PACKAGES = (ROOT, ROOT / "clients/python")
TYPESCRIPT = ROOT / "clients/typescript"
# What repeats the version, which comes from the newest release in the changelog.
VERSIONED = {
    "service/__init__.py": r'(__version__ = ")[^"]+',
    "clients/python/sds_client/version.py": r'(__version__ = ")[^"]+',
    "clients/typescript/package.json": r'("version": ")[^"]+',
    "clients/typescript/package-lock.json": r'("name": "scraping-data-client",\s+"version": ")[^"]+',
    "clients/typescript/README.md": r"(/scraping-data-client-)[\w.-]+(?=\.tgz)",
    "docs/operations.md": r"(scraping_data_service-)[\w.]+(?=-py3)",
    "docker/kubernetes/kustomization.yaml": r"(newTag: )\S+",
    "docker/kubernetes/maintenance.yaml": r"(scraping-data-service:)\S+",
}
# What the image is made of, and what starts it.
IMAGE = (
    *("docker", "schemas", "service"),
    *("setup.cfg", "setup.py", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
)
# What the page of a package on PyPI shows.
_SHOWN = ("Summary", "Keywords", "License-Expression", "License-File", "Classifier", "Requires-Python")
_NPM = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
_ITEM = {"source_url": "https://lamps.example/1", "root_job_id": "first", "data": {"title": "Oak"}}
_PUSH = f"""
import {{ Client }} from "scraping-data-client";
console.log(JSON.stringify(await new Client().push("lamps", [{json.dumps(_ITEM)}])));
"""


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    """Run a command to its end and return what it prints."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def newest_version() -> str:
    """Return the version of the newest release in the changelog."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("## ") and line != "## Unreleased")


def outdated_files(version: str) -> dict[Path, str]:
    """Return the files that name another version, each with the text that it should have."""
    outdated = {}
    for name, pattern in VERSIONED.items():
        text = (ROOT / name).read_text()
        current, count = re.subn(pattern, rf"\g<1>{version}", text)
        assert count, f"{name} names no version"
        if current != text:
            outdated[ROOT / name] = current
    return outdated


def check_versions() -> str:
    """Return the version, which is the same in every package."""
    version = newest_version()
    if outdated := outdated_files(version):
        names = ", ".join(str(path.relative_to(ROOT)) for path in outdated)
        raise SystemExit(f"error: the changelog has version {version}, and not {names}: run `make version`")
    tag = os.environ.get("GITHUB_REF_NAME", "") if os.environ.get("GITHUB_REF_TYPE") == "tag" else ""
    if tag and tag != f"v{version}":
        raise SystemExit(f"error: the tag is {tag}, and the version {version}")
    return version


def absolute_links(readme: Path, repository: str) -> str:
    """Return a readme whose links to files lead to the repository: a registry shows it without these files."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}]({repository}/{kind}/main/{(readme.parent / link[2]).resolve().relative_to(ROOT)})"

    return re.sub(r"(!?\[[^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", absolute, readme.read_text())


def add_links(repository: str) -> None:
    """Name the repository in the metadata and readme of every package: npm accepts no provenance without it."""
    for folder in (*PYTHON_PACKAGES, TYPESCRIPT):
        (folder / "README.md").write_text(absolute_links(folder / "README.md", repository))
    links = {"Source": repository, "Changelog": f"{repository}/blob/main/CHANGELOG.md"}
    setup, client = ROOT / "setup.cfg", ROOT / "clients/python/pyproject.toml"
    urls = "".join(f"    {name} = {link}\n" for name, link in links.items())
    setup.write_text(setup.read_text().replace("\n[options]\n", f"project_urls =\n{urls}\n[options]\n", 1))
    urls = "".join(f'{name} = "{link}"\n' for name, link in links.items())
    client.write_text(f"{client.read_text()}\n[project.urls]\n{urls}")
    named = (f"homepage={repository}", "repository.type=git", f"repository.url=git+{repository}.git")
    run("npm", "pkg", "set", *named, cwd=TYPESCRIPT)


def build_typescript() -> None:
    """Compile the TypeScript client into its own `dist`, with the locked versions of its tools."""
    run("npm", "ci", *_NPM, cwd=TYPESCRIPT)
    run("npm", "run", "--silent", "build", cwd=TYPESCRIPT)


def build() -> None:
    """Build the sdist and, from it, the wheel of service and client; the npm package; the context of the image."""
    version = check_versions()
    if os.environ.get("GITHUB_REPOSITORY"):  # in a workflow, whose checkout is thrown away
        add_links(f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for folder in PYTHON_PACKAGES:
        run(sys.executable, "-c", _SDIST, DIST, cwd=folder)
    for sdist in DIST.glob("*.tar.gz"):
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        # Without the extension, for every machine; the release adds wheels that have it (cibuildwheel).
        run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", DIST, sdist, SDS_PURE="1")
    build_typescript()
    run("npm", "pack", "--silent", "--pack-destination", DIST, cwd=TYPESCRIPT)
    run("git", "archive", "--output", DIST / f"image-context-{version}.tar.gz", "HEAD", *IMAGE)
    for file in sorted(DIST.iterdir()):
        print(f"{file.stat().st_size:>9,} {file.name}")


@contextmanager
def running(commands: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Serve from an installed package, with two workers; yield the address and a token as environment variables."""
    port = str(free_port())
    environ = {**os.environ, "PORT": port, "DATA_DIR": str(folder / "data"), "WORKERS": "2", "LOG_LEVEL": "WARNING"}
    serve = subprocess.Popen([commands / "scraping-data-service", "serve"], cwd=folder, env=environ)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
                break
            except OSError:
                if serve.poll() is not None:
                    raise SystemExit("error: the service has ended") from None
                time.sleep(0.2)
        create = ("token", "create", "--organization", "1")
        made = run(commands / "scraping-data-service", *create, cwd=folder, DATA_DIR=environ["DATA_DIR"], PORT=port)
        yield {"SDS_URL": url, "SDS_TOKEN": made.split()[-1]}
    finally:
        serve.terminate()
        serve.wait(60)


def check_wheel(path: Path, links: bool) -> None:
    """Refuse a wheel that PyPI would not take, or whose page would lack something."""
    assert path.name.endswith("-py3-none-any.whl"), f"{path.name} is for this machine only"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        about = message_from_bytes(wheel.read(next(name for name in names if name.endswith(".dist-info/METADATA"))))
    missing = [name for name in (*_SHOWN, *(["Project-URL"] if links else [])) if name not in about]
    assert not missing, f"{path.name} has no {', '.join(missing)}"
    assert about.get_payload(), f"{path.name} has no readme"
    assert any(name.endswith("/py.typed") for name in names), f"{path.name} has no types"


def install(folder: Path, requirement: str) -> Path:
    """Install a built file into an empty environment; return its folder of commands."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", requirement)
    return folder / "bin"


def check() -> None:
    """Install every built file into an empty environment, and write an item through each."""
    (wheel,) = DIST.glob("scraping_data_service-*.whl")
    (client,) = DIST.glob("scraping_data_client-*.whl")
    (package,) = DIST.glob("scraping-data-client-*.tgz")
    for path in (wheel, client):
        check_wheel(path, links=bool(os.environ.get("GITHUB_REPOSITORY")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = install(folder / "service", f"{wheel}[local]")
        with running(commands, folder) as environ:
            request = urllib.request.Request(
                f"{environ['SDS_URL']}/v1/outputs/lamps",
                data=json.dumps([_ITEM]).encode(),
                headers={"Authorization": f"Bearer {environ['SDS_TOKEN']}", "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                written: dict[str, Any] = json.load(response)
            assert written["created"] == 1, written
            print("the service runs from its wheel, with two workers")
            sds = install(folder / "client", str(client)) / "sds"
            assert "lamps" in run(sds, "groups", "list", cwd=folder, **environ)
            print("the Python client runs from its wheel")
            project = folder / "project"
            project.mkdir()
            (project / "package.json").write_text('{"type": "module"}')
            run("npm", "install", *_NPM, package, cwd=project)
            (project / "push.mjs").write_text(_PUSH)
            pushed = json.loads(run("node", "push.mjs", cwd=project, **environ))
            assert pushed == {"created": 0, "updated": 0, "unchanged": 1}, pushed
            print("the TypeScript client runs from its package")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="try what was built before")
    group.add_argument("--version", action="store_true", help="write the changelog's newest version into every package")
    options = parser.parse_args()
    if options.version:
        for path, text in outdated_files(newest_version()).items():
            path.write_text(text)
    elif options.check:
        check()
    else:
        build()
    return 0


if __name__ == "__main__":
    sys.exit(main())
