"""The types of the client: as a type checker sees them, and beside the schemas of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from marshmallow import Schema
from mypy import api

from schemas import cookies, groups, local_storage, outputs, reviews, rules, token, webhooks
from sds_client import types

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".mypy_cache"

CODE = """
from sds_client import Client, Deletion, Output
from sds_client.types import OutputInput

client = Client("http://127.0.0.1:8080", "t")
for item in client.outputs("lamps", job_id="monday", is_approved=True, fields=["data.title"]):
    reveal_type(item)  # sds_client.types.Output
    reveal_type(item["files"][0]["file_metadata"])  # dict[
    item["titel"]  # has no key "titel"
client.outputs("lamps", job="monday")  # Unexpected keyword argument "job"
client.outputs("lamps", is_approved="yes")  # incompatible type "str"
client.outputs("lamps", order="newest")  # incompatible type
client.delete_many("lamps", created_after="2026-01-31")  # Unexpected keyword argument "created_after"

copy: dict[str, Output] = {}
for change in client.follow("lamps", deleted=True):
    copy[change["output_id"]] = change  # Incompatible types
    if "deleted" in change:
        reveal_type(change)  # sds_client.types.Deletion
    else:
        copy[change["output_id"]] = change
for new in client.follow("lamps", cursor_file="lamps.cursor"):
    copy[new["output_id"]] = new
lamp: OutputInput = {"source_url": "https://shop.example/1", "data": {}}  # Missing key "root_job_id"
client.push("lamps", [lamp])
"""


@pytest.mark.slow
def test_filters_and_items_are_typed(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(CODE)
    # The settings and the cache of `make check`.
    text, _, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(CACHE), str(file)])
    reported = re.findall(r"example\.py:(\d+): (?:error|note): (.*)", text)
    found = {int(number): message for number, message in reversed(reported)}  # notes follow their error
    expected = {n: line.split("  # ")[1] for n, line in enumerate(CODE.splitlines(), 1) if "  # " in line}
    assert set(found) == set(expected), text
    for number, word in expected.items():
        assert word in found[number], text


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (types.Output, outputs.Output),
        (types.File, outputs.File),
        (types.OutputInput, outputs.OutputInput),
        (types.OutputPatch, outputs.OutputPatchOf),
        (types.PatchResult, outputs.PatchResult),
        (types.DeleteFilters, outputs.DeleteQuery),
        (types.Token, token.Token),
        (types.Cookie, cookies.Cookie),
        (types.LocalStorageEntry, local_storage.LocalStorageEntry),
        (types.Review, reviews.Review),
        (types.Group, groups.Group),
        (types.Day, groups.Day),
        (types.GroupWithSettings, groups.GroupWithSettings),
        (types.GroupSet, groups.GroupSet),
        (types.Rule, rules.Rule),
        (types.BrokenRule, groups.BrokenRule),
        (types.FillRate, groups.FillRate),
        (types.Job, groups.Job),
        (types.ChangedItem, groups.ChangedItem),
        (types.ChangedField, groups.ChangedField),
        (types.FieldChanges, groups.FieldChanges),
        (types.Field, groups.FieldStatistics),
        (types.GroupFields, groups.GroupFields),
        (types.Webhook, webhooks.Webhook),
        (types.WebhookResult, webhooks.WebhookResult),
        (types.Delivery, webhooks.Delivery),
    ],
    ids=lambda kind: kind.__name__,
)
def test_each_type_has_the_fields_of_its_schema(kind: Any, schema: type[Schema]) -> None:
    hidden = {"deleted"} if kind is types.Output else {"dry_run", "cursor"} if kind is types.DeleteFilters else set()
    names = {field.data_key or name for name, field in schema().fields.items()} - hidden
    assert set(kind.__annotations__) == names


def test_the_filters_are_those_of_the_api() -> None:
    names = {field.data_key or name for name, field in outputs.OutputSelection().fields.items()}
    assert {*types.ReadOptions.__annotations__, "cursor", "order", "deleted", "walk"} == names
