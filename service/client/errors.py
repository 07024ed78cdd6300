"""What goes wrong between the client and the service."""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """An answer other than success, or none at all.

    `status` is the HTTP status, 0 when no answer came. `problems` are those of the answer:
    `{"loc": ["body", "3", "expires"], "msg": "…", "type": "…"}`.
    """

    def __init__(self, status: int, problems: list[dict[str, Any]] | None = None, message: str = "") -> None:
        self.status, self.problems = status, problems or []
        self.retry_after = 0.0  # seconds that the service asked to wait
        told = "; ".join(_tell(problem) for problem in self.problems[:5])
        more = f" (and {len(self.problems) - 5} more)" if len(self.problems) > 5 else ""
        text = message or told or "no reason given"
        super().__init__(f"{status}: {text}{more}" if status else f"{text}{more}")


def _tell(problem: dict[str, Any]) -> str:
    place = ".".join(map(str, problem.get("loc", [])))
    return f"{place}: {problem.get('msg')}" if place else str(problem.get("msg"))
