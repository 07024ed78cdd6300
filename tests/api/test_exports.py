"""Outputs as NDJSON and CSV, and pages with only some fields."""

from __future__ import annotations

import csv
import io
import json
import sys
from typing import Any

import pytest

from tests.support.api import Api, make_output
from tests.support.limits import Small


@pytest.fixture(autouse=True)
def small_pages(small: Small) -> None:
    """Let a stream of a few dozen items have many pages."""
    small(first_streamed=7, streamed=7)


def export(path: str, format: str) -> str:
    path, _, query = path.partition("?")
    return f"{path}/export?format={format}&{query}"


async def lines(api: Api, path: str) -> list[dict[str, Any]]:
    response = await api.get(export(path, "ndjson"))
    assert (response.status, response.headers["Content-Type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in response.body.splitlines()]


async def rows(api: Api, path: str) -> list[dict[str, str]]:
    response = await api.get(export(path, "csv"))
    assert (response.status, response.headers["Content-Type"].split(";")[0]) == (200, "text/csv")
    return list(csv.DictReader(io.StringIO(response.body.decode(), newline="")))


@pytest.fixture
async def fifty(api: Api) -> Api:
    """A caller whose group `shop` has 50 outputs."""
    outputs = [make_output(n, root_job_id=f"job-{n % 2}") for n in range(50)]
    await api.ok("/v1/outputs/shop", outputs)
    return api


async def test_ndjson_streams_every_item_as_the_pages_have_it(fifty: Api) -> None:
    page = await fifty.ok("/v1/outputs/shop?limit=1000")
    assert await lines(fifty, "/v1/outputs/shop") == page["items"]


async def test_ndjson_continues_from_the_last_id_received(fifty: Api) -> None:
    whole = await lines(fifty, "/v1/outputs/shop")
    assert await lines(fifty, f"/v1/outputs/shop?cursor={whole[19]['id']}") == whole[20:]


async def test_ndjson_applies_the_filters(fifty: Api) -> None:
    found = await lines(fifty, "/v1/outputs/shop?job_id=job-1&created_after=2020-01-01")
    assert [item["key_hash"] for item in found] == [f"key-{n}" for n in range(50) if n % 2]


@pytest.mark.parametrize("limit", [1, 7, 8, 1000])
async def test_a_limit_ends_the_stream(fifty: Api, limit: int) -> None:
    assert len(await lines(fifty, f"/v1/outputs/shop?limit={limit}")) == min(limit, 50)


async def test_an_unknown_group_streams_nothing(api: Api) -> None:
    assert await lines(api, "/v1/outputs/nothing") == []


async def test_csv_flattens_nested_data_to_dotted_columns(fifty: Api) -> None:
    found = await rows(fifty, "/v1/outputs/shop")
    assert len(found) == 50
    first = found[0]
    assert first["data.title"] == "Lamp 0"
    assert first["data.price.amount"] == "19.99"
    assert first["data.sizes"] == "[1,2]"
    assert first["is_approved"] == "false"
    assert first["tags.country"] == "Germany"
    assert json.loads(first["files"])[0]["file_type"] == "image/jpeg"
    assert first["create_date"].endswith("Z")
    assert (*first,)[0] == "source_url" and (*first,)[-1] == "other"


async def test_csv_has_the_same_columns_however_many_items_the_first_page_has(api: Api, small: Small) -> None:
    late = [make_output(n, data={"title": "x"} | ({"discount": n} if n > 40 else {})) for n in range(50)]
    await api.ok("/v1/outputs/shop", late)
    few = await rows(api, "/v1/outputs/shop")
    assert few[-1]["data.discount"] == "49"
    small(streamed=1000)  # and now the size of the items is known
    assert await rows(api, "/v1/outputs/shop") == few


async def test_csv_has_the_columns_of_what_a_filter_finds_after_empty_pages(fifty: Api, small: Small) -> None:
    small(first_window=5, search_seconds=0.0)
    response = await fifty.get(export("/v1/outputs/shop?where=title:Lamp 30&fields=data.title,key_hash", "csv"))
    assert response.body.decode() == "id,data.title,key_hash,other\r\n31,Lamp 30,key-30,\r\n"


async def test_csv_puts_fields_that_appear_after_the_header_into_other(api: Api, small: Small) -> None:
    small(learned=1)
    await api.ok("/v1/outputs/shop", [make_output(n) for n in range(10)])
    await api.ok("/v1/outputs/shop", [make_output(11, data={"late": {"deep": 'a "quoted", one'}})])
    found = await rows(api, "/v1/outputs/shop")
    assert found[-1]["other"] == json.dumps({"data.late.deep": 'a "quoted", one'}, separators=(",", ":"))
    assert {row["other"] for row in found[:-1]} == {""}


async def test_csv_survives_separators_quotes_and_line_breaks(api: Api) -> None:
    text = 'a,b;"c"\r\nd\ne\tü'
    await api.ok("/v1/outputs/shop", [make_output(1, data={"text": text})])
    assert (await rows(api, "/v1/outputs/shop"))[0]["data.text"] == text


async def test_csv_of_an_empty_group_has_only_its_header(api: Api) -> None:
    response = await api.get(export("/v1/outputs/nothing", "csv"))
    assert response.body.decode().splitlines()[0].startswith("source_url,data,id,")


async def test_fields_keeps_only_the_named_paths_and_the_id(fifty: Api) -> None:
    page = await fifty.ok("/v1/outputs/shop?limit=2&fields=data.title,source_url")
    assert page["items"][0] == {"source_url": "https://shop.example/p/0", "data": {"title": "Lamp 0"}, "id": 1}
    assert page["metadata"]["next_cursor"] == 2
    assert "fields=data.title,source_url" in page["metadata"]["next_url"].replace("%2C", ",")
    assert (await lines(fifty, "/v1/outputs/shop?limit=1&fields=key_hash")) == [{"id": 1, "key_hash": "key-0"}]


async def test_fields_are_the_columns_of_a_csv_in_their_order(fifty: Api) -> None:
    response = await fifty.get(export("/v1/outputs/shop?limit=1&fields=data.title,source_url", "csv"))
    assert response.body.decode() == "id,data.title,source_url,other\r\n1,Lamp 0,https://shop.example/p/0,\r\n"


async def test_an_empty_list_of_fields_keeps_all(fifty: Api) -> None:
    assert await fifty.ok("/v1/outputs/shop?fields=") == await fifty.ok("/v1/outputs/shop") | {
        "metadata": (await fifty.ok("/v1/outputs/shop?fields="))["metadata"]
    }


async def test_a_path_below_another_is_no_error(fifty: Api) -> None:
    page = await fifty.ok("/v1/outputs/shop?limit=1&fields=data,data.title")
    assert page["items"][0]["data"]["price"]["amount"] == 19.99


async def test_paths_that_cannot_be_are_refused(fifty: Api) -> None:
    for fields in ["nothing", "data.", "data.$x", ",", "data..title", "content_hash"]:
        response = await fifty.get("/v1/outputs/shop", params={"fields": fields})
        assert (response.status, response.problems()) == (422, [(["query", "fields"], "value_error")]), fields


async def test_a_stream_is_compressed_when_asked(fifty: Api) -> None:
    response = await fifty.get(export("/v1/outputs/shop", "ndjson"), headers={"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert len(response.body.splitlines()) == 50


async def test_parquet_without_pyarrow_is_refused(fifty: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # importing it fails
    response = await fifty.get("/v1/outputs/shop/export?format=parquet")
    assert response.status == 422
    assert response.json["detail"][0]["loc"] == ["query", "format"]
    assert "ask for ndjson or csv" in response.json["detail"][0]["msg"]
