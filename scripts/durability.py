"""Count the acknowledged writes that are lost when the database is killed at once.

`python -m scripts.durability --times 200`. Each time: one write through a running service, `kill -9` of mongod as soon
as the response has come, a restart of mongod, and a read through the service of everything acknowledged in that group.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sds_client import Client
from service.runtime.local_mongo import LocalMongo, local_mongo
from tests.support.api import make_output
from tests.support.processes import ServiceProcess, make_token

GROUP_SIZE = 20  # writes per group, so that each check reads little


def ids(items: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {item["key_hash"]: item["id"] for item in items}


def measure(times: int) -> int:
    """Return how many acknowledged writes were lost."""
    lost = 0
    with tempfile.TemporaryDirectory(prefix="sds-durability-") as folder, ExitStack() as database:

        def start() -> LocalMongo:
            return database.enter_context(local_mongo(Path(folder), lambda line: None))

        mongo = start()
        with (
            ServiceProcess(mongo.url).wait_until_ready() as service,
            Client(service.url, make_token(mongo.url, 1)) as client,
        ):
            expected: dict[str, dict[str, int]] = {}
            responses: list[dict[str, Any]] = []
            for number in range(times):
                group = f"durability-{number // GROUP_SIZE}"
                client.push(group, [make_output(number)], on_batch=lambda _, response: responses.append(response))
                os.kill(mongo.pid, signal.SIGKILL)
                database.close()
                mongo = start()  # on the port it had before
                acknowledged = expected.setdefault(group, {})
                acknowledged |= ids(responses.pop()["items"])
                stored = ids(client.outputs(group))
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
