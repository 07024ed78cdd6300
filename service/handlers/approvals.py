"""PATCH /v1/outputs/{group_id} and /v1/outputs/{group_id}/{output_id}: approvals and tags."""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiohttp import web

from schemas.outputs import OutputPatch, OutputPatchOf, OutputResult, OutputsPatched
from service.http.endpoint import endpoint
from service.http.errors import MAX_PROBLEMS, ApiError, problem
from service.http.input.json_input import read_object
from service.http.input.query import path_group, path_id
from service.http.input.records import Records
from service.http.keys import SETTINGS, STORE
from service.http.output.etags import IF_MATCH, PRECONDITION, check_precondition, required_ids
from service.http.reply import Json, Reply
from service.store import Patch, render_json

# The most bytes of one patch, as a multiple of MAX_ITEM_BYTES: tags that are removed, and as many that are added.
_PATCH_SIZES = 2
PATCHES = Records(OutputPatchOf, _PATCH_SIZES)
_PATCH = OutputPatch()
_KINDS = ("updated", "unchanged", "not_found", "conflict", "too_large")


@endpoint(
    "Change approvals and tags of outputs", OutputsPatched(), body=OutputPatchOf(many=True), operation="outputs_patch"
)
async def patch(request: web.Request) -> Json:
    """Change `is_approved` and `tags` of outputs, each named by its output_id or its key_hash.

    `tags` is a JSON merge patch. With `if_id`, an output that has changed since is not changed. Of
    several patches of one output the last wins. A patch that fails does not stop the others: its result is `conflict`,
    `not_found`, or `too_large` if the merged tags would be larger than `MAX_ITEM_BYTES`.
    """
    group = path_group(request)
    loaded = await PATCHES.read(request)
    patches = _patches(loaded)
    results = await request.app[STORE].outputs.patch(group, patches)
    items = [
        {"id": None, "output_id": entry.get("output_id"), "key_hash": entry.get("key_hash"), **result}
        for entry, result in zip(loaded, results, strict=True)
    ]
    counts = Counter({(p.by, p.value): item["result"] for p, item in zip(patches, items, strict=True)}.values())
    return {**{kind: counts[kind] for kind in _KINDS}, "items": items}


def _patches(entries: list[dict[str, Any]]) -> list[Patch]:
    """Return the patches in a body. Raises with every entry that does not name one output."""
    patches, problems = [], []
    for index, entry in enumerate(entries):
        names = [name for name in ("output_id", "key_hash") if name in entry]
        if len(names) == 1:
            by = names[0]
            if_ids = frozenset([entry["if_id"]]) if "if_id" in entry else None
            patches.append(Patch(by, entry[by], entry.get("is_approved"), entry.get("tags"), if_ids))
        else:
            kind = "value_error" if names else "missing"
            problems.append(problem(kind, "Give either output_id or key_hash", "body", str(index)))
    if problems:
        raise ApiError(422, problems[:MAX_PROBLEMS])
    return patches


@endpoint(
    "Change the approval or the tags of an output",
    OutputResult(),
    body=OutputPatch(),
    headers=IF_MATCH,
    response_headers=["ETag"],
    not_found=True,
    responses=PRECONDITION,
    operation="output_patch",
)
async def patch_one(request: web.Request) -> Reply:
    """Change `is_approved` and `tags` (a JSON merge patch); the output gets a new id.

    Merged tags larger than `MAX_ITEM_BYTES` are refused as `too_large` and change nothing.
    """
    group, output_id = path_group(request), path_id(request, "output_id")
    loaded = await read_object(request, _PATCH, _PATCH_SIZES * request.app[SETTINGS].max_item_bytes)
    change = Patch("output_id", output_id, loaded.get("is_approved"), loaded.get("tags"), required_ids(request))
    (result,) = await request.app[STORE].outputs.patch(group, [change])
    check_precondition(result)
    return Reply(render_json(result), {"ETag": f'"{result["id"]}"'})
