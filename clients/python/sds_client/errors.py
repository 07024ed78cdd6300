"""The exceptions of the client."""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """A response other than success, or no response.

    `status` is the HTTP status, 0 when there was no response. `problems` are those of the response:
    `{"loc": ["body", "3", "expires"], "msg": "…", "type": "…"}`.
    """

    def __init__(self, status: int, problems: list[dict[str, Any]] | None = None, message: str = "") -> None:
        self.status, self.problems, self._message = status, problems or [], message
        self.retry_after = 0.0  # seconds that the service asked to wait
        listed = "; ".join(_describe(problem) for problem in self.problems[:5])
        more = f" (and {len(self.problems) - 5} more)" if len(self.problems) > 5 else ""
        text = message or listed or "no reason given"
        super().__init__(f"{status}: {text}{more}" if status else f"{text}{more}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes the same exception; by default, from its text."""
        return type(self), (self.status, self.problems, self._message), vars(self)

    def has_type(self, type: str) -> bool:
        """Return whether one of the problems has this type, such as `cursor_expired`."""
        return any(problem.get("type") == type for problem in self.problems)

    def has_no(self, name: str) -> bool:
        """Return whether the record that this part of the path names does not exist; False for a wrong address."""
        return self.status == 404 and any(problem.get("loc") == ["path", name] for problem in self.problems)


class AccessError(ValueError):
    """The access token is neither given nor in the environment, or is there twice."""


class CursorExpired(ClientError):
    """A copy that follows deletions came back too late: deletion records after its cursor are gone.

    Start again from cursor 0 with an empty copy (and without the old cursor file).
    """


class VersionConflict(ClientError):
    """The item has changed since the version that was named by `if_id`: read it again."""


class NoSession(ClientError):
    """No session of the pool was ready in time.

    `retry_after` is how many seconds the first lease or rest still lasts; 0 if none will end by itself.
    """

    def __init__(self, error: ClientError) -> None:
        super().__init__(error.status, error.problems)
        self.retry_after = error.retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (ClientError(self.status, self.problems),), vars(self)


class SessionLost(Exception):
    """The lease on a session has ended: stop using it, another worker may have it. What was not saved is not stored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the lease on the session {name} has ended")
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)


def _describe(problem: dict[str, Any]) -> str:
    place = ".".join(map(str, problem.get("loc", [])))
    return f"{place}: {problem.get('msg')}" if place else str(problem.get("msg"))
