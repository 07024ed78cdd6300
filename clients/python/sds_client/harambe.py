"""harambe: the data that a scraper saves goes to the service, and a run starts with the service's cookies.

async with Observer(url, token, group="lamps", key_fields=["sku"]) as observer:
    await SDK.run(scraper, "https://shop.example/", observer=observer, **await observer.harness_options())
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

from sds_client import formats
from sds_client.aio import AsyncClient
from sds_client.beginning import Beginning, new_job_id
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
    """

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
    ) -> None:
        self._client, self._group, self._keys = AsyncClient(url, token, patience=patience), group, key_fields
        self._job = job_id or new_job_id(group)
        self._beginning, self._tags = Beginning(self._client, group, series), tags or {}
        self._files: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def harness_options(self, domain: str | None = None) -> dict[str, Any]:
        """Return cookies and local storage as `SDK.run` takes them, of a domain and its subdomains if given."""
        state = await self._client.storage_state(domain)
        known = ("name", "value", "domain", "path", "expires", "httpOnly", "secure", "sameSite")
        cookies = [{name: cookie[name] for name in known if name in cookie} for cookie in state["cookies"]]
        entries = [
            {
                "domain": origin["origin"].removeprefix(_HTTPS),
                "path": "/",
                "key": entry["name"],
                "value": entry["value"],
            }
            for origin in state["origins"]
            if origin["origin"].startswith(_HTTPS)
            for entry in origin["localStorage"]
        ]
        return {"cookies": cookies, "local_storage": entries}

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
        """Merge the browser's cookies into the organization's."""
        await self._client.set_storage_state(formats.from_value(cookies))

    async def on_save_local_storage(self, local_storage: list[dict[str, Any]]) -> None:
        """Merge local-storage entries into the organization's."""
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
