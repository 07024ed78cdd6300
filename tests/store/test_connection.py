"""What reads promise, whatever MONGO_URL says; what a wrong login or missing rights turn into."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from pymongo.errors import OperationFailure
from pymongo.read_preferences import Primary

from service.settings import Settings
from service.store import Store, StoreUnavailable
from service.store.contract import stored
from service.store.readiness import Readiness
from tests.support.api import Api, until_ready


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
    for part in (store.tokens._tokens, store.cookies._records, store.reviews._reviews, store.database["groups"]):
        assert part.read_preference == Primary()
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


class Unwritable:
    """A collection whose majority is away."""

    def __init__(self) -> None:
        self.asked = 0

    async def update_one(self, *_: Any, **__: Any) -> None:
        self.asked += 1
        raise OperationFailure("waiting for replication timed out", 64)


async def test_readyz_fails_when_a_majority_cannot_be_written(api: Api, store: Store) -> None:
    from service.http.keys import READINESS

    await until_ready(api)
    readiness: Any = api.client.app[READINESS]
    readiness._probes, readiness._asked = Unwritable(), 0.0
    response = await api.get("/readyz")
    assert (response.status, response.problems()) == (503, [([], "unavailable")])
    assert (await api.get("/healthz")).status == 200


async def test_readiness_is_asked_once_per_second_however_many_want_to_know(store: Store) -> None:
    probes = Unwritable()
    readiness: Any = Readiness(store.database)
    readiness._probes = probes
    started = time.monotonic()
    assert not any([await readiness.check() for _ in range(50)])
    assert probes.asked <= 1 + (time.monotonic() - started)


async def test_a_login_that_is_refused_is_503(settings: Settings, mongo_url: str) -> None:
    address = mongo_url.partition("://")[2].rpartition("@")[2].partition("/")[0]
    store = Store.connect(
        replace(settings, mongo_timeout=1.5), f"mongodb://nobody:wrong@{address}/?directConnection=true"
    )
    with pytest.raises(StoreUnavailable):
        await store.tokens.list()
    await store.close()
