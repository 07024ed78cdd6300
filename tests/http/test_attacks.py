"""What one tenant did to stop the others once: the attacks of `scripts.attack`, smaller, on a real process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from scripts.attack.attacks import Caller, Target
from scripts.attack.catalogue import ATTACKS
from tests.support.processes import ServiceProcess, make_token

# The probe comes late itself where others compete for the cores.
pytestmark = pytest.mark.alone

# `python -m scripts.attack` runs them in full size.
SCALE = 0.1
MAX_STALL, MAX_GROWTH = 0.1, 128 * 2**20  # half of MAX_BYTES_IN_FLIGHT
ATTACKER, OTHER = 8_000_000_201, 8_000_000_202
LONG = {"5b", "6b", "9", "10", "12", "18"}


@pytest.fixture(scope="module")
def service(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url) as service:
        yield service.wait_until_ready()


@pytest.fixture(scope="module")
def tokens(mongo_url: str) -> list[str]:
    return [make_token(mongo_url, ATTACKER, "read", "write", "delete", "state"), make_token(mongo_url, OTHER)]


async def suffer(service: ServiceProcess, tokens: list[str], name: str) -> Target:
    timeout = aiohttp.ClientTimeout(60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        attacker, other = (Caller(session, service.url, token) for token in tokens)
        target = Target(service.url, service.process.pid, attacker, other, SCALE)
        await ATTACKS[name][1](target)
        return target


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in LONG])
def test_an_attack_neither_stalls_nor_fills_the_process_nor_keeps_others_out(
    service: ServiceProcess, tokens: list[str], name: str
) -> None:
    stalls: list[float] = []
    while len(stalls) < 3:  # what stalls does so each time; a busy machine only now and then
        target = asyncio.run(suffer(service, tokens, name))
        assert target.probe is not None
        assert target.probe.growth < MAX_GROWTH, (target.probe, target.facts)
        stalls.append(target.probe.stall)
        if stalls[-1] < MAX_STALL:
            break
    assert min(stalls) < MAX_STALL, (stalls, target.probe, target.facts)
    statuses = {target.facts.get("status", 200), *target.facts.get("statuses", ())}
    assert not statuses & {401, 403, 404, 405}, target.facts  # else nothing was attacked
    assert target.facts.get("followers", 1) > 0, target.facts
    assert target.facts.get("other_status", 200) == 200, target.facts
    assert target.facts.get("other_refused", 0) == 0, target.facts
    assert target.facts.get("still_open", 0) == 0, target.facts
