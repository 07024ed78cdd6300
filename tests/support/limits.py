"""The limits that tests make small, and the clocks that they move: the only patches of the inside of the service.

Each is a constant that bounds work or a pause, too large to be reached by real data or in real time in a test of
milliseconds. A test names a limit by what it bounds; where it is kept is known here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

LIMITS = {
    # A search reads windows of 100 to 5,000 items for a second: its races need a dozen windows.
    "first_window": "service.store.outputs.ranges._FIRST_WINDOW",
    "window": "service.store.outputs.ranges._WINDOW",
    "search_seconds": "service.store.outputs.ranges._WINDOWS_SECONDS",
    "hidden": "service.store.outputs.query._MAX_HIDDEN",
    # An export reads up to 1,000 items at once, and learns the columns of a CSV from half a megabyte.
    "first_streamed": "service.store.outputs.pages._FIRST_STREAMED",
    "streamed": "service.store.outputs.pages._MAX_STREAMED",
    "learned": "service.http.output.exports._LEARNED",
    "last_page_seconds": "service.store.outputs.pages._WALK_SECONDS",
    # A deletion makes rounds of 100 to 500 items for some seconds, with pauses between them.
    "deleted_at_once": "service.store.outputs.deletion.ITEMS_AT_ONCE",
    "deleted_beside_others": "service.store.outputs.deletion.ITEMS_BESIDE_OTHERS",
    "deletion_pause": "service.store.outputs.deletion.PAUSE",
    "deletion_seconds": "service.store.outputs.deletion.SECONDS",
    "missing_deletion_seconds": "service.store.missing_items._DELETE_SECONDS",
    "expiring_seconds": "service.store.upkeep._EXPIRING_SECONDS",
    # A text of more than half a megabyte is decoded in pieces, up to 150,000 keys and 525,000 entries.
    "piece": "service.http.input.fast_decoder.PIECE",
    "keys": "service.http.input.fast_decoder.MAX_KEYS",
    "entries": "service.http.input.fast_decoder.MAX_ENTRIES",
    # A list is read in chunks of a megabyte, and secrets are sealed anew in batches of 1,000.
    "first_records": "service.store.listing._FIRST_RECORDS",
    "chunk_bytes": "service.store.listing.CHUNK_BYTES",
    "sealed_at_once": "service.store.sealing.CHUNK",
    "state_chunk": "service.store.browser_state.CHUNK",
    # Thousands of jobs, messages, groups, pools or sessions, a hundred thousand items.
    "holders": "service.store.missing_items.MAX_HOLDERS",
    "judged_jobs": "service.store.missing_items._MAX_JUDGED",
    "judged": "service.store.judging.MAX_JUDGED",
    "waiting_messages": "service.store.deliveries.MAX_WAITING",
    "sessions_in_pool": "service.store.sessions.records.MAX_IN_POOL",
    "sessions_in_organization": "service.store.sessions.records.MAX_IN_ORGANIZATION",
    "pools": "service.store.sessions.pools.MAX_POOLS",
    "kept_messages": "service.store.deliveries.KEPT",
    "refused_messages": "service.store.deliveries.REFUSED",
    "webhooks": "service.store.webhooks.MAX_WEBHOOKS",
    "groups_per_look": "service.store.deliveries._GROUPS_AT_ONCE",
    "sent_at_once": "service.webhooks._AT_ONCE",
    # Pauses and patience of half a second to half a minute.
    "purge_after_seconds": "service.store.sessions.pools._PURGE_AFTER_SECONDS",
    "purge_every_seconds": "service.store.sessions.pools._PURGE_EVERY_SECONDS",
    "settle_seconds": "service.store.crawls._SETTLE_SECONDS",
    "failover_seconds": "service.store.contract._FAILOVER_SECONDS",
    "retry_seconds": "service.store.contract._RETRY_SECONDS",
    "stream_retry_seconds": "service.store.watch._RETRY_SECONDS",
    "stream_idle_seconds": "service.store.watch._IDLE_SECONDS",
    "reap_seconds": "service.store.REAP_SECONDS",
    "skew": "service.store.deliveries._SKEW",
    "figures_seconds": "service.store.figures.MAX_AGE_SECONDS",
    "heartbeat_seconds": "service.handlers.export._HEARTBEAT_SECONDS",
    "token_watch_seconds": "service.http.middleware.auth._WATCH_SECONDS",
    "whole_seconds": "service.http.reply._WHOLE_SECONDS",
    "inflate_seconds": "service.http.input.body._INFLATE_SECONDS",
    "handshake_seconds": "service.runtime.server._HANDSHAKE_SECONDS",
    "mongod_start_seconds": "service.runtime.local_mongo.mongod.START_SECONDS",
    "mongod_stop_seconds": "service.runtime.local_mongo.mongod.STOP_SECONDS",
    # The client's.
    "state_body_bytes": "sds_client.state.BYTES",
    "state_body_records": "sds_client.state.RECORDS",
    "connect_seconds": "sds_client.transport._CONNECT_SECONDS",
    "send_rate": "sds_client.transport._MIN_SEND_RATE",
    "doubt_seconds": "sds_client.following._DOUBT_SECONDS",
}

Small = Callable[..., None]
MachineClock = Callable[[timedelta], None]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Small:
    """Return a function that makes limits small until the end of the test: `small(first_window=2, window=3)`."""

    def make(**limits: Any) -> None:
        for name, value in limits.items():
            monkeypatch.setattr(LIMITS[name], value)

    return make


@pytest.fixture
def machine_clock(monkeypatch: pytest.MonkeyPatch) -> MachineClock:
    """Return a function that sets the clock of this machine, as the store reads it, ahead or back."""

    def move(by: timedelta) -> None:
        class Moved(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(UTC) + by

        monkeypatch.setattr("service.store.clock.datetime", Moved)

    return move
