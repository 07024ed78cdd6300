"""How a body is sent: its content type, its compression, its length."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, make_cookie
from tests.support.bad_input import JSON, MIB, POSTS, bodies, send
from tests.support.stall import without_stall

OTHER_TYPES = [
    "text/plain",
    "text/json",
    "application/xml",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/json; charset=utf-16",
    "application/json; charset=latin-1",
    "application/json; charset=nonsense",
    "application/vnd.api+json",
    "application/jsonx",
    "application",
    "*/*",
    "",
    ";",
    "application/json;charset=utf-8;charset=utf-16",
    "application/json" + ";a=b" * 100,
]


async def test_content_types_other_than_json_are_refused(api: Api) -> None:
    for content_type in OTHER_TYPES:
        for path, make in POSTS.items():
            response = await send(api, path, bodies([make()]), Content_Type=content_type)
            assert response.status == 415, (path, content_type)
            assert response.problems() == [(["header", "Content-Type"], "unsupported_media_type")], (path, content_type)


async def test_json_may_be_named_in_several_ways(api: Api) -> None:
    for content_type in [
        "application/json",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "Application/JSON",
        "application/json; charset=utf8",
        "application/json; charset='utf-8'",
        "application/json; charset=",
        'application/json; charset=""',
        "application/json; profile=x",
        'application/json; profile="a;b"',
        "application/json;",
        "application/json;a*",
        "application/json;a*0*",
        "application/json;(((",
    ]:
        assert (await send(api, "/v1/cookies", bodies([make_cookie()]), Content_Type=content_type)).status == 200, (
            content_type
        )


async def test_an_unknown_content_encoding_is_refused(api: Api) -> None:
    for encoding in ["br", "zstd", "compress", "gzip, gzip", "gzip;q=1", "nonsense", "ｇｚｉｐ"]:
        response = await send(api, "/v1/cookies", gzip.compress(bodies([make_cookie()])), Content_Encoding=encoding)
        assert (response.status, response.problems()) == (
            415,
            [(["header", "Content-Encoding"], "unsupported_encoding")],
        ), encoding


async def test_a_body_may_be_compressed(api: Api) -> None:
    ways: list[tuple[str, Callable[[bytes], bytes]]] = [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
        ("gzip", lambda text: gzip.compress(text[:5]) + gzip.compress(text[5:])),
    ]
    for encoding, compress in ways:
        response = await send(api, "/v1/cookies", compress(bodies([make_cookie()])), Content_Encoding=encoding)
        assert sum(response.json.values()) == 1, encoding


COMPRESSED = gzip.compress(bodies([make_cookie(value="x" * 1000)]), mtime=0)
CORRUPT = {
    "not gzip at all": bodies([make_cookie()]),
    "cut in the middle": COMPRESSED[: len(COMPRESSED) // 2],
    "without its checksum": COMPRESSED[:-8],
    "with another checksum": COMPRESSED[:-8] + bytes(8),
    "with a flipped bit": COMPRESSED[:40] + bytes([COMPRESSED[40] ^ 0xFF]) + COMPRESSED[41:],
    "only a header": COMPRESSED[:10],
    "with something else behind it": COMPRESSED + b"[]",
}


async def test_a_corrupt_gzip_body_is_refused(api: Api) -> None:
    for case in CORRUPT:
        response = await send(api, "/v1/cookies", CORRUPT[case], Content_Encoding="gzip")
        assert (response.status, response.problems()) == (400, [(["body"], "encoding_invalid")]), case
        assert await api.ok("/v1/cookies") == [], case


@pytest.mark.alone
async def test_a_gzip_bomb_of_200_mb_is_refused_without_being_unpacked(api: Api) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(b" " * MIB) for _ in range(200)) + packer.flush()
    assert len(bomb) < MIB
    response = await without_stall(lambda: send(api, "/v1/outputs/g", bomb, Content_Encoding="gzip"))
    assert (response.status, response.problems()) == (413, [(["body"], "too_large")])


async def test_a_body_over_the_limit_is_refused_by_its_length(api: Api) -> None:
    response = await send(api, "/v1/cookies", b" " * (16 * MIB + 1))
    assert (response.status, response.problems()) == (413, [(["body"], "too_large")])


async def test_a_body_over_the_limit_is_refused_without_a_length(api: Api) -> None:
    async def pieces() -> Any:
        for _ in range(17):
            yield b" " * MIB

    response = await api.request("POST", "/v1/cookies", data=pieces(), headers=JSON)
    assert (response.status, response.problems()) == (413, [(["body"], "too_large")])


async def test_a_body_of_exactly_the_limit_is_taken(api: Api) -> None:
    body = bodies([make_cookie()])
    assert (await send(api, "/v1/cookies", body + b" " * (16 * MIB - len(body)))).status == 200
