"""Compressed bodies: linear work, bounded members and time."""

from __future__ import annotations

import gzip
import time
import zlib
from typing import Any

import pytest

from service.http.errors import ApiError
from service.http.input.body import inflate
from service.settings import Settings
from tests.support.api import Api, make_output
from tests.support.limits import Small
from tests.support.stall import without_stall

GZIP = 31
MEMBER = gzip.compress(b" ")
MIB = 2**20


def inflated(body: bytes) -> bytes:
    text = bytearray()
    for _ in inflate(body, 16 * MIB, GZIP, text):
        pass
    return bytes(text)


def test_members_that_follow_each_other_are_one_text() -> None:
    text = gzip.compress(b"[1,") + gzip.compress(b"x" * 100_000) + bytes(50_000) + gzip.compress(b"2]") + bytes(512)
    assert inflated(text) == b"[1," + b"x" * 100_000 + b"2]"


@pytest.mark.parametrize("end", [1, 5, 20])
def test_a_body_that_is_cut_off_is_refused(end: int) -> None:
    with pytest.raises(ApiError) as refused:
        inflated(gzip.compress(b"x" * 1000)[:-end])
    assert refused.value.status == 400


def test_a_body_of_many_tiny_members_is_refused_at_once() -> None:
    """Two megabytes took three seconds each when every member copied the rest."""
    body = MEMBER * (2 * 2**20 // len(MEMBER))
    began = time.thread_time()
    with pytest.raises(ApiError) as refused:
        inflated(body)
    assert time.thread_time() - began < 0.5
    assert refused.value.problems[0]["type"] == "encoding_invalid"
    assert "gzip members" in refused.value.problems[0]["msg"]


def test_as_many_members_as_are_allowed_take_milliseconds() -> None:
    body = gzip.compress(b"x" * 2000) * 1024
    began = time.thread_time()
    assert len(inflated(body)) == 2000 * 1024
    assert time.thread_time() - began < 0.5


async def test_a_body_that_takes_too_long_to_decompress_is_refused(api: Api, small: Small) -> None:
    """12 MB of empty blocks kept the one thread busy for 1.1 s."""
    small(inflate_seconds=0.02)
    packer = zlib.compressobj(wbits=GZIP)
    body = packer.compress(b"x") + packer.flush(zlib.Z_FULL_FLUSH) * 1_000_000
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = await api.post("/v1/outputs/g", data=body, headers=headers)
    assert (response.status, response.problems()) == (400, [(["body"], "encoding_invalid")])
    assert "too long" in response.json["detail"][0]["msg"]


# -- files -------------------------------------------------------------------------------------------


class TestFiles:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(mongo_database="test", max_files=10)

    @pytest.mark.parametrize("content_type", ["application/json", "application/x-ndjson"])
    async def test_more_files_in_a_body_than_allowed_are_refused_before_they_are_prepared(
        self, api: Api, content_type: str
    ) -> None:
        async def post(items: list[dict[str, Any]]) -> Any:
            import json

            lines = content_type.endswith("ndjson")
            text = "\n".join(map(json.dumps, items)) if lines else json.dumps(items)
            return await api.post("/v1/outputs/g", data=text, headers={"Content-Type": content_type})

        assert (await post([make_output(n, files=[{}] * 5) for n in range(2)])).status == 200
        response = await post([make_output(n, files=[{}] * 4) for n in range(3)])
        assert (response.status, response.problems()) == (422, [(["body"], "too_many")])
        assert "at most 10 files" in response.json["detail"][0]["msg"]


@pytest.mark.alone
async def test_700_items_of_1000_empty_files_do_not_delay_others(api: Api) -> None:
    import json

    body = gzip.compress(json.dumps([make_output(n, files=[{}] * 1000) for n in range(700)]).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = await without_stall(lambda: api.post("/v1/outputs/g", data=body, headers=headers))
    assert (response.status, response.problems()) == (422, [(["body"], "too_many")])
