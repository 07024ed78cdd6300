"""harambe: the data that a scraper saves goes to the service, and a run starts with the service's cookies.

async with Observer(url, token, group="lamps", key_fields=["sku"]) as observer:
    await SDK.run(scraper, "https://shop.example/", observer=observer, **await observer.harness_options())

With `session_pool` the run works with a leased session of that pool instead, and leaves its browser's state there.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import PurePath
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

from sds_client import formats
from sds_client.aio import AsyncClient
from sds_client.aio.leased import LeasedSession
from sds_client.beginning import Beginning, new_job_id
from sds_client.leasing import Outcome
from sds_client.transport import PATIENCE
from sds_client.types import JobSet
from sds_client.writing import key_hash

_RANDOM_NAME = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
# The time at which a browser printed a page: the only difference between two prints of the same page.
_PDF_DATES = re.compile(rb"/(?:CreationDate|ModDate) \(D:[^)]{0,32}\)")
_HTTPS = "https://"  # of the origins whose local storage harambe loads
# Downloads remembered until saved data names them.
_MAX_FILES = 1000


class Observer:
    """An `OutputObserver` of harambe-core. Each call returns when the service has stored what it was given.

    `key_fields` are the fields (or dotted paths) by which an item is the same as one from an earlier run; without
    them it is the page and all of its data. `job_id` names the run; by default it is the group, the time and a random
    end. `series` names the part of the group that the scraper crawls; the service knows it before the first item.
    A download whose URL is in saved data is listed in the item's `files`, with its SHA-256 (of a PDF: without its
    dates of creation); its content is not stored. A service that is away is waited for, for `patience` seconds.

    `session_pool` is the pool of sessions that the scraper works with: the block leases one, waits for it up to
    `session_wait` seconds, and raises NoSession without one. A page with a status of `session_blocked` or
    `session_logged_out` ends the session so; else it ends as `good`, or as `bad` after an exception, with the state of
    the browser. In the block, `session` is the leased session.
    """

    session: LeasedSession | None = None

    def __init__(
        self,
        url: str,
        token: str,
        group: str,
        *,
        key_fields: Sequence[str] = (),
        job_id: str | None = None,
        series: str | None = None,
        tags: dict[str, Any] | None = None,
        patience: float = PATIENCE,
        session_pool: str | None = None,
        session_wait: float = 60,
        session_blocked: Sequence[int] = (403, 429),
        session_logged_out: Sequence[int] = (401,),
    ) -> None:
        self._client, self._group, self._keys = AsyncClient(url, token, patience=patience), group, key_fields
        self._pool, self._wait = session_pool, session_wait
        self._outcomes: dict[int, Outcome] = {
            **dict.fromkeys(session_blocked, "blocked"),
            **dict.fromkeys(session_logged_out, "logged_out"),
        }
        self._account: _Account | None = None
        self._ending = AsyncExitStack()
        self._ending.push_async_callback(self._client.close)
        self._job = job_id or new_job_id(group)
        self._beginning, self._tags = Beginning(self._client, group, series), tags or {}
        self._files: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def __aenter__(self) -> Self:
        if self._pool is not None:
            try:
                leased = self._client.session(self._pool, wait=self._wait)
                self.session = await self._ending.enter_async_context(leased)
            except BaseException:
                await self._ending.aclose()
                raise
            self._account = _Account(self.session, self._outcomes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._ending.__aexit__(kind, error, traceback)

    async def harness_options(self, domain: str | None = None) -> dict[str, Any]:
        """Return cookies and local storage as `SDK.run` takes them, of a domain and its subdomains if given.

        Those of a leased session are all that it has, with its `user_agent` and `proxy` where its `user_data` has them.
        """
        if self._account is not None:
            return self._account.harness_options()
        return _browser_state(await self._client.storage_state(domain))

    async def on_save_data(self, data: dict[str, Any]) -> None:
        """Store one item; harambe puts its page under `__url`."""
        source = data.get("__url")
        if not isinstance(source, str):
            raise ValueError("saved data has no __url: harambe's SDK puts it there")
        kept = {name: value for name, value in data.items() if name != "__url"}
        output: dict[str, Any] = {"source_url": source, "root_job_id": self._job, "data": kept, "tags": self._tags}
        if self._keys:
            output["key_hash"] = key_hash(kept, self._keys)
        files = [{**self._files[url], "field": f"data.{path}"} for path, url in _texts(kept) if url in self._files]
        await self._beginning.declare(self._job)
        await self._client.push(self._group, [output | ({"files": files} if files else {})])

    async def finish(
        self, *, state: Literal["finished", "failed"] = "finished", delete_missing: bool = False
    ) -> JobSet:
        """Finish the job of the run, and return it with counts and verdict; see `AsyncClient.finish_job`.

        `delete_missing` is for a run that surely saw everything, and needs the scope `delete`.
        """
        await self._beginning.declare(self._job)
        return await self._client.finish_job(
            self._group, self._job, state=state, series=self._beginning.series, delete_missing=delete_missing
        )

    async def on_queue_url(self, url: str, context: dict[str, Any], options: dict[str, Any]) -> None:
        """Do nothing: the service stores what was scraped, not what will be."""

    async def on_download(self, download_url: str, filename: str, content: bytes, path: str = "") -> dict[str, str]:
        """Remember a file for the data that will name it. Older versions of harambe give no `path`.

        A random name, as `capture_html` makes, becomes `capture.html` for the first capture of a page and the
        checksum for further ones: the same page again gives the same data.
        """
        checksum = hashlib.sha256(_PDF_DATES.sub(b"", content)).hexdigest()
        if _RANDOM_NAME.fullmatch(PurePath(filename).stem):
            suffix = PurePath(filename).suffix
            is_first = f"{download_url}/capture{suffix}" not in self._files
            filename = f"{'capture' if is_first else checksum[:32]}{suffix}"
        url = f"{download_url}/{quote(filename)}"
        self._files[url] = {
            # By its page and name, so that the same run again changes nothing.
            "id": hashlib.sha256(url.encode()).hexdigest()[:32],
            "source_url": download_url,
            "file_url": url,
            "file_type": mimetypes.guess_type(filename)[0] or "application/octet-stream",
            "file_checksum": checksum,
            "file_metadata": {"filename": filename, "size": len(content)},
        }
        if len(self._files) > _MAX_FILES:
            self._files.popitem(last=False)
        return {"url": url, "filename": filename, "path": path}

    async def on_paginate(self, next_url: str) -> None:
        """Do nothing."""

    async def on_save_cookies(self, cookies: list[dict[str, Any]]) -> None:
        """Merge the browser's cookies into the organization's, or save the browser's state in the leased session."""
        state = formats.from_value(cookies)
        if self._account is not None:
            await self._account.save(state)
        else:
            await self._client.set_storage_state(state)

    async def on_save_local_storage(self, local_storage: list[dict[str, Any]]) -> None:
        """Merge local-storage entries into the organization's, or save the browser's state in the leased session."""
        if self._account is not None:
            await self._account.save({})
            return
        await self._client.set_local_storage(
            {
                "domain": _host(entry["domain"]),
                "path": entry.get("path") or "/",
                "key": entry["key"],
                "value": entry["value"],
            }
            for entry in local_storage
        )

    async def on_check_and_solve_captchas(self, page: Any) -> None:
        """Do nothing."""


class _Account:
    """The leased session as harambe's browser uses it, in one run after the other."""

    def __init__(self, session: LeasedSession, outcomes: Mapping[int, Outcome]) -> None:
        self._session, self._outcomes = session, outcomes
        self._state: dict[str, Any] = {"cookies": [], "origins": [], **(session.storage_state or {})}
        self._browser: Any = None

    def harness_options(self) -> dict[str, Any]:
        user_data = self._session.user_data
        options = {name: user_data[name] for name in ("user_agent", "proxy") if user_data.get(name)}
        return {**_browser_state(self._state), **options, "on_start": self._begin, "on_end": self._end}

    async def save(self, given: Mapping[str, Any]) -> None:
        """Save the browser's state during the lease, with the cookies that a scraper gives beside it."""
        self._look(await self._state_of_browser(), given.get("cookies", ()))
        await self._session.save(self._state)

    async def _begin(self, browser: Any) -> None:
        if hasattr(browser, "storage_state"):  # the harness without a browser gives its trace
            self._browser = browser
            browser.on("page", self._watch)

    async def _end(self, browser: Any) -> None:
        self._look(await self._state_of_browser())
        self._browser = None

    async def _state_of_browser(self) -> dict[str, Any]:
        return self._state if self._browser is None else dict(await self._browser.storage_state())

    def _look(self, state: dict[str, Any], cookies: Iterable[dict[str, Any]] = ()) -> None:
        """Remember a state, with some cookies put over its own; the end of the lease saves it."""
        merged = {(each["domain"], each["path"], each["name"]): each for each in (*state["cookies"], *cookies)}
        self._state = {**state, "cookies": list(merged.values())}
        self._session._ending["storage_state"] = self._state

    def _watch(self, page: Any) -> None:
        page.on("response", lambda response: self._judge(page, response))

    def _judge(self, page: Any, response: Any) -> None:
        outcome = self._outcomes.get(response.status)
        is_page = response.request.is_navigation_request() and response.frame == page.main_frame
        if outcome is not None and is_page:
            getattr(self._session, outcome)()


def _browser_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a storage state as harambe's harness takes it: cookies, and the local storage of its https origins."""
    known = ("name", "value", "domain", "path", "expires", "httpOnly", "secure", "sameSite")
    cookies = [{name: cookie[name] for name in known if name in cookie} for cookie in state["cookies"]]
    entries = [
        {"domain": origin["origin"].removeprefix(_HTTPS), "path": "/", "key": entry["name"], "value": entry["value"]}
        for origin in state["origins"]
        if origin["origin"].startswith(_HTTPS)
        for entry in origin["localStorage"]
    ]
    return {"cookies": cookies, "local_storage": entries}


def _host(domain: str) -> str:
    """Return the host of an entry: harambe's examples give an address, such as `https://shop.example`."""
    return urlsplit(domain).netloc if "://" in domain else domain


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a value with its dotted path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, (dict, list)):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, f"{path}.{name}" if path else str(name))
