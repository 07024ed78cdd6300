"""The synchronous client is the asynchronous one without `await`."""

from __future__ import annotations

import inspect

import pytest

from scripts.sync_client import CLIENT, MODULES, synchronous
from sds_client import AsyncClient, Client


@pytest.mark.parametrize("name", MODULES)
def test_the_synchronous_methods_are_those_generated_from_the_asynchronous_ones(name: str) -> None:
    generated = synchronous((CLIENT / "aio" / name).read_text(), f"aio/{name}")
    assert (CLIENT / "sync" / name).read_text() == generated, "run `make sync-client`"


def test_both_clients_have_the_same_public_methods() -> None:
    def names(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}

    assert names(Client) == names(AsyncClient)
    assert not any(inspect.iscoroutinefunction(method) for _, method in inspect.getmembers(Client, callable))


def test_work_awaited_on_other_objects_is_waited_for_in_the_loop() -> None:
    source = (
        "class Outputs(Base):\n"
        "    async def get(self) -> AsyncGenerator[int]:\n"
        '        page = (await self._transport.call("GET", "é", value=await self._get(1))).json\n'
        "        async for item in each(page):\n"
        "            yield item\n"
    )
    assert synchronous(source, "x.py").splitlines()[1:] == [
        "class Outputs(Base):",
        "    def get(self) -> Iterator[int]:",
        '        page = (self._wait(self._transport.call("GET", "é", value=self._get(1)))).json',
        "        for item in each(page):",
        "            yield item",
    ]
