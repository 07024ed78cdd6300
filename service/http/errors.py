"""Exception -> status and body, in one table."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping
from itertools import accumulate, islice
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from service.capacity.gate import Full
from service.http.keys import REASON, REQUEST_ID, STREAMING
from service.store import CursorExpired, CursorInvalid, StoreError, StoreUnavailable

log = logging.getLogger("service")

MAX_PROBLEMS = 100
# Characters of one member of `loc`: a key of a body may have a megabyte, and each problem below it repeats it.
MAX_NAME = 64
_MAX_BODY = 64 * 1024

Problem = dict[str, Any]


class ApiError(Exception):
    """An error response: its status, problems and extra headers."""

    def __init__(
        self, status: int, problems: list[Problem], headers: Mapping[str, str] | None = None, reason: str = ""
    ) -> None:
        super().__init__(status, problems)
        self.status, self.problems, self.headers = status, problems, dict(headers or {})
        self.reason = reason  # of a 503, for the metrics


def problem(kind: str, message: str, *loc: str) -> Problem:
    """Return one entry of an error body; long members of its location are cut."""
    return {"loc": [part[:MAX_NAME] for part in loc], "msg": message, "type": kind}


def invalid(kind: str, message: str, *loc: str) -> ApiError:
    """Return the response to one faulty input."""
    return ApiError(422, [problem(kind, message, *loc)])


def not_found(what: str, name: str, similar_group: str | None = None) -> ApiError:
    """Return the response to an id in the path that nothing has, with the group that may have been meant."""
    hint = "" if similar_group is None else f": its group does not exist, did you mean {similar_group}?"
    return ApiError(404, [problem("not_found", f"There is no such {what}{hint}", "path", name)])


def invalid_fields(messages: Any, *loc: str) -> ApiError:
    """Return the response to Marshmallow's messages, each problem at its place below `loc`."""
    return ApiError(422, list(islice(_flatten(messages, list(loc)), MAX_PROBLEMS)))


def _flatten(messages: Any, loc: list[str]) -> Iterable[Problem]:
    if isinstance(messages, dict) and isinstance(messages.get("msg"), str):  # a field with this name has a list
        yield problem(messages["type"], messages["msg"], *loc)
    elif isinstance(messages, dict):
        for key, below in messages.items():
            yield from _flatten(below, loc if key == "_schema" else [*loc, str(key)])
    elif isinstance(messages, list):
        for message in messages:
            yield from _flatten(message, loc)
    else:
        yield problem("value_error", str(messages), *loc)


def unknown_path(path: str, nearest: str | None, *loc: str) -> Problem:
    """Return the problem, or warning, that none of the newest items of a group has a path."""
    hint = f": did you mean {nearest}?" if nearest else ""
    return problem("unknown_path", f"None of the newest 1000 items has {path}{hint}", *loc)


def error_body(problems: list[Problem]) -> bytes:
    """Return `{"detail": [{"loc": ["query", "limit"], "msg": "Must be …", "type": "int_type"}]}`.

    At most 64 KB: it is rendered on the event loop and not counted in the limits.
    """
    texts = [orjson.dumps(entry) for entry in problems]
    ends = accumulate(len(text) + 1 for text in texts)
    fitting = sum(end <= _MAX_BODY for end in ends)
    return b'{"detail":[%b]}' % b",".join(texts[: max(1, fitting)])


def error_response(error: ApiError) -> web.Response:
    """Return the response of an error."""
    response = web.Response(
        status=error.status,
        body=error_body(error.problems),
        content_type="application/json",
        headers=error.headers,
    )
    # The rest of the request may still arrive, or its end is unknown.
    if error.status == 408 or error.headers.get("Connection") == "close":
        response.force_close()
    return response


# Status -> type, message and location of an error that has only a status.
_HTTP = {
    400: ("bad_request", "The request could not be read", ()),
    404: ("not_found", "Nothing was found at this path", ("path",)),
    405: ("method_not_allowed", "The method is not allowed for this path", ("method",)),
    408: ("timeout", "The request took too long to arrive", ()),
    410: ("cursor_expired", "The cursor has expired: start again from the beginning", ("query", "cursor")),
    413: ("too_large", "The body is too large", ("body",)),
    414: ("too_large", "The path is too long", ("path",)),
    415: ("unsupported_media_type", "Unsupported content type", ("header", "Content-Type")),
    417: ("bad_request", "Must be 100-continue", ("header", "Expect")),
    429: ("rate_limited", "Too many requests", ()),
    431: ("too_large", "The headers are too large", ("header",)),
    503: ("unavailable", "The service is overloaded or its database does not respond: try again later", ()),
}
_INTERNAL = ("internal_error", "Internal server error", ())


def http_error(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """Return the response for a bare status."""
    kind, message, loc = _HTTP.get(status, _HTTP[400] if status < 500 else _INTERNAL)
    return ApiError(status, [problem(kind, message, *loc)], headers)


def unavailable(reason: str) -> ApiError:
    """Return a 503 that is counted under its reason: the name of a gate, tokens, database, not_ready, …"""
    kind, message, loc = _HTTP[503]
    return ApiError(503, [problem(kind, message, *loc)], {"Retry-After": "1"}, reason)


def to_api_error(error: BaseException) -> ApiError:
    """Return the response to an exception; exceptions outside the table become a 500 without details."""
    match error:
        case ApiError():
            return error
        case web.HTTPException():
            return http_error(error.status, {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
        case LineTooLong():  # a target starts with a slash, a header hardly ever
            return http_error(414 if bytes(error.args[0]).startswith(b"/") else 431)
        case HttpProcessingError():
            return http_error(431 if error.message.startswith("Too many headers") else 400)
        case Full():
            return unavailable(error.args[0])
        case StoreUnavailable():
            return unavailable("database")
        case CursorInvalid():
            return invalid("value_error", "Must be the cursor of an earlier response", "query", "cursor")
        case CursorExpired():
            return http_error(410)
        case ConnectionError():  # the client has gone: nobody reads this
            return ApiError(499, [problem("bad_request", "The connection was closed")], {"Connection": "close"})
        case _:
            return http_error(500)


def respond_to_error(request: web.Request, error: Exception) -> web.Response | None:
    """Return the response to an exception; cut the connection, and return None, if a response has begun.

    Not in the middleware, whose frame is in the traceback. There, `failure`, which may be the exception itself, would
    keep all frames, with the pages and texts in them, until garbage is collected.
    """
    failure = to_api_error(error)
    request[REASON] = failure.reason
    if failure.status >= 500:
        # Only the class: messages of drivers and codecs quote documents and values.
        log.log(
            logging.ERROR if failure.status == 500 else logging.WARNING,
            "request failed",
            extra={
                "error": type(error).__name__,
                # The store's errors have the class and the code of the driver's, and quote nothing.
                **({"cause": str(error)} if isinstance(error, StoreError) else {}),
                "status": failure.status,
                "at": place(error),
                "request_id": request.get(REQUEST_ID),
            },
        )
    if isinstance(error, ConnectionError):
        # The frame that waited for the client and this exception hold each other.
        traceback.clear_frames(error.__traceback__)
    if request.get(STREAMING):
        # A part of the response is sent: cut the connection, so that it is not taken for complete.
        if request.transport is not None:
            request.transport.abort()
        return None
    return error_response(failure)


def place(error: BaseException) -> str:
    """Return where an exception was raised, without any of its values."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return "" if frame is None else f"{frame.tb_frame.f_code.co_qualname}:{frame.tb_lineno}"
