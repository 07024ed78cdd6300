"""What reads promise, whatever MONGO_URL says; what a wrong login or missing rights turn into."""

from __future__ import annotations

import asyncio
import logging
import math
import time

import pytest
from pymongo.errors import OperationFailure
from pymongo.read_preferences import Primary

from service.settings import Settings
from service.store import Store, StoreUnavailable
from service.store.contract import stored
from service.store.readiness import Readiness
from tests.support.api import Api, until_ready
from tests.support.fault_proxy import FaultProxy, refuse

WRITE_CONCERN_TIMEOUT = 64


@pytest.mark.parametrize(
    "option",
    [
        "readPreference=secondaryPreferred",
        "readPreference=nearest&maxStalenessSeconds=120",
        "readPreference=secondary&readPreferenceTags=dc:ny&readPreferenceTags=",
    ],
)
async def test_every_read_goes_to_the_primary_whatever_the_url_says(settings: Settings, option: str) -> None:
    store = Store.connect(settings, f"mongodb://127.0.0.1:1/?{option}")
    assert store.client.read_preference == Primary()
    assert store.database["groups"].read_preference == Primary()
    await store.close()


@pytest.mark.parametrize(("code", "fix"), [(13, "grant it readWrite"), (18, "correct user, password and authSource")])
async def test_wrong_login_and_missing_rights_say_what_to_fix(
    code: int, fix: str, caplog: pytest.LogCaptureFixture
) -> None:
    @stored
    async def fail() -> None:
        raise OperationFailure("secret text", code)

    with pytest.raises(StoreUnavailable):
        await fail()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert fix in record.getMessage() and "secret text" not in caplog.text


class TestAMajorityThatIsAway:
    """A primary without it still responds to `ping` and to reads."""

    @pytest.fixture
    async def store(self, wired: Store) -> Store:
        return wired

    @pytest.mark.slow
    async def test_readyz_fails(self, api: Api, wire: FaultProxy) -> None:
        await until_ready(api)
        wire.before("update", "probes", refuse(WRITE_CONCERN_TIMEOUT), times=math.inf)
        async with asyncio.timeout(60):
            while (response := await api.get("/readyz")).status == 200:  # as it was found within the last second
                await asyncio.sleep(0.05)
        assert (response.status, response.problems()) == (503, [([], "unavailable")])
        assert (await api.get("/healthz")).status == 200

    async def test_it_is_asked_for_once_per_second_however_many_want_to_know(
        self, store: Store, wire: FaultProxy
    ) -> None:
        asked = wire.before("update", "probes", refuse(WRITE_CONCERN_TIMEOUT), times=math.inf)
        readiness = Readiness(store.database)
        started = time.monotonic()
        assert not any([await readiness.check() for _ in range(50)])
        assert len(asked.bodies) <= 1 + (time.monotonic() - started)
