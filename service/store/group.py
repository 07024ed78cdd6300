"""A group as one value."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Group(NamedTuple):
    """One group of one organization: the shard key of everything that is stored of it."""

    organization_id: int
    group_id: str

    @classmethod
    def of(cls, document: dict[str, Any]) -> Group:
        """Return the group that a stored document belongs to."""
        return cls(document["organization_id"], document["group_id"])

    @property
    def owner(self) -> dict[str, Any]:
        """The filter that every command on the group carries."""
        return {"organization_id": self.organization_id, "group_id": self.group_id}

    @property
    def key_prefix(self) -> bytes:
        """The text before a key of which its identity is made."""
        return f"{self.organization_id}\0{self.group_id}\0".encode()

    def output_id(self, key_hash: str) -> str:
        """Return the lasting identity of a key: a UUID (RFC 9562, version 8) from organization, group and key."""
        return self.output_ids()(key_hash)

    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def output_ids(self) -> Callable[[str], str]:
        """Return a function that makes the identities of many keys."""
        prefix = hashlib.sha256(self.key_prefix)

        def output_id(key_hash: str) -> str:
            digest = prefix.copy()
            digest.update(key_hash.encode())
            hashed = digest.hexdigest()
            variant = "89ab"[int(hashed[16], 16) & 3]
            return f"{hashed[:8]}-{hashed[8:12]}-8{hashed[13:16]}-{variant}{hashed[17:20]}-{hashed[20:32]}"

        return output_id
