"""How tests call the service, and the data they send: lifelike by default, changed by override."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from aiohttp.test_utils import TestClient
from multidict import CIMultiDictProxy

SHAPE = {"loc", "msg", "type"}


@dataclass
class Response:
    """A response that was read to its end."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    json: Any

    def problems(self) -> list[tuple[list[str], str]]:
        """Return the location and type of each problem, after checking the error shape."""
        assert self.headers["Content-Type"].startswith("application/json"), self.headers
        assert set(self.json) == {"detail"} and self.json["detail"]
        for problem in self.json["detail"]:
            assert set(problem) == SHAPE
            assert all(type(part) is str for part in problem["loc"])
            assert problem["msg"] and type(problem["msg"]) is str and type(problem["type"]) is str
        return [(problem["loc"], problem["type"]) for problem in self.json["detail"]]


class Api:
    """A caller with a token."""

    def __init__(self, client: TestClient[Any, Any], token: str, organization_id: int) -> None:
        self.client, self.token, self.organization_id = client, token, organization_id

    async def request(self, method: str, path: str, **options: Any) -> Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        async with self.client.request(method, path, headers=headers, **options) as response:
            body = await response.read()
            is_json = body and response.content_type == "application/json"
            return Response(response.status, response.headers, body, json.loads(body) if is_json else None)

    async def get(self, path: str, **options: Any) -> Response:
        return await self.request("GET", path, **options)

    async def post(self, path: str, value: Any = None, **options: Any) -> Response:
        if value is not None:
            options["json"] = value
        return await self.request("POST", path, **options)

    async def patch(self, path: str, value: Any, **options: Any) -> Response:
        return await self.request("PATCH", path, json=value, **options)

    async def put(self, path: str, value: Any, **options: Any) -> Response:
        return await self.request("PUT", path, json=value, **options)

    async def delete(self, path: str, **options: Any) -> Response:
        return await self.request("DELETE", path, **options)

    async def ok(self, path: str, value: Any = None, **options: Any) -> Any:
        """Return the JSON of a successful GET, or of a successful POST of `value`."""
        response = await (self.get(path, **options) if value is None else self.post(path, value, **options))
        assert response.status == 200, response.body
        return response.json


async def until_ready(api: Api) -> None:
    """Wait until the database has confirmed a write: a busy disk may take longer than the second that it has."""
    async with asyncio.timeout(60):
        while (await api.get("/readyz")).status != 200:
            await asyncio.sleep(0.1)


def make_cookie(**changes: Any) -> dict[str, Any]:
    return {
        "domain": ".shop.example",
        "name": "session",
        "value": "s3cret",
        "secure": True,
        "http_only": True,
        "expires": "2030-01-31T12:00:00Z",
        "path": "/",
    } | changes


def make_entry(**changes: Any) -> dict[str, Any]:
    return {
        "domain": "shop.example",
        "key": "theme",
        "value": "dark",
        "path": "/",
        "expires": "2030-01-31T12:00:00Z",
    } | changes


def make_review(**changes: Any) -> dict[str, Any]:
    return {"job_id": "job-1", "status": "approved", "comment": "Looks good."} | changes


def make_file(**changes: Any) -> dict[str, Any]:
    return {
        "field": "data.picture",
        "url_etag_hash": "0f343b0931126a20f133d67c2b018a3b",
        "blob_key": "pictures/1.jpg",
        "blob_url": "https://files.example/pictures/1.jpg",
        "source_url": "https://shop.example/p/1/picture.jpg",
        "file_url": "https://files.example/pictures/1.jpg",
        "file_type": "image/jpeg",
        "file_checksum": "9f86d081884c7d659a2feaa0c55ad015",
        "file_metadata": {"width": 1200, "height": 900},
    } | changes


def make_output(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "source_url": f"https://shop.example/p/{number}",
        "data": {"title": f"Lamp {number}", "price": {"amount": 19.99, "currency": "EUR"}, "sizes": [1, 2]},
        "root_job_id": "job-1",
        "key_hash": f"key-{number}",
        "tags": {"country": "Germany", "region": "DE-BE"},
        "files": [make_file()],
    } | changes


def make_outputs(count: int, title: str = "Lamp", first: int = 0) -> list[dict[str, Any]]:
    return [make_output(n, data={"title": f"{title} {n}"}) for n in range(first, first + count)]


async def walk(api: Api, path: str) -> list[dict[str, Any]]:
    """Return all items from a page on, following next_url to the end."""
    items = []
    url: str | None = path
    while url:
        page = await api.ok(url)
        items += page["items"]
        assert (page["metadata"]["next_cursor"] is None) == (page["metadata"]["next_url"] is None)
        url = page["metadata"]["next_url"]
        if url:
            url = "/" + url.split("/", 3)[3]
            assert not page["items"] or page["metadata"]["next_cursor"] >= page["items"][-1]["id"]
    return items
