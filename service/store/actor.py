"""Who acts: the label of the token behind a write, kept with what the write changes."""

from __future__ import annotations

from contextvars import ContextVar

# None: the service itself, as in retention.
ACTOR: ContextVar[str | None] = ContextVar("actor", default=None)
