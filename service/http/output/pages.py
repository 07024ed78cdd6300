"""A page of outputs as a reply: at once, or in parts of about a megabyte."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from aiohttp import web

from service.capacity import cpu
from service.http.keys import STORE
from service.http.metrics import ITEMS_OUT, METRICS
from service.http.output.etags import CACHING, page_etag
from service.http.output.paging import url_with_cursor
from service.http.reply import Reply
from service.store import Form, Group, Page, PageText, Part, Query, render_page


async def array(page: Page) -> bytes:
    """Return the items as the inside of a JSON array."""
    return await cpu.run(page.work, page.array)


# As all waiting readers of a query get it.
ITEMS = Form(array)


async def body(request: web.Request, page: Page) -> bytes:
    """Return a page as JSON."""
    return await cpu.run(page.work, partial(page.body, _next_url(request, page)))


def etag(request: web.Request, query: Query, version: int) -> dict[str, str]:
    """Return the ETag of a page; none where an unchanged item may move, without a new version, to another job."""
    has_version = query.job_id is None and query.missing_from is None
    return {"ETag": page_etag(request, version)} if has_version else {}


async def reply(request: web.Request, group: Group, query: Query, page: Page) -> Reply:
    """Return a page, or all parts of the page that begins with this one."""
    headers = CACHING | etag(request, query, page.version)
    if not query.newest_first:
        headers["X-Cursor"] = str(page.position)
    if page.cut:
        return Reply(_parts(request, group, query, page, headers), headers)
    request.app[METRICS].count_own(ITEMS_OUT, amount=len(page.documents))
    return Reply(await body(request, page), headers)


def shared_reply(request: web.Request, query: Query, part: Part) -> Reply:
    """Return a page that was rendered for several requests."""
    next_url = None if part.next_cursor is None else url_with_cursor(request, part.next_cursor)
    request.app[METRICS].count_own(ITEMS_OUT, amount=part.items)
    headers = CACHING | etag(request, query, part.version) | {"X-Cursor": str(part.next_cursor or part.version)}
    return Reply(render_page(part.text, next_url, part.next_cursor), headers)


async def _parts(
    request: web.Request, group: Group, query: Query, first: Page, headers: dict[str, str]
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a page.

    `X-Cursor` is the position of the last part if the response is complete before it is sent, else of an earlier one.
    """
    text, last = PageText(), first
    async for page in request.app[STORE].outputs.parts(group, query, first):
        request.app[METRICS].count_own(ITEMS_OUT, amount=len(page.documents))
        if "X-Cursor" in headers:
            headers["X-Cursor"] = str(page.position)
        if page.documents:
            yield text.part(await array(page))
        last = page
    yield text.end(_next_url(request, last), last.next_cursor)


def _next_url(request: web.Request, page: Page) -> str | None:
    return None if page.next_cursor is None else url_with_cursor(request, page.next_cursor, page.walk)
