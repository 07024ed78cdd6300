"""The progress of a long command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from sds_client.cli.printing import count, tell

_REDRAW, _LINE = 0.1, 10.0
_BAR = 16


class Progress:
    """Shows the number of items, their rate and the remaining time."""

    def __init__(self, what: str, done: int = 0, stream: TextIO | None = None) -> None:
        self._what, self._stream = what, stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._items = self._before = done
        self._started = self._shown = time.monotonic()
        self._fraction: float | None = None
        self._fraction_before: float | None = None

    def update(self, items: int, fraction: float | None = None) -> None:
        """Set the number of items done, and the fraction of the whole if known."""
        self._items = items
        if fraction is not None:
            self._fraction = min(1.0, fraction)
            if self._fraction_before is None:
                self._fraction_before = self._fraction
        if time.monotonic() - self._shown >= (_REDRAW if self._terminal else _LINE):
            self._show()

    def finish(self, word: str) -> None:
        """Show the result, with the number of items and the rate."""
        text = f"{self._what}: {word}, {count(self._items, 'item')}{self._rate()}"
        tell(f"\r\x1b[K{text}\n" if self._terminal else f"{text}\n", self._stream)

    def _show(self) -> None:
        self._shown = time.monotonic()
        parts = [f"{count(self._items, 'item')}{self._rate()}"]
        if self._fraction is not None:
            filled = int(self._fraction * _BAR)
            bar = f"[{'#' * filled}{'.' * (_BAR - filled)}] " if self._terminal else ""
            parts = [f"{bar}{self._fraction:.0%}", *parts, *self._left(self._fraction)]
        text = f"{self._what}: {', '.join(parts)}"
        if self._terminal:
            tell("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1], self._stream)
        else:
            tell(text + "\n", self._stream)

    def _rate(self) -> str:
        seconds = time.monotonic() - self._started
        done = self._items - self._before
        return f", {done / seconds:,.0f}/s" if done and seconds > 0 else ""

    def _left(self, fraction: float) -> list[str]:
        """Return the remaining time at the rate so far."""
        gained = fraction - (self._fraction_before or 0.0)
        if gained <= 0:
            return []
        seconds = int((time.monotonic() - self._started) / gained * (1 - fraction))
        return [f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"]
