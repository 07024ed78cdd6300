"""`sds completion` in the shells themselves: a person types, and presses Tab."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

SECONDS = 30.0


class Shell:
    """An interactive shell in a terminal, with no start files and an empty home."""

    def __init__(self, *command: str, home: Path) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = {"PATH": path, "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8"}
        self._process, self._terminal = pty.fork()
        if not self._process:
            os.chdir(home)
            os.execvpe(command[0], command, environ)  # noqa: S606
        self.shown = ""

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._terminal)

    def type(self, text: str, expected: str) -> None:
        """Type a text, and wait until the terminal shows what is expected after it."""
        before, end = len(self.shown), time.monotonic() + SECONDS
        os.write(self._terminal, text.encode())
        while expected not in self.shown[before:]:
            assert time.monotonic() < end, self.shown[before:]
            if select.select([self._terminal], [], [], 0.1)[0]:
                self.shown += os.read(self._terminal, 65536).decode(errors="replace")


@pytest.mark.parametrize("command", [["bash", "--norc", "-i"], ["zsh", "-f", "-i"]], ids=["bash", "zsh"])
def test_tab_completes_commands_actions_and_options(command: list[str], tmp_path: Path) -> None:
    with Shell(*command, home=tmp_path) as shell:
        shell.type(f"source <(sds completion {command[0]}); echo loa''ded\n", "loaded")
        shell.type("sds outp\t", "outputs ")
        shell.type("del\t", "delete ")
        shell.type("lamps --dry\t", "--dry-run ")
        assert "not found" not in shell.shown
    assert not list(tmp_path.glob(".zcompdump*"))
