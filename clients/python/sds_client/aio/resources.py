"""Everything but outputs: browser state, reviews, groups, and the token itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack, cast

from sds_client.aio.base import Base
from sds_client.deleting import delete_all
from sds_client.errors import ClientError
from sds_client.paths import group_path, job_path, reviews_path, state_delete_query, state_query, webhook_path
from sds_client.state import Counts, StateCounts, batches, state_chunks
from sds_client.types import (
    ChangedItem,
    Cookie,
    Delivery,
    Group,
    GroupFields,
    GroupSet,
    GroupSettings,
    GroupWithSettings,
    Item,
    Job,
    JobChangesSummary,
    JobSet,
    LocalStorageEntry,
    Review,
    Token,
    Webhook,
    WebhookCreated,
)
from sds_client.writing import counted_from

T = TypeVar("T")

# The settings of a group that None switches off.
_SWITCHED_OFF = ("retention_days", "silent_hours")
# The default of the service's MAX_RECORDS.
_REVIEWS = 1000


class Resources(Base):
    async def cookies(self, domain: str | None = None, active: bool = False) -> list[Cookie]:
        """Return the cookies, of one exact domain if given, with `active` only those not expired."""
        return await self._get(list[Cookie], "/v1/cookies", state_query(domain, active))

    async def set_cookies(self, cookies: Iterable[Mapping[str, Any]]) -> Counts:
        """Set cookies; one of the same domain, path and name is replaced."""
        return await self._set("/v1/cookies", cookies)

    async def delete_cookies(
        self,
        *,
        domain: str | None = None,
        path: str | None = None,
        name: str | None = None,
        expired: bool = False,
        all: bool = False,
    ) -> int:
        """Delete the cookies that match all of what is given, of which at least one is needed; return how many."""
        query = state_delete_query(domain=domain, path=path, name=name, expired=expired, all=all)
        return await delete_all(self._transport, "/v1/cookies", query)

    async def local_storage(self, domain: str | None = None, active: bool = False) -> list[LocalStorageEntry]:
        """Return the local-storage entries, of one exact domain if given, with `active` only those not expired."""
        return await self._get(list[LocalStorageEntry], "/v1/local-storage", state_query(domain, active))

    async def set_local_storage(self, entries: Iterable[Mapping[str, Any]]) -> Counts:
        """Set local-storage entries; one of the same domain, path and key is replaced."""
        return await self._set("/v1/local-storage", entries)

    async def delete_local_storage(
        self,
        *,
        domain: str | None = None,
        path: str | None = None,
        key: str | None = None,
        expired: bool = False,
        all: bool = False,
    ) -> int:
        """Delete the entries that match all of what is given, of which at least one is needed; return how many."""
        query = state_delete_query(domain=domain, path=path, key=key, expired=expired, all=all)
        return await delete_all(self._transport, "/v1/local-storage", query)

    async def storage_state(self, domain: str | None = None) -> Item:
        """Return Playwright's storageState, of a domain and its subdomains if given."""
        return await self._get(Item, "/v1/storage-state", state_query(domain, False))

    async def set_storage_state(self, state: Mapping[str, Any]) -> StateCounts:
        """Merge what Playwright's `context.storage_state()` returned, record by record."""
        counts = StateCounts()
        for chunk in state_chunks(state):
            counts.add((await self._transport.call("POST", "/v1/storage-state", value=chunk)).json)
        return counts

    async def reviews(self, group: str, history: bool = False) -> list[Review]:
        """Return the latest review of each reviewed job of a group, or with `history` every review, newest first."""
        return await self._get(list[Review], reviews_path(group), {"history": "true"} if history else {})

    async def add_reviews(self, group: str, reviews: Iterable[Mapping[str, Any]]) -> list[Review]:
        """Add reviews, at most 1000 per request, and return them with their ids.

        Not sent again after a lost connection: it might add them twice. If a request fails, those before it are stored.
        """
        given, added = list(reviews), list[Review]()
        for start in range(0, len(given) or 1, _REVIEWS):
            some = given[start : start + _REVIEWS]
            response = await self._transport.call("POST", reviews_path(group), value=some, repeatable=False)
            added += response.json["items"]
        return added

    async def groups(self) -> list[Group]:
        """Return the organization's groups with their counts, newest change first."""
        return await self._get(list[Group], "/v1/groups")

    async def group(self, group: str) -> GroupWithSettings:
        """Return the counts of one group, by day too, and its settings."""
        return await self._get(GroupWithSettings, group_path(group))

    async def set_group(self, group: str, **settings: Unpack[GroupSettings]) -> GroupSet:
        """Change settings of a group; those left out stay."""
        value = {name: given for name, given in settings.items() if given is not None or name in _SWITCHED_OFF}
        return cast(GroupSet, (await self._transport.call("PUT", group_path(group), value=value)).json)

    async def jobs(self, group: str) -> list[Job]:
        """Return the jobs of a group with their counts and latest reviews, newest first."""
        return await self._get(list[Job], group_path(group, "/jobs"))

    async def job(self, group: str, job_id: str) -> Job:
        """Return one job of a group."""
        return await self._get(Job, job_path(group, job_id))

    async def job_changes(self, group: str, job_id: str, path: str | None = None) -> AsyncGenerator[ChangedItem]:
        """Yield the items that a job changed, each field with its value before and after.

        With `path`, only changes of this field or below it. The list stays complete when later jobs have seen or
        changed the items, as far as the group's `history_days` reach.
        """
        query = {"limit": "100"} | ({"path": path} if path else {})
        cursor: int | None = 0
        while cursor is not None:
            query["cursor"] = str(cursor)
            page = await self._get(Item, job_path(group, job_id, "/changes"), query)
            for item in page["items"]:
                yield item
            cursor = page["metadata"]["next_cursor"]

    async def job_changes_summary(self, group: str, job_id: str, path: str | None = None) -> JobChangesSummary:
        """Return how many items a job changed and in which fields, most changed first."""
        query = {"summary": "true"} | ({"path": path} if path else {})
        return await self._get(JobChangesSummary, job_path(group, job_id, "/changes"), query)

    async def finish_job(
        self,
        group: str,
        job_id: str,
        *,
        state: Literal["running", "finished", "failed"] = "finished",
        series: str | None = None,
        delete_missing: bool = False,
    ) -> JobSet:
        """Set the state of a crawl (ended, or running), and return the job with its counts and its verdict.

        Send `running` before the first item: only it creates a job, and what anybody has seen since is not missing.
        With `delete_missing`, what is missing from the job is deleted, unless the verdict is `failed` or `held_back`
        gives another reason; the token needs the scope `delete`. Repeating the call changes nothing.
        """
        value = {"state": state, "missing": "delete" if delete_missing else "keep"}
        if series is not None:
            value["series"] = series
        warnings: list[Any] = []
        while True:
            job = (await self._transport.call("PUT", job_path(group, job_id), value=value)).json
            warnings = warnings or job.get("warnings", [])  # the first response has them
            if not job.pop("more"):
                return cast(JobSet, {"held_back": None, **job, "warnings": warnings})

    async def fields(self, group: str, job_id: str | None = None) -> GroupFields:
        """Return the fill rate, types and example values of each path in `data`, over the newest 1000 items."""
        return await self._get(GroupFields, group_path(group, "/fields"), {"job_id": job_id} if job_id else None)

    async def set_retention(self, group: str, days: int | None) -> None:
        """Let the service delete items of a group that were not scraped for `days` days; None keeps them for ever."""
        await self._transport.call("PUT", group_path(group), value={"retention_days": days})

    async def delete_group(self, group: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Delete all outputs, reviews and jobs of a group; return how many outputs.

        Large groups take many requests: `on_progress` is called after each with the number deleted so far.
        """
        return await delete_all(self._transport, group_path(group), {}, on_progress)

    async def webhooks(self) -> list[Webhook]:
        """Return the organization's webhooks with their last results."""
        return await self._get(list[Webhook], "/v1/webhooks")

    async def add_webhook(
        self,
        url: str,
        events: Sequence[str],
        *,
        group: str | None = None,
        label: str = "",
        format: Literal["standard", "slack", "discord", "teams"] = "standard",
    ) -> WebhookCreated:
        """Add a webhook and return it with its secret, which is shown only here."""
        value = {"url": url, "events": list(events), "group_id": group, "label": label, "format": format}
        response = await self._transport.call("POST", "/v1/webhooks", value=value, repeatable=False)
        return cast(WebhookCreated, response.json)

    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook and its messages."""
        await self._transport.call("DELETE", webhook_path(webhook_id))

    async def test_webhook(self, webhook_id: str) -> Delivery:
        """Send a test message to a webhook and return the result."""
        return cast(Delivery, (await self._transport.call("POST", webhook_path(webhook_id, "/test"))).json)

    async def webhook_deliveries(self, webhook_id: str) -> list[Delivery]:
        """Return the last deliveries of a webhook, newest first."""
        return await self._get(list[Delivery], webhook_path(webhook_id, "/deliveries"))

    async def token(self) -> Token:
        """Return the organization, scopes, label and expiry of the client's own token."""
        return await self._get(Token, "/v1/token")

    async def _get(self, kind: type[T], path: str, query: Mapping[str, str] | None = None) -> T:
        return cast(T, (await self._transport.call("GET", path, query=query)).json)

    async def _set(self, path: str, records: Iterable[Mapping[str, Any]]) -> Counts:
        counts = Counts()
        for batch in batches(records):
            try:
                counts.add((await self._transport.call("POST", path, body=batch.body)).json)
            except ClientError as error:
                raise counted_from(error, batch.first) from None
        return counts
