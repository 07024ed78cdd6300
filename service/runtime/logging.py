"""Structured logs: one JSON line an event, on standard error."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

import orjson

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One line of JSON a record: time, level, event, and what the record carries besides.

    Only the class of an exception: messages of drivers and codecs hold documents and values.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "event": "",
        }
        if record.name.partition(".")[0] == "service":
            line["event"] = record.getMessage()
            line.update((k, v) for k, v in vars(record).items() if k not in _STANDARD)
        else:
            # A library's words may quote what it works on; the template they are made from does not.
            line["event"] = str(record.msg) if record.args else ""
            line["logger"] = record.name
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        return orjson.dumps(line, default=lambda value: type(value).__name__).decode()


def set_up(level: str) -> None:
    """Send all logs of this process to standard error, in JSON."""
    handler = logging.StreamHandler(sys.stderr)
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
