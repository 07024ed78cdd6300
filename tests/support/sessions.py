"""Sessions as tests put, lease and release them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from service.store import Store
from tests.support.api import Api

OWN_ID = "own-lease-id-0123456789"


def make_state(value: str = "s3cret", **cookie: Any) -> dict[str, Any]:
    """Return a storage state whose session cookie has a value."""
    fields = {"name": "session", "value": value, "domain": ".shop.example", "path": "/", "expires": -1}
    return {
        "cookies": [fields | {"httpOnly": True, "secure": True, "sameSite": "Lax"} | cookie],
        "origins": [{"origin": "https://shop.example", "localStorage": [{"name": "who", "value": value}]}],
    }


async def put(api: Api, path: str, value: Any) -> Any:
    """Return the JSON of a successful PUT."""
    response = await api.put(path, value)
    assert response.status == 200, response.body
    return response.json


async def lease(api: Api, pool: str, **body: Any) -> Any:
    """Return a lease of a session of a pool."""
    return await api.ok(f"/v1/sessions/{pool}/lease", body)


async def release(api: Api, lease_id: str, outcome: str = "good", **body: Any) -> Any:
    """Return the session of a lease that ends."""
    return await api.ok(f"/v1/leases/{lease_id}/release", {"outcome": outcome, **body})


async def session_of(api: Api, pool: str, name: str) -> Any:
    """Return a session as the list of its pool has it."""
    (found,) = (
        session for session in await api.ok(f"/v1/sessions/{pool}") if session["name"] == name.replace("%2F", "/")
    )
    return found


async def lapse(store: Store, organization: int, name: str | None = None, seconds: float = 3600) -> None:
    """Let some time pass for the leases, uses, rests and blocks of an organization's sessions, or of one of them."""
    some = {"organization_id": organization} | ({} if name is None else {"name": name})

    def earlier(field: str) -> dict[str, Any]:
        return {"$subtract": [field, int(seconds * 1000)]}

    lease = {name: earlier(f"$$this.{name}") for name in ("since", "until", "at")}
    leases = {"$map": {"input": "$leases", "in": {"$mergeObjects": ["$$this", lease]}}}
    update = {
        "last_used": earlier("$last_used"),
        "due": {"$ifNull": [earlier("$due"), "$$REMOVE"]},
        "leases": {"$ifNull": [leases, "$$REMOVE"]},
    }
    await store.database["sessions"].update_many(some, [{"$set": update}])


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def refused(api: Api, pool: str = "shop", **body: Any) -> Any:
    """Return the response to a request that gets no session."""
    response = await api.post(f"/v1/sessions/{pool}/lease", body)
    assert (response.status, response.problems()) == (409, [(["path", "pool"], "no_session")])
    return response


async def lost(api: Api, lease_id: str) -> None:
    """Check that a lease is not live: neither renewed nor released, and nothing is saved."""
    for method, path in (("PUT", f"/v1/leases/{lease_id}"), ("POST", f"/v1/leases/{lease_id}/release")):
        body = {"outcome": "good"} if method == "POST" else {}
        response = await api.request(method, path, json={**body, "user_data": {"late": True}})
        assert (response.status, response.problems()) == (409, [(["path", "lease_id"], "lease_lost")])
