"""dlt loads groups into DuckDB: a second run moves only what changed, and deletions arrive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlt
import duckdb
import pytest

from sds_client import Client
from sds_client.dlt import groups
from tests.support.api import make_outputs
from tests.support.processes import ServiceProcess, make_token


@pytest.fixture(scope="module")
def running(mongo_url: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(mongo_url) as process:
        yield process.wait_until_ready()


@pytest.fixture
def token(running: ServiceProcess, mongo_url: str, organization: int) -> str:
    return make_token(mongo_url, organization, "read", "write", "delete")


@pytest.fixture
def client(running: ServiceProcess, token: str) -> Iterator[Client]:
    with Client(running.url, token) as client:
        yield client


@pytest.fixture
def load(client: Client, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the pipeline and returns how many rows it moved, and the table's content."""
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    file = tmp_path / "warehouse.duckdb"

    def run(**filters: Any) -> tuple[int, dict[str, str]]:
        pipeline = dlt.pipeline(
            "lamps",
            destination=dlt.destinations.duckdb(str(file)),
            dataset_name="scraped",
            pipelines_dir=str(tmp_path / "pipelines"),
        )
        pipeline.run(groups("lamps", url=client.url, token=token, **filters)).raise_on_failed_jobs()
        counts = pipeline.last_trace.last_normalize_info.row_counts
        with duckdb.connect(str(file)) as warehouse:
            rows = warehouse.execute("select key_hash, data__title from scraped.lamps").fetchall()
        return counts.get("lamps", 0), dict(rows)

    return run


def test_a_second_run_moves_what_changed_and_removes_what_was_deleted(client: Client, load: Any) -> None:
    client.push("lamps", make_outputs(1200))
    assert load() == (1200, {f"key-{n}": f"Lamp {n}" for n in range(1200)})

    client.push("lamps", make_outputs(2, "Changed"))
    client.delete_many("lamps", url=make_outputs(8)[7]["source_url"])
    moved, table = load()
    assert moved == 3
    assert len(table) == 1199 and "key-7" not in table
    assert (table["key-0"], table["key-1"], table["key-2"]) == ("Changed 0", "Changed 1", "Lamp 2")

    assert load() == (0, table)

    client.push("lamps", make_outputs(8)[7:])  # the deleted one is back
    moved, table = load()
    assert (moved, table["key-7"], len(table)) == (1, "Lamp 7", 1200)


def test_filters_that_an_item_leaves_without_notice_are_refused(client: Client, load: Any) -> None:
    client.push("lamps", make_outputs(1))
    with pytest.raises(Exception, match="rows would stay for ever with the filter is_approved"):
        load(is_approved=True)
    assert load(is_approved=None) == (1, {"key-0": "Lamp 0"})


def test_other_filters_than_those_of_the_last_run_are_refused(client: Client, load: Any) -> None:
    """Continued from the old position, the table would lack older items that match the new filters."""
    client.push("lamps", [{**item, "tags": {"country": f"Country {n}"}} for n, item in enumerate(make_outputs(2))])
    assert load(country="Country 1") == (1, {"key-1": "Lamp 1"})
    for filters in ({}, {"country": "Country 0"}):
        with pytest.raises(Exception, match="the last run of lamps had other filters"):
            load(**filters)
    assert load(country="Country 1") == (0, {"key-1": "Lamp 1"})
