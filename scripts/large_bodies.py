"""Send 40 bodies of 9 MB and 40 slow uploads of 8 MB at once: `python -m scripts.large_bodies URL TOKEN TOKEN`.

Nothing may be killed and no connection lost: a response is 200, or 503 with Retry-After. Fails otherwise.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp

_COUNT = 40
_MB = 1_000_000
_VALUES = 220  # of each item, nested: trees in memory are many times their text
_SLOW_PIECES, _SLOW_PAUSE = 18, 0.8  # 14 s, within RECEIVE_TIMEOUT


def make_body(number: int, size: int, values_each: int = _VALUES, text: str = "") -> bytes:
    """Return an array of outputs of about `size` bytes."""
    items: list[str] = []
    while sum(map(len, items)) < size:
        values = [{"a": k, "b": k * 1.5, "c": None, "d": text + "x" * (k % 7)} for k in range(values_each)]
        url = f"https://shop.example/{number}/{len(items)}"
        items.append(json.dumps({"source_url": url, "root_job_id": "j", "data": {"values": values}}))
    return f"[{','.join(items)}]".encode()


async def slowly(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in pieces with pauses."""
    step = len(body) // _SLOW_PIECES + 1
    for start in range(0, len(body), step):
        yield body[start : start + step]
        await asyncio.sleep(_SLOW_PAUSE)


async def run(url: str, tokens: list[str]) -> Counter[str]:
    """Return how often each response came."""
    found: Counter[str] = Counter()
    large, smaller = make_body(1, 9 * _MB), make_body(2, 8 * _MB)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=False), timeout=aiohttp.ClientTimeout(total=300)
    ) as session:

        async def send(kind: str, number: int, body: bytes) -> None:
            headers = {
                "Authorization": f"Bearer {tokens[number % len(tokens)]}",
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
            }
            data = slowly(body) if kind == "slow" else body
            try:
                async with session.post(f"{url}/v1/outputs/{kind}{number % 5}", data=data, headers=headers) as response:
                    await response.read()
                    polite = response.status != 503 or "Retry-After" in response.headers
                    found[f"{kind} {response.status}{'' if polite else ' without Retry-After'}"] += 1
            except aiohttp.ClientError as error:
                found[f"{kind} lost: {type(error).__name__}"] += 1

        sent = [send(kind, n, body) for n in range(_COUNT) for kind, body in (("fast", large), ("slow", smaller))]
        await asyncio.gather(*sent)
    return found


def main() -> int:
    """Run it; return 1 if a response was neither 200 nor a 503 that says when to try again."""
    started = time.monotonic()
    found = asyncio.run(run(sys.argv[1], sys.argv[2:]))
    print(json.dumps({"seconds": round(time.monotonic() - started, 1), **dict(sorted(found.items()))}, indent=2))
    return int(bool(set(found) - {"fast 200", "fast 503", "slow 200", "slow 503"}))


if __name__ == "__main__":
    sys.exit(main())
