"""A Singer tap: `sds singer lamps --state state.json | target-…` prints SCHEMA, RECORD and STATE messages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sds_client.cli import group_names
from sds_client.cli.printing import print_json
from sds_client.cli.running import command
from sds_client.sync import Client

_TEXT, _DATE = {"type": ["null", "string"]}, {"type": ["null", "string"], "format": "date-time"}
_OBJECT = {"type": ["null", "object"], "additionalProperties": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "output_id": {"type": "string"},
        "id": {"type": "integer"},
        **dict.fromkeys(("source_url", "root_job_id", "key_hash", "value_hash"), _TEXT),
        **dict.fromkeys(("create_date", "update_date", "last_scraped_date", "_sdc_deleted_at"), _DATE),
        "is_approved": {"type": ["null", "boolean"]},
        "data": _OBJECT,
        "tags": _OBJECT,
        "files": {"type": ["null", "array"], "items": _OBJECT},
    },
}


def add(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Add the command to a command line."""
    parser = commands.add_parser(
        "singer",
        parents=[common],
        help="print the changes of groups as Singer messages, for a target such as target-jsonl",
        description="Each record has output_id as its key; a deletion has _sdc_deleted_at.",
    )
    parser.add_argument("group", nargs="+")
    parser.add_argument(
        "--state", type=Path, help="the value of the last STATE message of the run before; no file: everything"
    )
    parser.set_defaults(command=singer)


@command
def singer(client: Client, group: list[str], state: Path | None) -> None:
    owner = {"url": client.url, "organization_id": client.token()["organization_id"]}
    positions = _positions(state, owner) if state and state.exists() else {}
    for name in group:
        group_names.warn(client, name, " yet")
        print_json({"type": "SCHEMA", "stream": name, "schema": SCHEMA, "key_properties": ["output_id"]})
        printed = None
        for items, position in client.changes(name, position=positions.get(name)):
            for item in items:
                print_json({"type": "RECORD", "stream": name, "record": _record(dict(item))})
            if position != printed:
                positions[name] = printed = position
                print_json({"type": "STATE", "value": {**owner, "positions": positions}})


def _positions(state: Path, owner: dict[str, Any]) -> dict[str, Any]:
    """Return the position of each group. Raises ValueError for a file that holds no state, or one of another owner."""
    try:
        kept = json.loads(state.read_bytes())
        earlier = {name: {"cursor": cursor} for name, cursor in kept.get("cursors", {}).items()}
        positions: dict[str, Any] = kept.get("positions", earlier)
        kept_of = {name: kept.get(name, value) for name, value in owner.items()}  # earlier states do not name it
    except (ValueError, AttributeError):
        message = f"{state} must hold the value of the last STATE message"
        raise ValueError(f"{message}; without the file, everything is read again") from None
    if kept_of != owner:
        raise ValueError(f"{state} is the state of organization {kept_of['organization_id']} of {kept_of['url']}")
    return positions


def _record(item: dict[str, Any]) -> dict[str, Any]:
    if item.pop("deleted", False):
        item["_sdc_deleted_at"] = item["update_date"]
    return item
