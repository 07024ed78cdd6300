"""Patch outputs: approvals and tags, without sending the items again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sds_client.errors import ClientError
from sds_client.paths import outputs_path
from sds_client.transport import Transport
from sds_client.types import PatchResult
from sds_client.writing import Batch, counted_from


@dataclass
class Patched:
    """How many items were updated, unchanged, not found, in conflict or too large; `items` has a result per patch."""

    updated: int = 0
    unchanged: int = 0
    not_found: int = 0
    conflict: int = 0
    too_large: int = 0
    items: list[PatchResult] = field(default_factory=list, repr=False)

    def add(self, response: Mapping[str, Any]) -> None:
        self.updated += response["updated"]
        self.unchanged += response["unchanged"]
        self.not_found += response["not_found"]
        self.conflict += response["conflict"]
        self.too_large += response["too_large"]
        self.items += response["items"]


def patch_body(is_approved: bool | None, tags: Mapping[str, Any] | None) -> dict[str, Any]:
    body = {"is_approved": is_approved, "tags": tags}
    return {name: value for name, value in body.items() if value is not None}


async def patch_some(transport: Transport, group: str, batch: Batch, patched: Patched) -> None:
    """Send one batch and add its results; places in errors count from the first patch of all batches."""
    # Sent twice, a patch with if_id would conflict with its own change.
    repeatable = not any(b'"if_id"' in patch for patch in batch.items)
    try:
        response = await transport.call("PATCH", outputs_path(group), body=batch.body, repeatable=repeatable)
    except ClientError as error:
        raise counted_from(error, len(patched.items)) from None
    patched.add(response.json)
