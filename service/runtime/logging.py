"""Logs on standard error: one JSON object per event, or one short line for people at a terminal."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

import orjson

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PAGE_ROUTES = ("/page/", "/docs", "/openapi.json")


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record says: the event, and what it carries besides.

    Only the class of an exception: messages of drivers and codecs hold documents and values.
    """
    if record.name.partition(".")[0] == "service":
        said = {"event": record.getMessage()} | {k: v for k, v in vars(record).items() if k not in _STANDARD}
    else:
        # A library's words may quote what it works on; the template they are made from does not.
        said = {"event": str(record.msg) if record.args else "", "logger": record.name}
    if record.exc_info and record.exc_info[0] is not None:
        said["exception"] = record.exc_info[0].__name__
    return said


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, event, and what the record carries besides."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": moment, "level": record.levelname, **_event(record)}
        return orjson.dumps(line, default=lambda value: type(value).__name__).decode()


class TextFormatter(logging.Formatter):
    """One short line per record, for people: `10:28:01 GET /v1/outputs/{group_id} 200 3 ms`."""

    def format(self, record: logging.LogRecord) -> str:
        said = _event(record)
        event = said.pop("event")
        if event == "request":
            parts = [said["method"], said["route"], str(said["status"]), f"{said['ms']:.0f} ms"]
        else:
            parts = [event, *(f"{name}={value}" for name, value in said.items() if name not in ("pid", "request_id"))]
            if record.levelno != logging.INFO:
                parts.insert(0, record.levelname)
        # Local time: whoever reads it sits at this terminal.
        line = " ".join([time.strftime("%H:%M:%S", time.localtime(record.created)), *parts])
        return "".join(char if char.isprintable() else "?" for char in line)


def _is_page_file(record: logging.LogRecord) -> bool:
    """Return whether a record is of a file that a page in the browser loaded."""
    route = getattr(record, "route", "")
    is_page = route == "/" or route.startswith(_PAGE_ROUTES)
    return is_page and getattr(record, "status", 0) < 400


def set_up(level: str, log_format: str = "json") -> None:
    """Send all logs of this process to standard error: `json`, `text`, or `auto` for text on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "text" or (log_format == "auto" and sys.stderr.isatty()):
        handler.setFormatter(TextFormatter())
        handler.addFilter(lambda record: not _is_page_file(record))
    else:
        handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The driver's and the server's own messages may quote what they were sent.
    for name in ("pymongo", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What nobody caught, outside of the event loop: Python would print it with its message.
    threading.excepthook = lambda hook: _log_uncaught(hook.exc_type)
    sys.unraisablehook = lambda hook: _log_uncaught(hook.exc_type)


def _log_uncaught(kind: type[BaseException]) -> None:
    logging.getLogger("service").error("uncaught", extra={"error": kind.__name__})
