"""Sessions: browser identities in pools, leased to one worker at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from sds_client.aio.leased import LeasedSession
from sds_client.aio.resources import Resources
from sds_client.errors import ClientError
from sds_client.leasing import Lease, Outcome, save_body, take_lease
from sds_client.paths import lease_path, session_path
from sds_client.types import (
    Item,
    LeaseOptions,
    Pool,
    PoolSettings,
    Session,
    SessionMark,
    SessionState,
    SessionWithSecrets,
)


class Sessions(Resources):
    def session(self, pool: str, *, wait: float = 0, **options: Unpack[LeaseOptions]) -> LeasedSession:
        """Lease a session of a pool for a `with` block: the ready one that was used longest ago, or the one of `name`.

        With `wait`, wait as many seconds until one is ready, else NoSession is raised. The lease is renewed in the
        background. It ends as `good`, as `bad` after an exception, as `interrupted` after a cancellation or Ctrl-C, or
        as the block has said: `session.blocked()`, `session.logged_out()`.
        """
        return LeasedSession(self, Lease(self._transport, pool, wait, options))

    async def lease(self, pool: str, *, wait: float = 0, **options: Unpack[LeaseOptions]) -> Item:
        """Lease a session without a block, and without renewing: `lease_id`, `seconds` and the `session`."""
        return await take_lease(self._transport, pool, wait, options)

    async def release(
        self,
        lease_id: str,
        outcome: Outcome = "good",
        *,
        storage_state: Mapping[str, Any] | None = None,
        user_data: Mapping[str, Any] | None = None,
        rest_seconds: int | None = None,
        note: str | None = None,
    ) -> Item:
        """End a lease that `lease` has made; return the session and whether the state was `saved`.

        With `rest_seconds` the session rests, or is blocked, for so long, and not for as long as the pool says.
        """
        given = {"outcome": outcome, "rest_seconds": rest_seconds, "note": note}
        body = save_body(storage_state, user_data) | {key: value for key, value in given.items() if value is not None}
        released: Item = (await self._transport.call("POST", f"{lease_path(lease_id)}/release", value=body)).json
        return released

    async def pools(self) -> list[Pool]:
        """Return the organization's pools, with the number of their sessions by state."""
        return await self._get(list[Pool], session_path())

    async def set_pool(self, pool: str, **settings: Unpack[PoolSettings]) -> Pool:
        """Change settings of a pool, which is created if there is none; those left out stay."""
        changed: Pool = (await self._transport.call("PUT", session_path(pool), value=settings)).json
        return changed

    async def delete_pool(self, pool: str) -> int:
        """Delete a pool with its sessions; return how many."""
        return int((await self._transport.call("DELETE", session_path(pool))).json["deleted"])

    async def sessions(self, pool: str, state: SessionState | None = None) -> list[Session]:
        """Return the sessions of a pool by name, in one state if given, without their secrets."""
        return await self._get(list[Session], session_path(pool), {} if state is None else {"state": state})

    async def get_session(self, pool: str, name: str) -> SessionWithSecrets | None:
        """Return a session with its secrets, or None when there is none."""
        try:
            return await self._get(SessionWithSecrets, session_path(pool, name))
        except ClientError as error:
            if error.has_no("name") or error.has_no("pool"):
                return None
            raise

    async def put_session(
        self,
        pool: str,
        name: str,
        *,
        storage_state: Mapping[str, Any] | None = None,
        user_data: Mapping[str, Any] | None = None,
        note: str | None = None,
        state: SessionMark | None = None,
        if_version: int | None = None,
    ) -> Session:
        """Create a session or change it; what is None stays. A new `storage_state` makes it ready again.

        With `if_version` it is changed only while it has this version (0: while there is none), else
        `VersionConflict` is raised.
        """
        given = {"note": note, "state": state, "if_version": if_version}
        body = save_body(storage_state, user_data) | {key: value for key, value in given.items() if value is not None}
        path = session_path(pool, name)
        session: Session = (await self._transport.call("PUT", path, value=body, repeatable=if_version is None)).json
        return session

    async def delete_session(self, pool: str, name: str) -> bool:
        """Delete a session with its secrets and end its lease; return False when there is none."""
        try:
            await self._transport.call("DELETE", session_path(pool, name))
        except ClientError as error:
            if error.has_no("name") or error.has_no("pool"):
                return False
            raise
        return True
