"""dlt: groups as tables of a warehouse, kept up to date with changes and deletions.

    pipeline = dlt.pipeline("lamps", destination="duckdb", dataset_name="scraped")
    pipeline.run(groups("lamps", url="http://127.0.0.1:8080", token="…"))

Each group is a table with `output_id` as its key. A run moves only what was created, changed or deleted since the last
one: the position is kept in dlt's state, and saved when the load has succeeded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dlt

from sds_client.errors import CursorExpired
from sds_client.paths import read_query
from sds_client.sync import Client

_LEFT_UNNOTICED = {"is_approved", "job_id", "change", "rejected", "where", "missing"}


@dlt.source(name="scraping_data_service")
def groups(*names: str, url: str = dlt.config.value, token: str = dlt.secrets.value, **filters: Any) -> Any:
    """Return a resource per group. `filters` are those of `Client.follow`: by what an item keeps, such as its `url`.

    Of an item that no longer matches, other filters select neither a change nor a deletion: its row would stay.
    """
    if unfit := _LEFT_UNNOTICED & read_query(filters).keys():
        raise ValueError(f"rows would stay for ever with the filter {sorted(unfit)[0]}: select them in the destination")
    for name in names:
        yield dlt.resource(
            _changes(name, url, token, filters),
            name=name,
            primary_key="output_id",
            write_disposition="merge",
            # Of several versions in one load the newest counts, and a deletion removes the row.
            columns={"id": {"dedup_sort": "desc"}, "deleted": {"data_type": "bool", "hard_delete": True}},
        )


def _changes(group: str, url: str, token: str, filters: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield what has changed since the last run, some items at a time."""
    state = dlt.current.resource_state(group)
    asked = {name: value for name, value in read_query(filters).items() if name != "fields"}
    if state.setdefault("filters", asked) != asked:
        raise ValueError(f'the last run of {group} had other filters: run with refresh="drop_resources"')
    with Client(url, token) as client:
        owner = {"url": client.url, "organization_id": client.token()["organization_id"]}
        if state.setdefault("owner", owner) != owner:
            raise ValueError(f'the last run of {group} read another service: run with refresh="drop_resources"')
        start = state.get("position", {"cursor": state.get("cursor", 0)})  # earlier states have the cursor only
        try:
            for items, position in client.changes(group, position=start, **filters):
                if items:
                    yield items
                state["position"] = position
        except CursorExpired as error:
            message = 'the last run is too long ago to learn of every deletion since: run with refresh="drop_resources"'
            raise CursorExpired(error.status, error.problems, message) from None
