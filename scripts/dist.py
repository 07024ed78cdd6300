"""Builds every package into `dist`, and tries each in an empty environment: python -m scripts.dist [--check]."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sds_client
import service

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHON_PACKAGES = (ROOT, ROOT / "clients/python")
TYPESCRIPT = ROOT / "clients/typescript"
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


def check_versions() -> str:
    """Return the version, which is the same in every package and the newest in the changelog."""
    typescript = json.loads((TYPESCRIPT / "package.json").read_text())["version"]
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    released = next(line.split()[1] for line in lines if line.startswith("## ") and line != "## Unreleased")
    versions = {service.__version__, sds_client.__version__, typescript, released}
    if len(versions) > 1:
        raise SystemExit(f"error: the versions of packages and changelog differ: {', '.join(sorted(versions))}")
    tag = os.environ.get("GITHUB_REF_NAME", "") if os.environ.get("GITHUB_REF_TYPE") == "tag" else ""
    if tag and tag != f"v{service.__version__}":
        raise SystemExit(f"error: the tag is {tag}, and the version {service.__version__}")
    return service.__version__


def build() -> None:
    """Build the sdist and, from it, the wheel of service and client; the npm package; the context of the image."""
    version = check_versions()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for folder in PYTHON_PACKAGES:
        run(sys.executable, "-c", _SDIST, DIST, cwd=folder)
    for sdist in DIST.glob("*.tar.gz"):
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", DIST, sdist)
    run("npm", "ci", *_NPM, cwd=TYPESCRIPT)
    run("npm", "run", "--silent", "build", cwd=TYPESCRIPT)
    run("npm", "pack", "--silent", "--pack-destination", DIST, cwd=TYPESCRIPT)
    run("git", "archive", "--output", DIST / f"image-context-{version}.tar.gz", "HEAD")
    for file in sorted(DIST.iterdir()):
        print(f"{file.stat().st_size:>9,} {file.name}")


@contextmanager
def running(commands: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Serve from an installed package, with two workers; yield the address and a token as environment variables."""
    port = "18473"
    environ = {**os.environ, "PORT": port, "DATA_DIR": str(folder / "data"), "WORKERS": "2"}
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


def install(folder: Path, requirement: str) -> Path:
    """Install a built file into an empty environment; return its folder of commands."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", requirement)
    return folder / "bin"


def check() -> None:
    """Install every built file into an empty environment, and write an item through each."""
    (wheel,) = DIST.glob("scraping_data_service-*.whl")
    (client,) = DIST.glob("scraping_data_client-*.whl")
    (package,) = DIST.glob("scraping-data-client-*.tgz")
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
    parser.add_argument("--check", action="store_true", help="try what was built before")
    if parser.parse_args().check:
        check()
    else:
        build()
    return 0


if __name__ == "__main__":
    sys.exit(main())
