"""The filter `where`, with each operator and several times: `Client`, `AsyncClient` and `sds`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sds_client import AsyncClient, Client
from sds_client.__main__ import main
from tests.support.api import make_output
from tests.support.processes import ServiceProcess

pytestmark = pytest.mark.usefixtures("environment")

DATA: dict[str, dict[str, Any]] = {
    "cheap": {"price": {"amount": 3, "currency": "EUR"}, "title": "Desk LAMP", "date": "2026-01-31"},
    "dear": {"price": {"amount": 129.9, "currency": "EUR"}, "title": "Éclair chair", "date": "2026-11-02"},
    "text": {"price": {"amount": "20", "currency": "USD"}, "title": "100% = a&b, c"},
    "empty": {},
}
SELECTED = [
    (["price.currency:EUR"], {"cheap", "dear"}),
    (["data.price.currency:EUR"], {"cheap", "dear"}),
    (["price.currency!=EUR"], {"text", "empty"}),
    (["price.amount>3"], {"dear"}),
    (["price.amount>=3"], {"cheap", "dear"}),
    (["price.amount<129.9"], {"cheap"}),
    (["price.amount<=129.9"], {"cheap", "dear"}),
    (["date>=2026-02"], {"dear"}),
    (["title~lamp"], {"cheap"}),
    (["title~éclair"], {"dear"}),
    (["title:100% = a&b, c"], {"text"}),
    (["price.currency:EUR", "price.amount>100"], {"dear"}),
    (["price.amount>=3", "price.amount<=129.9", "title~a", "date<2026-02"], {"cheap"}),
    (["price.currency:EUR", "price.currency:USD"], set()),
]


@pytest.fixture
def shop(client: Client) -> Client:
    """A client of a group with a few items."""
    client.push("shop", [make_output(1, key_hash=name, data=data) for name, data in DATA.items()])
    return client


def keys(items: Iterable[Any]) -> set[str]:
    return {item["key_hash"] for item in items}


def test_conditions_select_items_with_the_client(shop: Client) -> None:
    for conditions, selected in SELECTED:
        assert keys(shop.outputs("shop", where=conditions)) == selected, conditions
        lines = b"".join(shop.ndjson("shop", where=conditions)).splitlines()
        assert keys(map(json.loads, lines)) == selected, conditions
        if len(conditions) == 1:
            assert keys(shop.outputs("shop", where=conditions[0])) == selected, conditions


async def test_conditions_select_items_with_the_asynchronous_client(
    shop: Client, running: ServiceProcess, token: str
) -> None:
    async with AsyncClient(running.url, token) as client:
        for conditions, selected in SELECTED:
            assert {item["key_hash"] async for item in client.outputs("shop", where=conditions)} == selected, conditions
        assert await client.delete_many("shop", where=["price.currency:EUR", "price.amount<100"]) == 1
    assert keys(shop.outputs("shop")) == {"dear", "text", "empty"}


@pytest.mark.slow
@pytest.mark.usefixtures("shop")
def test_conditions_select_items_on_the_command_line(capsys: Any, tmp_path: Path) -> None:
    for conditions, selected in SELECTED:
        options = [word for condition in conditions for word in ("--where", condition)]
        main(["outputs", "list", "shop", *options, "--json"])
        assert keys(json.loads(capsys.readouterr().out)) == selected, conditions
        file = tmp_path / "items.ndjson"
        assert main(["outputs", "export", "shop", *options, "--out", str(file)]) == (0 if selected else 3)
        lines = file.read_text().splitlines() if selected else []
        assert keys(map(json.loads, lines)) == selected, conditions
        file.unlink(missing_ok=True)
        capsys.readouterr()


def test_conditions_choose_what_a_command_approves_and_deletes(shop: Client, capsys: Any) -> None:
    dear = ["--where", "price.amount>=3", "--where", "price.amount!=3", "--where", "price.currency:EUR"]
    assert main(["outputs", "approve", "shop", *dear]) == 0
    assert keys(shop.outputs("shop", is_approved=True)) == {"dear"}
    assert main(["outputs", "delete", "shop", *dear, "--yes"]) == 0
    assert keys(shop.outputs("shop")) == {"cheap", "text", "empty"}


def test_a_condition_that_is_none_is_an_error_that_names_it(shop: Client, capsys: Any) -> None:
    assert main(["outputs", "list", "shop", "--where", "price"]) == 1
    assert "query.where" in capsys.readouterr().err
    assert main(["outputs", "delete", "shop", "--yes", "--where", ""]) != 0
    assert len(keys(shop.outputs("shop"))) == len(DATA)
