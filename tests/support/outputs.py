"""One group of outputs over HTTP: written, read, and its clock waited for."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.api import Api, make_output

PATH = "/v1/outputs/group-1"
ODD = "a b+c&d=e#f%g/ü?漢;'\"\\<>{}|^`~"


async def items(api: Api, query: str = "limit=1000") -> list[dict[str, Any]]:
    page = await api.ok(f"{PATH}?{query}")
    assert set(page) == {"metadata", "items"}
    return list(page["items"])


async def stored(api: Api, **changes: Any) -> dict[str, Any]:
    """Write one output and return it as it is read."""
    await api.ok(PATH, [make_output(**changes)])
    *_, newest = await items(api)
    return newest


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


async def tick(item: dict[str, Any]) -> None:
    """Wait until the clock has moved on from an item's last change."""
    while datetime.now(UTC) - datetime.fromisoformat(item["update_date"]) < timedelta(milliseconds=2):
        await asyncio.sleep(0.001)
