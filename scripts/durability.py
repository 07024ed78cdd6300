"""Count the acknowledged writes that are lost when the database is killed at once.

`python -m scripts.durability --times 200`. Each time: one write through a running service, `kill -9` of mongod as soon
as the response has come, a restart of mongod, and a read through the service of everything acknowledged in that group.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from service.runtime.local_mongo import LocalMongo, local_mongo
from tests.support.processes import ServiceProcess, make_token

RECOVERY_SECONDS = 60
GROUP_SIZE = 20  # writes per group, so that each check reads little


def request(url: str, token: str, body: Any = None) -> Any:
    """Return the JSON of the response, or None if the service asks to try again."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return None


def persistently(url: str, token: str, body: Any = None) -> Any:
    """Return the JSON of the first response other than 503."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline:
        response = request(url, token, body)
        if response is not None:
            return response
        time.sleep(0.05)
    raise SystemExit(f"error: the service did not recover within {RECOVERY_SECONDS} s")


def item(number: int) -> dict[str, Any]:
    return {
        "source_url": f"https://shop.example/p/{number}",
        "data": {"number": number},
        "root_job_id": "job",
        "key_hash": str(number),
    }


def ids(items: list[dict[str, Any]]) -> dict[str, int]:
    return {item["key_hash"]: item["id"] for item in items}


def measure(times: int) -> int:
    """Return how many acknowledged writes were lost."""
    lost = 0
    with tempfile.TemporaryDirectory(prefix="sds-durability-") as folder, ExitStack() as database:

        def start() -> LocalMongo:
            return database.enter_context(local_mongo(Path(folder), lambda line: None))

        mongo = start()
        with ServiceProcess(mongo.url).wait_until_ready() as service:
            token = make_token(mongo.url, 1)
            expected: dict[str, dict[str, int]] = {}
            for number in range(times):
                group = f"durability-{number // GROUP_SIZE}"
                url = f"{service.url}/v1/outputs/{group}"
                written = persistently(url, token, [item(number)])
                os.kill(mongo.pid, signal.SIGKILL)
                database.close()
                mongo = start()  # on the port it had before
                acknowledged = expected.setdefault(group, {})
                acknowledged |= ids(written["items"])
                stored = ids(persistently(f"{url}?limit=1000", token)["items"])
                for key in [key for key, id in acknowledged.items() if stored.get(key) != id]:
                    del acknowledged[key]
                    lost += 1
                print(f"\r{number + 1} of {times} kills, {lost} lost", end="", flush=True)
    print()
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the acknowledged writes that a killed database loses.")
    parser.add_argument("--times", type=int, default=20, help="how often to write and kill; default: 20")
    lost = measure(parser.parse_args().times)
    print(f"{lost} acknowledged writes lost")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
