"""`outputs import` against a real process of the service."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sds_client import Client
from sds_client.__main__ import main
from sds_client.cli import csv_input
from sds_client.writing import key_hash
from tests.support.api import make_output
from tests.support.files import left
from tests.support.processes import ServiceProcess, make_token

pytestmark = pytest.mark.usefixtures("environment")


@pytest.mark.parametrize("name", ["x.ndjson.gz", pytest.param("x.ndjson", marks=pytest.mark.slow)])
def test_an_export_can_be_imported_into_another_group(client: Client, tmp_path: Path, name: str, capsys: Any) -> None:
    client.push("group", [make_output(n) for n in range(1100)])
    file = tmp_path / name
    assert main(["outputs", "export", "group", "--out", str(file)]) == 0
    assert main(["outputs", "import", "copy", str(file)]) == 0
    assert "1,100 created, 0 updated, 0 unchanged" in capsys.readouterr().err
    given = ("id", "output_id", "create_date", "update_date")
    contents = [
        [{k: v for k, v in item.items() if k not in given} for item in client.outputs(group)]
        for group in ("group", "copy")
    ]
    assert contents[0] == contents[1]
    assert main(["outputs", "import", "copy", str(file)]) == 0
    assert "0 created, 0 updated, 1,100 unchanged" in capsys.readouterr().err
    assert left(tmp_path) == [name]


def test_an_import_goes_on_where_it_broke_off(client: Client, tmp_path: Path, capsys: Any) -> None:
    texts = [json.dumps(make_output(n)) + "\n\n" for n in range(1200)]
    file = tmp_path / "x.ndjson"
    file.write_text("".join(texts).replace('"root_job_id": "job-1", "key_hash": "key-1100"', '"root_job_id": 0'))
    moment = file.stat().st_mtime_ns
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert "error: 422: line 2201.root_job_id: Must be a string" in capsys.readouterr().err
    assert client.group("group")["items"] == 1000
    # The same file by its size and date, but for two items: the first is not read again, the faulty one is right.
    size = file.stat().st_size
    texts[0] = texts[0].replace("Lamp", "Leaf")
    texts[1100] = json.dumps({"source_url": "u", "root_job_id": "j", "data": {}}) + "\n\n"
    file.write_text("".join(texts).ljust(size)[:size])
    os.utime(file, ns=(moment, moment))
    assert main(["outputs", "import", "group", str(file)]) == 0
    assert "200 created, 0 updated, 0 unchanged" in capsys.readouterr().err
    assert left(tmp_path) == ["x.ndjson"]


def test_an_import_does_not_continue_that_of_another_organization(
    client: Client, running: ServiceProcess, other_token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.ndjson"
    items = [make_output(n) for n in range(3)]
    file.write_text("\n".join([*map(json.dumps, items), "{broken"]))
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert len(list(client.outputs("group"))) == 3
    monkeypatch.setenv("SDS_TOKEN", other_token)
    assert main(["outputs", "import", "group", str(file)]) == 1
    with Client(running.url, other_token) as other:
        assert len(list(other.outputs("group"))) == 3


def test_an_import_needs_only_the_scope_write_and_says_that_it_continues(
    client: Client, mongo_url: str, organization: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("SDS_TOKEN", make_token(mongo_url, organization, "write"))
    file = tmp_path / "x.ndjson"
    file.write_text("\n".join([*(json.dumps(make_output(n)) for n in range(3)), "{broken"]))
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert len(list(client.outputs("group"))) == 3
    [kept] = tmp_path.glob("*.import")
    os.utime(kept, (1769860800, 1769860800))
    capsys.readouterr()
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert "continuing the import of 2026-01-31T12:00:00Z after 3 items\n" in capsys.readouterr().err


def test_a_line_that_is_not_json_is_named(client: Client, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text(json.dumps(make_output(1)) + "\n{broken\n")
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert "line 2 of x.ndjson is not JSON" in capsys.readouterr().err


@pytest.mark.slow
def test_an_item_that_is_too_large_for_any_body_is_named_by_its_line(
    client: Client, tmp_path: Path, capsys: Any
) -> None:
    items = [make_output(1), make_output(2, data={"text": "x" * 17_000_000}), make_output(3)]
    file = tmp_path / "x.ndjson"
    file.write_text("\n".join(map(json.dumps, items)))
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert "error: 413: line 2: The item is too large for a body" in capsys.readouterr().err


def _changed_byte(content: bytes) -> bytes:
    """Return gzip content whose text is not the one of its checksum."""
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


@pytest.mark.parametrize("damage", [lambda content: content[:-100], _changed_byte], ids=["cut off", "changed"])
@pytest.mark.parametrize("name", ["x.ndjson.gz", "x.csv.gz"])
def test_a_damaged_archive_is_one_clear_line(
    client: Client, tmp_path: Path, capsys: Any, name: str, damage: Callable[[bytes], bytes]
) -> None:
    lines = [json.dumps(make_output(n)) for n in range(100)]
    if "csv" in name:
        lines = ["source_url,root_job_id", *(f"https://a.example/{n},job" for n in range(100))]
    (tmp_path / name).write_bytes(damage(gzip.compress("\n".join(lines).encode())))
    assert main(["outputs", "import", "group", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err == f"error: {name} is cut off or damaged\n"


# CSV


def load(file: Path, text: str, *options: str) -> int:
    file.write_text(text, encoding="utf-8")
    return main(["outputs", "import", "group", str(file), *options])


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_an_exported_csv_can_be_imported_into_another_group(client: Client, tmp_path: Path, name: str) -> None:
    data = {"title": 'Oak, "big"\nlamp', "price": {"amount": 1.5}, "sizes": [1, {"a": 2}], "new": True, "sku": "007"}
    ash = {"title": "Ash", "stock": 3, "new": False}
    client.push("group", [make_output(1, data=data, is_approved=True), make_output(2, data=ash, tags={}, files=[])])
    file = tmp_path / "x.csv"
    assert main(["outputs", "export", "group", "--out", str(file)]) == 0
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(file.read_bytes()))
    assert main(["outputs", "import", "copy", str(tmp_path / name)]) == 0
    given = ("id", "output_id", "create_date", "update_date")
    contents = [
        [{k: v for k, v in item.items() if k not in given} for item in client.outputs(group)]
        for group in ("group", "copy")
    ]
    assert contents[0] == contents[1]


def test_a_table_of_any_columns_can_be_imported(client: Client, tmp_path: Path) -> None:
    text = "\ufeffsource_url,sku,title,price.amount,tags.country\nhttps://a.example/1,100,Oak,1.50,Peru\n"
    text += "https://a.example/2,200,Ash,,\n\n"
    assert load(tmp_path / "x.csv", text, "--job-id", "table", "--key-fields", "sku", "--text", "sku") == 0
    oak, ash = client.outputs("group")
    assert oak["data"] == {"sku": "100", "title": "Oak", "price": {"amount": 1.5}}
    assert ash["data"] == {"sku": "200", "title": "Ash"}
    assert (oak["root_job_id"], oak["tags"], ash["tags"]) == ("table", {"country": "Peru"}, {})
    assert oak["key_hash"] == key_hash({"sku": "100"}, ["sku"])


@pytest.mark.parametrize("column", ["sku", "data.sku"])
def test_the_key_of_a_text_column_does_not_depend_on_other_rows(client: Client, tmp_path: Path, column: str) -> None:
    monday = f"source_url,{column}\nhttps://a.example/1,100\n"
    tuesday = f"{monday}https://a.example/2,007\n"
    for text in (monday, tuesday):
        assert load(tmp_path / "x.csv", text, "--job-id", "j", "--key-fields", "sku", "--text", column) == 0
    assert [item["data"]["sku"] for item in client.outputs("group")] == ["100", "007"]


def test_the_id_in_an_export_of_some_fields_is_not_data(client: Client, tmp_path: Path) -> None:
    client.push("some", [make_output(1, data={"title": "Oak"})])
    out = tmp_path / "some.csv"
    assert main(["outputs", "export", "some", "--out", str(out), "--fields", "data.title,source_url"]) == 0
    assert main(["outputs", "import", "group", str(out), "--job-id", "again"]) == 0
    assert [item["data"] for item in client.outputs("group")] == [{"title": "Oak"}]


def test_columns_that_only_an_export_has_are_data_in_other_tables(client: Client, tmp_path: Path) -> None:
    text = "id,source_url,create_date\n7,https://a.example/,2020\n8,https://a.example/,2020\n"
    assert load(tmp_path / "x.csv", text, "--job-id", "table") == 0
    assert [item["data"] for item in client.outputs("group")] == [
        {"id": 7, "create_date": 2020},
        {"id": 8, "create_date": 2020},
    ]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "2"], [1, 2]),
        (["1", "2.5"], [1, 2.5]),
        (["1", "02"], ["1", "02"]),
        (["1", "9" * 19], ["1", "9" * 19]),
        (["TRUE", "false"], [True, False]),
        (["true", "1"], ["true", "1"]),
        (["[1]", '{"a": null}'], [[1], {"a": None}]),
        (["[1]", "[x"], ["[1]", "[x"]),
        (["1", ""], [1, None]),
        (["NaN", "1e5"], ["NaN", "1e5"]),
        (["1e5", "-0.5"], [100000.0, -0.5]),
        (["0.10", "12345678901234567.89"], ["0.10", "12345678901234567.89"]),
        (["1.5", "12E4567"], ["1.5", "12E4567"]),
        (["1", "1e-99999999999999999999"], ["1", "1e-99999999999999999999"]),
        (["-9223372036854775808", "9223372036854775807"], [-(2**63), 2**63 - 1]),
    ],
)
def test_a_column_has_one_type(cells: list[str], values: list[Any]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["source_url", "x"], *[["u", cell] for cell in cells]])
    content = text.getvalue().encode()
    kinds = csv_input.column_kinds(io.BytesIO(content))
    found = [item["data"].get("x") for _, item in csv_input.items(io.BytesIO(content), kinds)]
    assert found == values and list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("title\nOak\n", "the first line must name the columns, and source_url among them"),
        ("", "the first line must name the columns"),
        ("source_url;title\nu;Oak\n", "with commas between"),
        ("source_url,title,title\nu,a,b\n", "there are two columns 'title'"),
        ("source_url,,title\nu,a,b\n", "'' in the first line is not the name of a column"),
        ("source_url,title\nu,a\nu,b,c\n", "line 3 has 3 cells; the header has 2"),
        ('source_url,title\nu,"a\nb"\nu,"c', "line 4: unexpected end of data"),
        ("source_url,is_approved\nu,maybe\n", "line 2: is_approved cannot be 'maybe'"),
        ("source_url,files\nu,none\n", "line 2: files cannot be 'none'"),
        ("source_url,price,price.amount\nu,1,2\n", "line 2: price.amount: the row also has a value for 'price' itself"),
        ("source_url,price.amount,price\nu,1,2\n", "line 2: price: the row also has values below it"),
        ("source_url,title\nu,\udcff\n", "not UTF-8"),
    ],
)
def test_a_faulty_table_stores_nothing_and_says_where(
    client: Client, tmp_path: Path, text: str, word: str, capsys: Any
) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["outputs", "import", "group", str(file), "--job-id", "j"]) == 1
    assert word in capsys.readouterr().err
    assert list(client.outputs("group")) == []


def test_what_the_service_rejects_is_named_by_its_line(client: Client, tmp_path: Path, capsys: Any) -> None:
    text = 'source_url,root_job_id,title\nu,j,"two\nlines"\nu,,Ash\n'
    assert load(tmp_path / "x.csv", text) == 1
    assert "error: 422: line 4: names no job in root_job_id: give one with --job-id" in capsys.readouterr().err


def test_an_item_without_its_key_is_named_by_its_line(client: Client, tmp_path: Path, capsys: Any) -> None:
    text = "source_url,sku\nu,1\nu,\n"
    assert load(tmp_path / "x.csv", text, "--job-id", "j", "--key-fields", "sku") == 1
    assert "line 3 of x.csv has no sku, which is one of the key fields" in capsys.readouterr().err
    assert load(tmp_path / "x.csv", text, "--job-id", "j", "--text", "zip") == 1
    assert "there is no column 'zip'" in capsys.readouterr().err


def test_an_import_into_a_group_that_was_deleted_begins_again(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "x.ndjson"
    file.write_text("\n".join([*(json.dumps(make_output(n)) for n in range(3)), "{broken"]))
    assert main(["outputs", "import", "group", str(file)]) == 1
    client.delete_group("group")
    assert main(["outputs", "import", "group", str(file)]) == 1
    assert client.group("group")["items"] == 3


def test_a_csv_of_the_service_with_fields_that_have_no_column_is_refused(
    client: Client, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "x.csv"
    file.write_text('source_url,data.title,output_id,other\nhttps://x.example/1,Oak,o-1,"{""data.late"":""7""}"\n')
    assert main(["outputs", "import", "copy", str(file), "--job-id", "run"]) == 1
    assert "line 2 has fields without a column of their own: import NDJSON instead" in capsys.readouterr().err


def test_a_csv_with_deletions_is_refused(client: Client, tmp_path: Path, capsys: Any) -> None:
    client.push("group", [make_output(n) for n in range(2)])
    client.delete("group", next(iter(client.outputs("group")))["output_id"])
    file = tmp_path / "x.csv"
    assert main(["outputs", "export", "group", "--deleted", "--out", str(file)]) == 0
    assert main(["outputs", "import", "copy", str(file)]) == 1
    assert "is a deletion, not an item: export without --deleted" in capsys.readouterr().err
