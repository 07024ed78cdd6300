"""The time as the database stores it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time in UTC and whole milliseconds."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
