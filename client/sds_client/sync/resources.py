"""Everything but outputs: browser state, reviews, groups, and the token itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sds_client.state import Counts, StateCounts
from sds_client.sync.waiting import Waiting
from sds_client.types import Cookie, Group, GroupFields, Item, Job, LocalStorageEntry, Review, Token


class Resources(Waiting):
    def cookies(self, domain: str | None = None, active: bool = False) -> list[Cookie]:
        """Return the cookies, of one exact domain if given, with `active` only those not expired."""
        return self._wait(self._client.cookies(domain, active))

    def set_cookies(self, cookies: Iterable[Mapping[str, Any]]) -> Counts:
        """Set cookies; one of the same domain, path and name is replaced."""
        return self._wait(self._client.set_cookies(cookies))

    def delete_cookies(
        self,
        *,
        domain: str | None = None,
        path: str | None = None,
        name: str | None = None,
        expired: bool = False,
        all: bool = False,
    ) -> int:
        """Delete the cookies that match all of what is given, of which at least one is needed; return how many."""
        return self._wait(self._client.delete_cookies(domain=domain, path=path, name=name, expired=expired, all=all))

    def local_storage(self, domain: str | None = None, active: bool = False) -> list[LocalStorageEntry]:
        """Return the local-storage entries, of one exact domain if given, with `active` only those not expired."""
        return self._wait(self._client.local_storage(domain, active))

    def set_local_storage(self, entries: Iterable[Mapping[str, Any]]) -> Counts:
        """Set local-storage entries; one of the same domain, path and key is replaced."""
        return self._wait(self._client.set_local_storage(entries))

    def delete_local_storage(
        self,
        *,
        domain: str | None = None,
        path: str | None = None,
        key: str | None = None,
        expired: bool = False,
        all: bool = False,
    ) -> int:
        """Delete the entries that match all of what is given, of which at least one is needed; return how many."""
        return self._wait(
            self._client.delete_local_storage(domain=domain, path=path, key=key, expired=expired, all=all)
        )

    def storage_state(self, domain: str | None = None) -> Item:
        """Return Playwright's storageState, of a domain and its subdomains if given."""
        return self._wait(self._client.storage_state(domain))

    def set_storage_state(self, state: Mapping[str, Any]) -> StateCounts:
        """Merge what Playwright's `context.storage_state()` returned, record by record."""
        return self._wait(self._client.set_storage_state(state))

    def reviews(self, group: str) -> list[Review]:
        """Return the latest review of each reviewed job of a group, newest first."""
        return self._wait(self._client.reviews(group))

    def add_reviews(self, group: str, reviews: Iterable[Mapping[str, Any]]) -> list[Review]:
        """Add reviews and return them with their ids; see `AsyncClient.add_reviews`."""
        return self._wait(self._client.add_reviews(group, reviews))

    def groups(self) -> list[Group]:
        """Return the organization's groups with their counts, newest change first."""
        return self._wait(self._client.groups())

    def group(self, group: str) -> Group:
        """Return the counts of one group, by day too."""
        return self._wait(self._client.group(group))

    def jobs(self, group: str) -> list[Job]:
        """Return the jobs of a group with their counts and latest reviews, newest first."""
        return self._wait(self._client.jobs(group))

    def fields(self, group: str, job_id: str | None = None) -> GroupFields:
        """Return the fill rate, types and example values of each path in `data`, over the newest 1000 items."""
        return self._wait(self._client.fields(group, job_id))

    def set_retention(self, group: str, days: int | None) -> None:
        """Let the service delete items of a group that were not scraped for `days` days; None keeps them for ever."""
        self._wait(self._client.set_retention(group, days))

    def delete_group(self, group: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Delete all outputs, reviews and jobs of a group; see `AsyncClient.delete_group`."""
        return self._wait(self._client.delete_group(group, on_progress=on_progress))

    def token(self) -> Token:
        """Return the organization, scopes, label and expiry of the client's own token."""
        return self._wait(self._client.token())
