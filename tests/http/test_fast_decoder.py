"""The fast path accepts what Marshmallow accepts, with the same result."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.handlers import cookies, local_storage, outputs, reviews
from service.http.errors import ApiError
from service.http.input.fast_decoder import FastPathRejected
from service.http.input.json_input import is_plainly_storable, is_storable, parse
from service.http.input.records import Records
from service.settings import Settings
from tests.support.api import make_cookie, make_entry, make_file, make_output, make_review
from tests.support.limits import Small

SETTINGS = Settings()
PIECE = 2**15  # bytes that are decoded at once in these tests; as they are served, half a megabyte
READERS = {
    "cookies": (cookies.INPUT, make_cookie()),
    "local storage": (local_storage.INPUT, make_entry()),
    "reviews": (reviews.INPUT, make_review(review_date="2026-01-31")),
    "outputs": (
        outputs.INPUT,
        make_output(
            value_hash="v",
            is_approved=True,
            last_scraped_date="2026-01-31T12:00:00+02:00",
            files=[make_file(), make_file(id="f", create_date="2026-01-31")],
        ),
    ),
}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["2026-01-31", "2026-01-31T25:00:00Z", "0000-01-01", "9999-12-31T23:59:59-01:00", "\0", "x" * 300]
    )
    | st.sampled_from(["ä" * 256, "ä" * 257, "x" * 8192, "x" * 8193]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def records(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """A valid record with some members left out, replaced or added, at the top and in its files."""
    record = {name: value for name, value in valid.items() if draw(st.integers(0, 9))}
    if record.get("files") and draw(st.booleans()):
        record["files"] = [draw(records(file)) for file in valid["files"]]
    for name in draw(st.lists(st.sampled_from([*valid, "unknown", "id", "_id"]), max_size=2)):
        record[name] = draw(values)
    return record


def outcome(reader: Records, raw: bytes, lines: bool) -> Any:
    """Return the records of a body, or what is wrong with it."""

    async def load() -> list[Any]:
        return (await reader.load(raw, SETTINGS, lines))[0]

    try:
        return asyncio.run(load())
    except ApiError as error:
        return error.status, error.problems


def without_fast_path(reader: Records) -> Records:
    def reject(*_: Any) -> Any:
        raise FastPathRejected

    slow = copy.copy(reader)
    slow.one_fast = reject  # type: ignore[method-assign, assignment]
    return slow


@pytest.mark.parametrize("name", READERS)
@given(data=st.data(), lines=st.booleans(), ascii_only=st.booleans())
def test_the_fast_path_and_marshmallow_agree(name: str, data: st.DataObject, lines: bool, ascii_only: bool) -> None:
    reader, valid = READERS[name]
    found = data.draw(st.lists(records(valid), max_size=3))
    texts = [json.dumps(record, ensure_ascii=ascii_only) for record in found]
    raw = ("\n".join(texts) if lines else f"[{','.join(texts)}]").encode("utf-8", "surrogatepass")
    assert outcome(reader, raw, lines) == outcome(without_fast_path(reader), raw, lines)


@given(
    raw=st.binary(max_size=40) | st.text(alphabet='[]{}",:0129eE+-.\\un \n', max_size=30).map(str.encode),
    lines=st.booleans(),
)
def test_they_agree_on_what_is_hardly_json(raw: bytes, lines: bool) -> None:
    reader, _ = READERS["cookies"]
    assert outcome(reader, raw, lines) == outcome(without_fast_path(reader), raw, lines)


@pytest.mark.parametrize(
    "raw",
    [
        b'[{"domain":"a","domain":"b","name":"n","value":"v"}]',
        b'[{"domain":"a","name":"n","value":"\\ud800"}]',
        b'[{"domain":"a","name":"\\ud83d\\ude00","value":"v"}]',
        b'[{"domain":"a","name":"n","value":"v"},]',
        b'\xef\xbb\xbf[{"domain":"a","name":"n","value":"v"}]',
        b'[{"domain":"a","name":"n","value":"v"}] x',
        b"[" * 2000 + b"]" * 2000,
    ],
    ids=["twice", "lone surrogate", "surrogate pair", "comma", "bom", "rest", "deep"],
)
def test_they_agree_on_json_at_its_edges(raw: bytes) -> None:
    reader, _ = READERS["cookies"]
    assert outcome(reader, raw, False) == outcome(without_fast_path(reader), raw, False)


@pytest.mark.parametrize("name", READERS)
def test_valid_records_take_the_fast_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, valid = READERS[name]

    def slow(*_: Any) -> None:
        raise AssertionError("went to Marshmallow")

    monkeypatch.setattr(Records, "one_with_marshmallow", slow)  # both ways return the same
    found = outcome(reader, json.dumps([valid, valid]).encode(), False)
    assert isinstance(found, list) and len(found) == 2  # what is wrong with a body is a tuple of two


def test_a_faulty_record_does_not() -> None:
    reader, valid = READERS["outputs"]
    with pytest.raises(FastPathRejected):
        reader.one_fast(json.dumps(valid | {"is_approved": "yes"}).encode(), SETTINGS)


_DEPTH = 6
_texts = (
    st.text(max_size=5)
    | st.sampled_from(
        ["\0", '"', "\\", '\\"', ":", "a" * 600, "a" * 1023, "a" * 1024, "a" * 1025, "ü" * 1025, '"' + "b" * 1400]
    )
    | st.integers(500, 3000).map(lambda length: "k" * length)
)
_large = st.recursive(
    st.none() | st.integers(-(2**70), 2**70) | st.sampled_from([2**63 - 1, 2**63, -(2**63) - 1, 10**18, 0.5]) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=12,
)


@given(_large, st.booleans())
def test_text_that_shows_that_its_value_can_be_stored_is_never_wrong(value: Any, spaced: bool) -> None:
    text = json.dumps({"data": value}, ensure_ascii=False, separators=None if spaced else (",", ":")).encode()
    assert not is_plainly_storable(text, _DEPTH) or is_storable({"data": value}, _DEPTH + 1)


@pytest.mark.parametrize("value", [1, {"title": "a" * 3000, "tags": ["b" * 1500, {"c": "d" * 900}]}, 10**17, "\n" * 9])
def test_text_shows_that_an_ordinary_value_can_be_stored(value: Any) -> None:
    assert is_plainly_storable(json.dumps({"data": value}, separators=(",", ":")).encode(), _DEPTH)


@pytest.mark.parametrize(
    "value", [{"a" * 1025: 1}, {"x": {"a" * 3000: "b" * 3000}}, {'"' + "a" * 1024: 1}, 2**63, "\0", [[[[[[[1]]]]]]]]
)
def test_text_of_a_value_that_cannot_be_stored_does_not_pass(value: Any) -> None:
    assert not is_storable({"data": value}, _DEPTH + 1)
    assert not is_plainly_storable(json.dumps({"data": value}).encode(), _DEPTH)
    assert not is_plainly_storable(json.dumps({"data": value}, separators=(",", ":")).encode(), _DEPTH)


@pytest.mark.parametrize("before_colon", [b"", b" ", b"\t\r\n "])
def test_a_large_object_of_too_many_keys_is_refused_before_it_is_decoded(small: Small, before_colon: bytes) -> None:
    """One call holds the interpreter lock: 250,000 keys took 120 ms."""
    small(piece=PIECE, keys=10_000)
    keys = b",".join(b'"%x"%b:0' % (n, before_colon) for n in range(10_100))
    with pytest.raises(ApiError) as refused:
        parse(b"{%b}" % keys)
    assert [entry["type"] for entry in refused.value.problems] == ["too_many"]


@pytest.mark.parametrize("value", [b"0", b"[]", b"[0,0]"])
def test_a_large_array_of_too_many_entries_is_refused_before_it_is_decoded(small: Small, value: bytes) -> None:
    """A million and a half zeros took 130 ms."""
    small(piece=PIECE, entries=50_000)
    with pytest.raises(ApiError) as refused:
        parse(b'{"a":[%b]}' % b",".join([value] * 50_001))
    assert [entry["msg"] for entry in refused.value.problems] == ["The body must have at most 50000 entries"]


@pytest.mark.parametrize("entry", ["0", '{"x":1,"y":2}'])
def test_an_array_of_1_mib_may_have_as_many_entries_as_fit(entry: str) -> None:
    count = (2**20 - 1) // (len(entry) + 1)
    assert parse(f"[{','.join([entry] * count)}]".encode()) == [json.loads(entry)] * count


def test_colons_in_the_strings_of_a_large_object_are_no_keys(small: Small) -> None:
    small(piece=PIECE, keys=1000)
    urls = [f"https://a.example:80/{n}: {n}" for n in range(5000)]
    assert parse(json.dumps({"urls": urls}).encode()) == {"urls": urls}


def test_the_keys_of_a_large_text_are_not_counted_again_at_each_level() -> None:
    """95 levels above 16 MB of escaped quotes took more than 9 seconds."""

    def seconds(levels: int) -> float:
        body = b'{"a":' * levels + b'"' + b'\\"' * 400_000 + b'"' + b"}" * levels
        began = time.process_time()
        parse(body)
        return time.process_time() - began

    assert seconds(90) < 20 * min(seconds(1) for _ in range(3))


@pytest.mark.parametrize("shift", range(4))
def test_json_in_a_string_has_neither_keys_nor_entries(small: Small, shift: int) -> None:
    small(piece=PIECE, keys=1000, entries=3000)
    text = json.dumps(["\\" * shift, {str(n): [n, '"', "\\"] for n in range(20_000)}])
    value = {"values": ["x" * shift, text]}
    assert parse(json.dumps(value).encode()) == value


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("entry", ['"\\\\"', '"\\""', '",\\",", 0', '"\\\\\\",", 0'])
def test_entries_are_counted_beside_escapes(small: Small, entry: str, shift: int) -> None:
    small(piece=PIECE, entries=30_000)
    with pytest.raises(ApiError):
        parse(f"[{' ' * shift}{','.join([entry] * 30_100)}]".encode())


UNITS = [r"\n", r"\\", r"\"", r"\u00e9", r"\\u00e9", r"\ud83d\ude00", r"\\\ud83d\udE00", "é", "😀", "x"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_string_is_the_same_wherever_it_is_divided(small: Small, unit: str) -> None:
    small(piece=PIECE)
    for shift in range(13):
        count = PIECE // len(unit.encode()) + 1
        text = f' "{"x" * shift}{unit * count}"\n'
        assert parse(text.encode()) == "x" * shift + json.loads(f'"{unit}"') * count


@pytest.mark.parametrize("end", ['" "', '"x', "", "\\", '\\"', '\\ud83d"', '\\u00"', '\\x"', '\n"', '""', '","b"'])
@pytest.mark.parametrize("begin", ["", "x" * PIECE])
def test_a_long_string_that_is_not_json_is_refused(small: Small, begin: str, end: str) -> None:
    small(piece=PIECE)
    for length in range(PIECE - 8, PIECE + 8, 3):
        with pytest.raises(ApiError, match="422"):
            parse(b'"%b' % (begin + "x" * length + end).encode())
