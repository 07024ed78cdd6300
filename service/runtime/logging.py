"""Logs on standard error: one JSON object per event, or one short line for people at a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any

import orjson

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FLUSH_SECONDS = 0.1
_MAX_LINES = 200
_PAGE_ROUTES = ("/page/", "/docs", "/openapi.json")


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """Return the event of a record and its extra fields.

    Only the class of an exception: messages of drivers and codecs hold documents and values.
    """
    if record.name.partition(".")[0] == "service":
        fields = {"event": record.getMessage()} | {k: v for k, v in vars(record).items() if k not in _STANDARD}
    else:
        # A library's message may quote data; its template does not.
        fields = {"event": str(record.msg) if record.args else "", "logger": record.name}
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = record.exc_info[0].__name__
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, event, and the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{date}.{int(record.msecs):03d}Z", "level": record.levelname, **_event(record)}
        return orjson.dumps(line, default=lambda value: type(value).__name__).decode()


class AccessLines:
    """The access log as JSON lines, written a few at a time.

    Lines of the last tenth of a second are lost if the process is killed.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._lines: list[bytes] = []
        self._second, self._date = 0, ""

    def write(self, members: dict[str, Any]) -> None:
        """Write a line, soon."""
        moment = time.time()
        second = int(moment)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        stamp = f"{self._date}.{int((moment - second) * 1000):03d}Z"
        if not self._lines:
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        self._lines.append(orjson.dumps({"time": stamp, "level": "INFO", "event": "request", **members}))
        if len(self._lines) >= _MAX_LINES:
            self.flush()

    def flush(self) -> None:
        """Write the collected lines."""
        if self._lines:
            text = memoryview(b"\n".join(self._lines) + b"\n")
            self._lines.clear()
            with contextlib.suppress(OSError):  # a full disk or a closed pipe: no reason for a request to fail
                while text:
                    text = text[os.write(self._file, text) :]


# SGR codes of a terminal.
_RED, _YELLOW, _GREEN, _DIM, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


class TextFormatter(logging.Formatter):
    """One short line per record, for people: `10:28:01 GET /v1/outputs/{group_id} 200 3 ms`."""

    def __init__(self, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        fields = _event(record)
        event = fields.pop("event")
        status = fields.get("status", 0) if event == "request" else 0
        if event == "request":
            parts = [fields["method"], fields["route"], str(status), f"{fields['ms']:.0f} ms"]
        else:
            parts = [event, *(f"{name}={value}" for name, value in fields.items() if name not in ("pid", "request_id"))]
            if record.levelno != logging.INFO:
                parts.insert(0, record.levelname)
        # Local time, for the person at this terminal.
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = "".join(char if char.isprintable() else "?" for char in " ".join(parts))
        if not self._colour:
            return f"{moment} {text}"
        return f"{_DIM}{moment}{_PLAIN} {_colour_of(record.levelno, status)}{text}{_PLAIN}"


def _colour_of(level: int, status: int) -> str:
    if level >= logging.ERROR or status >= 500:
        return _RED
    if level >= logging.WARNING or status >= 400:
        return _YELLOW
    return _GREEN if status else ""


def _is_page_file(record: logging.LogRecord) -> bool:
    """Return whether a record is about a static file of the page."""
    route = getattr(record, "route", "")
    is_page = route == "/" or route.startswith(_PAGE_ROUTES)
    return is_page and getattr(record, "status", 0) < 400


def _is_detail(record: logging.LogRecord) -> bool:
    """Return whether a record is about the setup of the process: for operators, not for people at a terminal."""
    return record.msg == "file limit" and record.levelno == logging.INFO


def is_json(log_format: str) -> bool:
    """Return whether lines are JSON: with `auto`, unless standard error is a terminal."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


def set_up(level: str, log_format: str = "json") -> None:
    """Send all logs of this process to standard error: `json`, `text`, or `auto` for text on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    if not is_json(log_format):
        handler.setFormatter(TextFormatter(sys.stderr.isatty() and "NO_COLOR" not in os.environ))
        handler.addFilter(lambda record: not (_is_page_file(record) or _is_detail(record)))
    else:
        handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Messages of the driver and of aiohttp may quote the data of requests.
    for name in ("pymongo", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Uncaught exceptions outside of the event loop: Python would print their messages.
    threading.excepthook = lambda hook: _log_uncaught(hook.exc_type)
    sys.unraisablehook = lambda hook: _log_uncaught(hook.exc_type)


def _log_uncaught(kind: type[BaseException]) -> None:
    logging.getLogger("service").error("uncaught", extra={"error": kind.__name__})
