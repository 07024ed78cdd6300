"""The examples of the documentation work, in order, from a clean start, and print what is shown."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.documentation import ADDRESS, ROOT, Block, blocks, difference
from tests.support.processes import free_port

# docs/operations.md needs Docker, and says itself what was run.
RUN = [
    ROOT / name
    for name in (
        "README.md",
        "clients/python/README.md",
        *(f"docs/{name}.md" for name in ("api", "syncing", "scrapers", "sessions", "analysts")),
    )
]
END = "\x1e"


@contextmanager
def demo(folder: Path) -> Iterator[dict[str, str]]:
    """Run what `make run` runs, on an empty folder; yield its address, token and analyst."""
    port, log = free_port(), folder / "service.log"
    environ = {**os.environ, "DATA_DIR": str(folder / "data"), "PORT": str(port), "MONGO_URL": ""}
    command = [sys.executable, "-m", "service", "serve", "--demo"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait(process, f"http://127.0.0.1:{port}/readyz", log)
        analyst = re.search(r"mongosh '(\S+)'", log.read_text())
        yield {
            "ADDRESS": f"127.0.0.1:{port}",
            "TOKEN": (folder / "data" / "demo-token").read_text(),
            "ANALYST": analyst[1] if analyst else "",
            "DATA_DIR": str(folder / "data"),
        }
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"the service is not ready:\n{log.read_text()}")


def command(block: Block, number: int, folder: Path, address: str) -> str:
    """Return the shell command that runs a block."""
    text = block.text.replace(ADDRESS, address)
    if block.language == "sh":
        return text
    path = folder / f"block-{number}.{block.language}"
    path.write_text(text)
    if block.language == "python":
        return f"python {shlex.quote(str(path))}\n"
    return f'{shlex.quote(mongosh())} --quiet "$ANALYST" --eval "$(cat {shlex.quote(str(path))})"\n'


def mongosh() -> str:
    found = shutil.which("mongosh") or shutil.which("mongosh", path=str(ROOT / ".venv-e2e/node_modules/.bin"))
    assert found, "the examples for analysts need mongosh: install it, or run `make test-e2e`, which takes it from npm"
    return found


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    with demo(tmp_path) as found:
        work = tmp_path / "work"
        work.mkdir()
        parts = list(blocks(page))
        script = "".join(
            command(block, number, tmp_path, found["ADDRESS"]) + f"printf '{END}'\n"
            for number, block in enumerate(parts)
        )
        environ = {
            **os.environ,
            **found,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SDS_URL": f"http://{found['ADDRESS']}",
            "SDS_TOKEN": found["TOKEN"],
            "MONGO_URL": "",
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=work,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
        printed = [text.replace(found["ADDRESS"], ADDRESS) for text in done.stdout.split(END)]
        assert done.returncode == 0, f"line {parts[len(printed) - 1].line}: {printed[-1]} {done.stderr}"
    problems = [
        f"line {block.line}: {differs}"
        for block, text in zip(parts, printed, strict=False)
        if (differs := difference(block, text)) is not None
    ]
    assert problems == []
