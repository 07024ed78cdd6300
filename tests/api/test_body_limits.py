"""How much a body may hold, and how deep; no body stalls the event loop."""

from __future__ import annotations

import gc
import gzip
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.runtime.tuning import tune_collector
from service.settings import Settings
from tests.support.api import Api, Response, make_cookie, make_entry, make_file, make_output
from tests.support.bad_input import MIB, bodies, nested, refused, send
from tests.support.capacity import bytes_held, held_at
from tests.support.fault_proxy import FaultProxy
from tests.support.stall import watch_loop, without_stall


@pytest.fixture(scope="module", autouse=True)
def tuned() -> Iterator[None]:
    """Collect garbage as the service does: a full collection is a stall of its own."""
    before = gc.get_threshold()
    tune_collector()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.alone
async def test_1000_invalid_records_get_the_first_100_problems(api: Api) -> None:
    wrong = [{"domain": 1, "nam": "x", "expires": "never"}] * 1000
    response = await without_stall(lambda: send(api, "/v1/cookies", bodies(wrong)))
    assert response.status == 422
    assert len(response.problems()) == 100
    assert response.problems()[0] == (["body", "0", "domain"], "string_type")
    assert await api.ok("/v1/cookies") == []


async def test_all_problems_of_a_body_are_reported_at_once(api: Api) -> None:
    body = bodies([make_cookie(), {"domain": "", "value": None, "secure": 1}, make_cookie(expires="soon")])
    response = await send(api, "/v1/cookies", body)
    assert sorted(response.problems()) == [
        (["body", "1", "domain"], "string_too_short"),
        (["body", "1", "name"], "missing"),
        (["body", "1", "secure"], "bool_type"),
        (["body", "1", "value"], "string_type"),
        (["body", "2", "expires"], "datetime_invalid"),
    ]


@pytest.mark.parametrize("field", ["data", "tags"])
async def test_values_are_kept_up_to_64_levels_deep(api: Api, field: str) -> None:
    value: Any = {"deep": nested(63)}
    await api.ok("/v1/outputs/g", [make_output(**{field: value})])
    (item,) = (await api.ok("/v1/outputs/g"))["items"]
    assert item[field] == value


@pytest.mark.parametrize("field", ["data", "tags"])
@pytest.mark.parametrize("depth", [64, 150, 500])
async def test_values_over_64_levels_deep_are_refused(api: Api, field: str, depth: int) -> None:
    value: Any = {"deep": nested(depth)}
    response = await send(api, "/v1/outputs/g", bodies([make_output(**{field: value})]))
    assert response.status == 422
    assert [kind for _, kind in response.problems()] == ["too_deep"]


async def test_file_metadata_over_the_depth_is_refused(api: Api) -> None:
    file = make_file(file_metadata={"deep": nested(64)})
    response = await send(api, "/v1/outputs/g", bodies([make_output(files=[file])]))
    assert [kind for _, kind in response.problems()] == ["too_deep"]


def item_of(size: int, number: int = 1) -> dict[str, Any]:
    """Return an item whose source_url, data, tags and files are together so many bytes of canonical JSON."""
    item = make_output(number, data={"text": ""}, tags={}, files=[])
    rest = len(item["source_url"]) + len('{"text":""}') + len("{}") + len("[]")
    return item | {"data": {"text": "x" * (size - rest)}}


async def test_an_item_over_1_mib_is_refused_and_named(api: Api) -> None:
    body = bodies([make_output(1), item_of(MIB + 1, 2)])
    await refused(api, "/v1/outputs/g", body, (["body", "1"], "too_large"))


async def test_an_item_of_1_mib_is_taken(api: Api) -> None:
    item = item_of(MIB)
    await api.ok("/v1/outputs/g", [item])
    assert (await api.ok("/v1/outputs/g"))["items"][0]["data"] == item["data"]


@pytest.mark.alone
class TestLargeBodies:
    @pytest.fixture
    def settings(self) -> Settings:
        # Time for a busy machine to write 16 MiB durably.
        return Settings(mongo_database="test", mongo_timeout=60, receive_timeout=60, lease_seconds=90)

    async def test_16_mib_of_valid_items_are_taken_without_a_stall(self, api: Api) -> None:
        rows = [{"name": f"row {n}", "price": n + 0.5, "stock": {"berlin": n}, "tags": ["a", "b"]} for n in range(150)]
        items = [make_output(n, data={"rows": rows, "text": "x" * 4000}) for n in range(1000)]
        body = bodies(items)
        assert 14 * MIB < len(body) < 16 * MIB
        response = await without_stall(lambda: send(api, "/v1/outputs/g", body))
        assert len(response.json["items"]) == 1000

    async def test_the_widest_texts_of_the_largest_body_are_taken(self, api: Api) -> None:
        """One emoji makes every character of its text take four bytes in memory: 60 MiB."""
        entries = [make_entry(key=str(n), value="x" * (5 * MIB - 4) + "😀") for n in range(3)]
        assert (await api.post("/v1/local-storage", entries)).json == {"created": 3, "updated": 0}


# Made when they are used: together they take half a second and 100 MB.
HEAVY: dict[str, Callable[[], bytes]] = {
    "a million empty arrays": lambda: b"[" + b",".join([b"[]"] * 1_000_000) + b"]",
    "8 million numbers": lambda: b"[" + b"1," * 8_000_000 + b"1]",
    "a million unknown fields": lambda: b"[{" + b",".join(b'"k%d":1' % n for n in range(1_000_000)) + b"}]",
    "700,000 unknown fields in many records": lambda: (
        b"[" + b",".join(b"{" + b",".join(b'"k%d":1' % n for n in range(700)) + b"}" for _ in range(1000)) + b"]"
    ),
    "1,000 records of 1,000 wrong files": lambda: (
        b"[" + b",".join([b'{"files":[' + b",".join([b'{"x":1}'] * 700) + b"]}"] * 1000) + b"]"
    ),
    "16 MB of spaces": lambda: b" " * (16 * MIB - 1),
    "16 MB of text": lambda: b'[{"data":{"text":"' + b"x" * (16 * MIB - 50) + b'"}}]',
    "16 MB of escapes": lambda: b'[{"data":{"text":"' + b"\\u00e9" * (2 * MIB) + b'"}}]',
    "a large array 60 levels down": lambda: b"[" * 60 + b"[" + b",".join([b"[]"] * 600_000) + b"]" + b"]" * 60,
}


@pytest.mark.alone
@pytest.mark.parametrize("case", HEAVY)
async def test_a_body_made_to_be_heavy_is_refused_without_a_stall(api: Api, case: str) -> None:
    body = HEAVY[case]()
    response = await without_stall(lambda: send(api, "/v1/outputs/g", body))
    assert response.status == 422
    assert response.problems()


@pytest.mark.alone
async def test_64_kb_of_wrong_records_do_not_stall_the_loop(api: Api) -> None:
    files = b'{"source_url":"u","root_job_id":"j","data":{},"files":[' + b",".join([b'{"x":1}'] * 7900) + b"]}"
    response = await without_stall(lambda: send(api, "/v1/outputs/g", b"[" + files + b"]"))
    assert response.status == 422


@pytest.mark.alone
async def test_16_mib_of_empty_lines_are_refused_without_a_stall(api: Api) -> None:
    """They were read to the end in one go, for 1.1 seconds: 16 KB compressed."""
    body = gzip.compress(b"\n" * (16 * MIB))
    headers = {"Content_Type": "application/x-ndjson", "Content_Encoding": "gzip"}
    response = await without_stall(lambda: send(api, "/v1/outputs/g", body, **headers))
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])


async def test_empty_lines_between_records_are_skipped(api: Api) -> None:
    lines = [json.dumps(make_output(n)).encode() for n in range(100)]
    response = await send(api, "/v1/outputs/g", b"\n \n\n".join(lines), Content_Type="application/x-ndjson")
    assert (response.status, len(response.json["items"])) == (200, 100)


@pytest.mark.alone
async def test_marshmallow_takes_large_records_off_the_event_loop(api: Api) -> None:
    """3 KB of empty files took 26 ms."""
    files = b",".join([b'{"x":1}'] * 7500)
    async with watch_loop() as stalls:
        began = time.process_time()
        response = await send(
            api, "/v1/outputs/g", b'[{"source_url":"u","root_job_id":"j","data":{},"files":[%b]}]' % files
        )
        took = time.process_time() - began
    assert response.status == 422
    assert stalls.worst < took / 2


SETTINGS = {"/v1/groups/g": "PUT", "/v1/groups/g/jobs/j": "PUT", "/v1/webhooks": "POST"}


@pytest.mark.parametrize("path", SETTINGS)
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_settings_of_more_than_256_kib_are_413(api: Api, path: str, encoding: str) -> None:
    statuses = []
    for size in (256 * 1024, 256 * 1024 + 1):
        body = b"{%b}" % (b" " * (size - 2))
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        sent = gzip.compress(body) if encoding == "gzip" else body
        statuses.append((await api.request(SETTINGS[path], path, data=sent, headers=headers)).status)
    assert statuses == [200 if path == "/v1/groups/g" else 422, 413]


@pytest.mark.parametrize("path", ["/v1/outputs/g", "/v1/outputs/g/x"])
async def test_tags_are_counted_as_large_as_they_are_in_memory(wired_api: Api, wire: FaultProxy, path: str) -> None:
    """7 MB of patches took 267 MB as Python's objects."""
    held = held_at(wire, wired_api.client.app, "find", "outputs")
    one = {"tags": {"a": [{"a": {"a": {"a": 0}}}] * 2000}}
    await wired_api.patch(path, one if path.endswith("x") else [{"output_id": "x", **one}])
    assert held[0] > 2000 * 4 * 200
    assert bytes_held(wired_api.client.app) == 0


# -- settings --------------------------------------------------------------------------------------------


class TestSmallLimits:
    """Every size is a setting."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(
            mongo_database="test",
            max_body_bytes=1000,
            max_records=2,
            max_item_bytes=300,
            max_depth=3,
            max_values=20,
        )

    async def test_the_body(self, api: Api) -> None:
        assert (await send(api, "/v1/cookies", b" " * 1001)).status == 413
        assert (await send(api, "/v1/cookies", gzip.compress(b" " * 1001), Content_Encoding="gzip")).status == 413
        assert (await send(api, "/v1/cookies", b" " * 998 + b"[]")).status == 200

    async def test_the_records(self, api: Api) -> None:
        assert (await api.post("/v1/cookies", [make_cookie()] * 2)).status == 200
        await refused(api, "/v1/local-storage", bodies([make_entry()] * 3), (["body"], "too_many"))

    async def test_the_item(self, api: Api) -> None:
        small = {"source_url": "u", "root_job_id": "j", "data": {"a": "x" * 200}}
        assert (await api.post("/v1/outputs/h", [small])).status == 200
        large = {**small, "data": {"a": "x" * 300}}
        await refused(api, "/v1/outputs/g", bodies([large]), (["body", "0"], "too_large"))

    async def test_the_depth(self, api: Api) -> None:
        item = {"source_url": "u", "root_job_id": "j", "data": {"a": [[1]]}}
        assert (await api.post("/v1/outputs/h", [item])).status == 200
        item["data"] = {"a": [[[1]]]}
        assert (await api.post("/v1/outputs/g", [item])).problems()[0][1] == "too_deep"

    async def test_the_values(self, api: Api) -> None:
        item = {"source_url": "u", "root_job_id": "j", "data": {"a": [1] * 10}}
        assert (await api.post("/v1/outputs/h", [item])).status == 200
        item["data"] = {"a": [1] * 30}
        await refused(api, "/v1/outputs/g", bodies([item]), (["body"], "too_many"))

    async def test_the_values_of_a_storage_state(self, api: Api) -> None:
        # The state, its origins, one of them, its name and an array of one number: a third of 20.
        state: dict[str, Any] = {"origins": [{"origin": "https://a.example", "x": [1]}]}
        assert (await api.post("/v1/storage-state", state)).status == 200
        state["origins"][0]["x"] = [1, 2]
        assert (await api.post("/v1/storage-state", state)).problems() == [(["body"], "too_many")]

    async def test_the_values_of_patches(self, api: Api) -> None:
        async def patched(*tags: int) -> Response:
            # The patch, its output_id, its tags and an array.
            body = [{"output_id": "x", "tags": {"a": list(range(count))}} for count in tags]
            return await api.patch("/v1/outputs/g", body)

        assert (await patched(2)).status == 200
        for counts in [(3,), (1, 1)]:
            assert (await patched(*counts)).problems() == [(["body"], "too_many")]
        assert (await api.patch("/v1/outputs/g/x", {"tags": {"a": [1, 2, 3, 4]}})).problems() == [
            (["body"], "too_many")
        ]

    async def test_the_lines(self, api: Api) -> None:
        record = json.dumps({"source_url": "u", "root_job_id": "j", "data": {}}).encode()
        ndjson = {"Content_Type": "application/x-ndjson"}
        assert (await send(api, "/v1/outputs/h", b"\n" * 19 + record, **ndjson)).status == 200
        assert (await send(api, "/v1/outputs/h", b"\n" * 20 + record, **ndjson)).problems() == [(["body"], "too_many")]


@pytest.mark.alone
@pytest.mark.parametrize("text", [b'{"a": [%b]}', b'{"a": [%b'])
async def test_a_large_body_that_is_no_array_is_not_decoded_to_be_refused(api: Api, text: bytes) -> None:
    body = text % b",".join([b"1"] * 1_000_000)
    response = await without_stall(lambda: send(api, "/v1/cookies", body))
    assert (response.status, response.problems()) == (422, [(["body"], "list_type")])
