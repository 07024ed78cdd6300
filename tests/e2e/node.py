"""Third-party npm packages for the tests: the versions of `npm/package-lock.json`, installed once per lock file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

TOOLS = Path(__file__).with_name("npm")
# None of the tools may call home.
_ENVIRONMENT = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
_FLAGS = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return what it prints; what it prints when it fails is the failure."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **_ENVIRONMENT, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@cache
def node_modules(folder: Path = TOOLS) -> Path:
    """Return the `node_modules` of a package-lock.json, from a cache that is named after it."""
    assert shutil.which("npm"), "There is no npm: install Node.js 20 or newer (Debian: apt-get install nodejs npm)."
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scraping-data-service"
    lock = folder / "package-lock.json"
    installed = cache / f"npm-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not (installed / "node_modules").is_dir():
        partial = installed.with_name(f"{installed.name}.{os.getpid()}")
        partial.mkdir(parents=True)
        for file in (folder / "package.json", lock):
            shutil.copy(file, partial)
        run("npm", "ci", *_FLAGS, cwd=partial)
        with suppress(OSError):  # another process of the tests was quicker
            partial.rename(installed)
    return installed / "node_modules"
