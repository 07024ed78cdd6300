"""The database that version 1 of the service leaves behind, for the test of the upgrade.

`tests/fixtures/database_v1.json.gz` was made once, with the HTTP handlers of version 1 on MongoDB 6.0.5, and dumped as
canonical extended JSON. It cannot be made again with later code: its member `about` says what it holds.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from bson import json_util
from pymongo.database import Database

_FILE = Path(__file__).parents[1] / "fixtures" / "database_v1.json.gz"


def load() -> dict[str, Any]:
    """Return the dump: `collections`, `served`, `tokens`, `secret_keys`, `version`, `about`."""
    options = json_util.CANONICAL_JSON_OPTIONS.with_options(tz_aware=True)
    dump: dict[str, Any] = json_util.loads(gzip.decompress(_FILE.read_bytes()).decode(), json_options=options)
    return dump


def restore(database: Database[dict[str, Any]]) -> dict[str, Any]:
    """Write the dump's documents and indexes into an empty database; return the dump."""
    dump = load()
    for name, collection in dump["collections"].items():
        database[name].insert_many(collection["documents"])
        for index in collection["indexes"]:
            options = {key: value for key, value in index.items() if key != "key"}
            database[name].create_index([(field, int(order)) for field, order in index["key"]], **options)
    return dump
