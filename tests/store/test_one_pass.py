"""The one-pass encoder makes of a text exactly what the path in Python makes of it, or leaves it to that path."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench.shapes import SHAPES
from scripts.one_pass.__main__ import Comparison, comparisons, generated
from scripts.one_pass.items import RECORDS, Items
from service.settings import Settings
from tests.support.api import make_file, make_output

ROOT = Path(__file__).parents[2]
COMPARISONS = {comparison.name: comparison for comparison in comparisons()}
ORDINARY, IGNORING, SMALL = COMPARISONS.values()


def text_of(**changes: Any) -> bytes:
    return json.dumps(make_output(**changes)).encode()


def with_data(text: str) -> bytes:
    return text_of(data="@@").replace(b'"@@"', text.encode("utf-8", "surrogatepass"))


@given(record=RECORDS, seed=st.integers(0, 1000))
def test_both_paths_make_the_same_of_what_hypothesis_finds(record: dict[str, Any], seed: int) -> None:
    items = Items(seed)
    for comparison in COMPARISONS.values():
        text = items.write(record)
        comparison.compare(text)
        comparison.compare(items.broken(text))


@pytest.mark.parametrize("name", COMPARISONS)
def test_both_paths_make_the_same_of_generated_items(name: str) -> None:
    became = Counter(COMPARISONS[name].compare(text) for text in generated(400, seed=1))
    assert min(became["equal"], became["invalid"]) > 80, became


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_items_of_real_shapes_are_encoded_in_one_pass(shape: str, ascii_only: bool) -> None:
    for item in SHAPES[shape](20):
        text = json.dumps(item, ensure_ascii=ascii_only).encode()
        assert ORDINARY.compare(text) == IGNORING.compare(text) == "equal"


@pytest.mark.parametrize(
    "data",
    [
        "{}",
        ' { "b" : [ ] , "a" : { } ,\n"c":[ 1 , null ,\ttrue,false ] } ',
        '{"größe": "é\\u00e9\\n\\"\\\\\\/\\b\\f\\t\\r\\u001f", "\\u0067\\n": "\\ud83d\\ude00😀中"}',
        '{"n": [0, -1, 2147483647, 2147483648, -2147483649, 9223372036854775807, -9223372036854775807]}',
        '{"n": [0.0, 1.50, 19.90, -0.0, 0.00, 0.1, -0.5, 0.30000000000000004, 1e5, 1E-7, 123456789012345.6, 0.0001]}',
        json.dumps({f"key {n * 7 % 100}": n for n in range(100)}),
        '{"' + "ü" * 1024 + '": "' + "x" * 5000 + '"}',
        '{"a":' * 64 + "1" + "}" * 64,
        '{"_id": 1, "$ref": "x", "$id": 2, "a.b": {"": ""}, "\x7f\u2028": "\ufeff"}',
    ],
)  # fmt: skip
def test_data_of_every_kind_is_encoded_in_one_pass(data: str) -> None:
    assert ORDINARY.compare(with_data(data)) == IGNORING.compare(with_data(data)) == "equal"


@pytest.mark.parametrize(
    "changes",
    [
        {"last_scraped_date": "2026-01-31T12:00:00.123456+02:00", "is_approved": True, "value_hash": "mine"},
        {"tags": {"region": "DE-BE", "country": "x" * 1024, "other": [1]}},
        {"tags": {"region": 7, "country": "ü" * 1025}},
        {"files": [make_file(), make_file(), make_file(id="mine"), {}, {"create_date": "1969-01-31"}]},
        {"files": [make_file(file_metadata={"b": 1, "a": {"alt": "\u00fc\n"}}, blob_key='"\\\u0001')]},
        {"source_url": "ü" * 8192, "root_job_id": "j" * 256, "key_hash": "", "value_hash": ""},
    ],
    ids=["dates", "filter tags", "tags that are no filters", "files", "file texts", "long texts"],
)
def test_items_with_every_field_are_encoded_in_one_pass(changes: dict[str, Any]) -> None:
    assert ORDINARY.compare(text_of(**changes)) == "equal"


@pytest.mark.parametrize(
    "data",
    [
        '{"a": 1, "a": 2}',
        '{"b": 1, "a": 2, "b": 3}',
        '{"a": -0}',
        '{"a": 0.' + "1" * 41 + "}",
    ],
    ids=["twice", "twice, not in order", "minus zero", "many digits"],
)
def test_rare_values_are_handed_back(data: str) -> None:
    assert ORDINARY.compare(with_data(data)) == "handed back"


_NOT_VALID = """
{"a": "\\u0000"} | {"\\u0000": 1} | {"a": "\\ud800"} | {"a": "\ud800"} | {"a": "\\udc00\\ud800"} | {"a": "\t"} | {"a": "\\x"} |
{"a": 9223372036854775808} | {"a": 1e400} | {"a": 01} | {"a": 1.} | {"a": .5} | {"a": +1} | {"a": NaN} | {"a": 0x1} |
{"a": 1 2} | {"a": tru} | {"a": nul} | {"a": 1,} | {"a" 1} | {a: 1} | {"a": [1,]} | {"a": [1 | [] | null | "x"
"""  # noqa: E501


def test_data_that_are_not_valid_are_handed_back() -> None:
    deep, long_key = '{"a":' * 65 + "1" + "}" * 65, '{"' + "k" * 1025 + '": 1}'
    for data in (*_NOT_VALID.split(" | "), deep, long_key):
        assert ORDINARY.compare(with_data(data.strip("\n"))) == "invalid", data


def test_fields_that_are_not_valid_are_handed_back() -> None:
    for name, value in (
        *(("unknown", 1), ("source_url", "x" * 8193), ("root_job_id", ""), ("key_hash", "k" * 257)),
        *(("is_approved", None), ("tags", []), ("last_scraped_date", "2026-02-29"), ("last_scraped_date", 0)),
        *(("files", {}), ("files", [{}] * 1001), ("files", [{"id": "x" * 257}]), ("files", [{"unknown": ""}])),
        *(("files", [{"create_date": "now"}]), ("data", {"a": "x" * 1024**2})),
    ):
        assert ORDINARY.compare(text_of(**{name: value})) == "invalid", name


def test_limits_are_those_of_the_settings() -> None:
    comparison = Comparison("a limit", Settings(max_item_bytes=1000, max_depth=5), {})
    fitting = text_of(files=[], tags={}, key_hash="k", data={"a": ""})
    size = 1000 - len(make_output()["source_url"]) - len('{"a":""}{}[]')
    assert comparison.compare(fitting.replace(b'"a": ""', b'"a": "%b"' % (b"x" * size))) == "equal"
    assert comparison.compare(fitting.replace(b'"a": ""', b'"a": "%b"' % (b"x" * (size + 1)))) == "invalid"
    assert comparison.compare(text_of(data={"a": [[[[]]]]})) == "equal"
    assert comparison.compare(text_of(data={"a": [[[[[]]]]]})) == "invalid"


def test_what_was_encoded_before_leaves_no_trace() -> None:
    """The memory of one item is used for the next."""
    one_pass, texts = ORDINARY.one_pass, list(generated(60, seed=4))
    alone = [comparisons()[0].one_pass.from_text(text) for text in texts]
    again = [one_pass.from_text(text) for text in reversed(texts)][::-1]
    assert [made and made[0].content_hash for made in alone] == [made and made[0].content_hash for made in again]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--broken",)], ids=["as it is", "without a check of bounds"])
def test_the_sanitizers_find_nothing_unless_a_check_is_missing(options: tuple[str, ...]) -> None:
    assert shutil.which("gcc"), "the sanitizers need gcc"
    command = [sys.executable, "-m", "scripts.one_pass.sanitized", "--minutes", "0.2", "--seed", "1", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ("nothing found" in done.stdout, done.returncode == 0) == (not options, not options), done.stderr
    assert ("AddressSanitizer" in done.stderr) == bool(options)


@pytest.mark.slow
def test_the_comparison_finds_nothing_in_many_items() -> None:
    command = [sys.executable, "-m", "scripts.one_pass", "--items", "20000", "--seed", "7"]
    assert "none differs" in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
