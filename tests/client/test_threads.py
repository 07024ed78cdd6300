"""The client across threads, processes and event loops."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sds_client import AsyncClient, Client, ClientError
from tests.support.api import make_output, make_outputs
from tests.support.peer import peer
from tests.support.processes import SECONDS, ServiceProcess


def run(code: str, *arguments: str) -> str:
    """Run Python code in a process of its own and return what it printed."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "work",
    [
        lambda client: client.groups(),
        lambda client: next(client.ndjson("group")),
        lambda client: client.push("group", make_outputs(20), batch_items=5, concurrency=3),
    ],
    ids=["get", "ndjson", "push"],
)
async def test_a_call_that_waits_in_another_thread_ends_when_the_client_is_closed(
    work: Callable[[Client], Any],
) -> None:
    caught: list[BaseException] = []

    def call() -> None:
        try:
            work(client)
        except BaseException as error:
            caught.append(error)

    async with peer(*["silent"] * 4) as service:
        client = Client(service.url, "t")
        waiting = threading.Thread(target=call, daemon=True)
        waiting.start()
        while not service.requests:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(client.close)
        await asyncio.to_thread(waiting.join, SECONDS)
    assert not waiting.is_alive()
    assert [(type(error), str(error)) for error in caught] == [(ClientError, "the client was closed")]
    with pytest.raises(ClientError, match="the client was closed"):
        client.groups()
    client.close()


def test_a_client_that_nobody_closes_ends_when_it_is_collected(
    running: ServiceProcess, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    Client(running.url, token).token()
    gc.collect()
    assert threading.active_count() == before
    assert not [record for record in caplog.records if "nclosed" in record.getMessage()]  # as aiohttp logs it


def test_a_client_made_before_a_fork_is_refused_in_the_child(running: ServiceProcess, token: str) -> None:
    code = """if True:
        import os, sys
        from sds_client import Client
        client = Client(*sys.argv[1:])
        client.groups()
        if not os.fork():
            try:
                client.groups()
            except RuntimeError as error:
                print(error, flush=True)
            client.close()
            os._exit(0)
        os.wait()
        print(client.groups())
    """
    told = "this client was made before a fork: make a Client in each process"
    assert run(code, running.url, token).splitlines() == [told, "[]"]


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_a_thread_that_outlives_the_main_thread_can_push(
    client: Client, running: ServiceProcess, token: str, kind: str
) -> None:
    code = """if True:
        import asyncio, sys, threading
        from sds_client import AsyncClient, Client
        kind, url, token = sys.argv[1:]
        item = {"source_url": "https://shop.example/1", "root_job_id": "j", "data": {"text": "x" * 50_000}}

        async def push():
            async with AsyncClient(url, token) as client:
                return await client.push("group", [item])

        def work():
            threading.main_thread().join()
            if kind == "Client":
                print(client.push("group", [item]))
            else:
                print(asyncio.run(push()))

        client = Client(url, token)
        threading.Thread(target=work).start()
    """
    # Only the loop of `Client` is ours: a host that has to be looked up is for it alone.
    url = running.url.replace("127.0.0.1", "localhost") if kind == "Client" else running.url
    assert run(code, kind, url, token) == "Pushed(created=1, updated=0, unchanged=0)\n"


def test_an_async_client_works_in_one_loop_after_another(
    running: ServiceProcess, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what earlier tests left
    caplog.clear()
    client = AsyncClient(running.url, token)
    for number in range(3):
        assert asyncio.run(client.push("group", [make_output(number)])).created == 1
    asyncio.run(client.close())
    gc.collect()
    assert not [record for record in caplog.records if "nclosed" in record.getMessage()]  # as aiohttp logs it


def test_an_async_client_moves_to_another_loop_while_the_first_one_still_runs(
    running: ServiceProcess, token: str
) -> None:
    client = AsyncClient(running.url, token)

    async def push() -> None:
        await client.push("group", make_outputs(1))
        await asyncio.to_thread(asyncio.run, client.push("group", make_outputs(1)))
        await client.push("group", make_outputs(1))
        await client.close()

    asyncio.run(push())
