"""Texts of items: as scrapers send them, with odd values at every border, and broken ones."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from hypothesis import strategies as st

from service.runtime.demo_items import item, job_offer


def _words(text: str) -> list[str]:
    return text.split()


_ITEM_FIELDS = ["source_url", "root_job_id", "key_hash", "value_hash", "last_scraped_date", "is_approved"]
_FILE_FIELDS = [
    "id", "field", "url_etag_hash", "blob_key", "blob_url", "source_url", "create_date", "file_url", "file_type",
    "file_checksum", "file_metadata",
]  # fmt: skip
_ALPHABETS = [
    "abcdefghij klmnop_-/:.",
    "äöüßéèñçøåÄÖÜ aeiou",
    "日本語中文字漢字한국어",
    "😀🎉🚲🫖 \u200b\u2028\ufeff\U0010ffff",
    '"\\/\b\f\n\r\t\x01\x1f\x7f x',
    "\0\ud800\udfff\ud83d\ude00a",
    "<>&'{}[],:$#. 0",
]
_NUMBERS = [
    *_words("0 -0 0.0 -0.0 0.00 1 -1 1.0 1.50 19.90 100.0 4.35 -0.5 01 1. .5 +1 1e 0x1 NaN Infinity 1_0"),
    *_words("1e5 1E5 1e+5 1e-5 1.5e300 1e400 1e-400 5e-324 1.7976931348623157e308"),
    *_words("2147483647 2147483648 -2147483648 -2147483649 9007199254740991 9007199254740993 999999999999999999"),
    *_words("9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809"),
    *_words("18446744073709551615 18446744073709551616 99999999999999999999 123456789012345"),
    *_words("0.1 0.001 0.0009 0.0001 0.00001 0.000001 0.12345678901234 0.123456789012345 0.30000000000000004"),
    *_words("12345678901234.5 123456789012345.6 1234567890123456.7 0.1000000000000000055511151231257827"),
    *_words("999999999999999.9 1000000000000000.0 10000000000000000.0"),
    *("9" * 40, "9" * 41, "0." + "0" * 45 + "1"),
]
_DATES = [
    *_words("2026-01-31 2026-01-31T12:00:00Z 2026-01-31t12:00:00z 2026-01-31T12:00:00.123Z 2026-01-31T12:00:00"),
    *_words("2026-01-31T12:00:00.123456+00:00 2026-01-31T12:00:00.999999999Z 2026-01-31T12:00:00,5Z 2026-01-31T12:00"),
    *_words("2026-01-31T12:00:00+0200 2026-01-31T12:00:00+02 2024-02-29T23:59:59-11:30 1969-12-31T23:59:59.999Z"),
    *_words("0001-01-01 9999-12-31T23:59:59.999Z"),
    *_words("0001-01-01T00:00:00+01:00 9999-12-31T23:59:59-01:00 2026-02-29 2026-13-01 2026-01-31T24:00:00Z"),
    *("2026-01-31T12:00:60Z", "２０２６-01-31", "", "now"),
]
_LENGTHS = [0, 1, 7, 8, 9, 15, 16, 17, 63, 255, 256, 257, 1023, 1024, 1025, 8191, 8192, 8193]
_PIECES = [
    *(b'"', b"\\", b"\\u", b"\\u0000", b"\\ud800", b"\\udc00", b"\\uD83D\\uDE00", b"\\/", b"\\x", b"\\n"),
    *(b"\0", b"\x1f", b"\x7f", b"\x80", b"\xc0\x80", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"),
    *(b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\t", b"\xef\xbb\xbf", b"\xc2\xa0", b"//"),
    *(b"null", b"true", b"fals", b"-", b"0", b"1e", b".", b"e5", b"1" * 25, b'"":', b'"x":1,', b'"country":"x",'),
    *(b'"data":{}', b'"tags":{}', b'"files":[]', b'"is_approved":true', b"\xf0\x9f\x98\x80", b"\xe4\xb8\xad" * 9),
    *(b"[" * 70 + b"]" * 70, b'{"a":' * 70 + b"1" + b"}" * 70),
]


def _is_valid(number: str) -> bool:
    """Return whether a number is JSON, and an integer not too large."""
    try:
        value = json.loads(number, parse_constant=float.fromhex)
    except ValueError:
        return False
    return not isinstance(value, int) or -(2**63) <= value < 2**63


_VALID_NUMBERS = [text for text in _NUMBERS if _is_valid(text)]
_VALID_DATES = _DATES[: _DATES.index("9999-12-31T23:59:59.999Z") + 1]


class Number(str):
    """A number as it is written."""


class Twice(list[tuple[str, Any]]):
    """The members of an object that may have a name twice."""


class Items:
    """Makes texts of items, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def text(self) -> bytes:
        """Return the text of an item: mostly one that is valid."""
        text = self.write(self.item())
        return self.broken(text) if self._dice.random() < 0.2 else text

    def broken(self, text: bytes) -> bytes:
        """Return a text with a few bytes removed, repeated or put in."""
        dice = self._dice
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            start = dice.randrange(len(text) + 1)
            end = min(len(text), start + dice.choice((0, 0, 1, 1, 2, 8, 40)))
            middle = dice.choice((dice.choice(_PIECES), b"", text[start:end] * 2, bytes((dice.randrange(256),))))
            text = text[:start] + middle + text[end:]
            if dice.random() < 0.05:
                text = text[: dice.randrange(len(text) + 1)]
        return text

    def item(self) -> dict[str, Any]:
        """Return an item whose fields are lifelike, odd or wrong."""
        dice = self._dice
        number = dice.randrange(10**7)
        record = dice.choice((item, job_offer))(dice, number, f"job-{number % 7}")
        if dice.random() < 0.2:
            return record
        odd = dice.choice((0.0, 0.1, 0.1, 0.5))
        record["data"] = self._changed(record["data"], odd)
        record["tags"] = self._changed(record["tags"], odd)
        if dice.random() < 0.3:
            record["files"] = [self._file(odd) for _ in range(dice.choice((0, 1, 2, 5)))]
        if len(record["files"]) > 1 and dice.random() < 0.3:
            record["files"][-1] = record["files"][0]
        for name in dice.sample(_ITEM_FIELDS, dice.choice((0, 0, 1, 2))):
            record[name] = self._field(name, odd)
        for name in dice.sample([*record, "unknown"], 1) if dice.random() < 0.05 else ():
            record.pop(name, None)
            if dice.random() < 0.5:
                record[name] = self._value(2)
        names = list(record)
        if dice.random() < 0.3:
            dice.shuffle(names)
        return {name: record[name] for name in names}

    def _file(self, odd: float) -> dict[str, Any]:
        dice = self._dice
        names = dice.sample(_FILE_FIELDS, dice.randrange(len(_FILE_FIELDS) + 1))
        return {name: self._field(name, odd) for name in names}

    def _field(self, name: str, odd: float) -> Any:
        dice = self._dice
        if dice.random() < odd / 5:
            return self._value(2)
        if name.endswith("_date"):
            return dice.choice(_DATES if dice.random() < odd / 5 else _VALID_DATES)
        if name == "is_approved":
            return dice.random() < 0.5
        if name == "file_metadata":
            return {self._string(): self._value(2) for _ in range(dice.choice((0, 1, 3)))}
        return self._string() or "x"

    def _changed(self, value: Any, odd: float) -> Any:
        """Return a value with some of its parts replaced."""
        dice = self._dice
        if dice.random() < odd / 4:
            return self._value(4)
        if isinstance(value, dict):
            members = [(name, self._changed(below, odd)) for name, below in value.items()]
            for _ in range(dice.choice((0, 0, 1, 4)) if dice.random() < odd else 0):
                members.insert(dice.randrange(len(members) + 1), (self._name(), self._value(3)))
            if dice.random() < 0.2:
                dice.shuffle(members)
            return Twice(members)
        if isinstance(value, list):
            return [self._changed(below, odd) for below in value]
        return value

    def _value(self, levels: int) -> Any:
        dice = self._dice
        kind = dice.randrange(8 if levels else 6)
        if kind == 0:
            return dice.choice((None, True, False))
        if kind in (1, 2):
            return self._number()
        if kind < 6:
            return self._string()
        count = dice.choice((0, 1, 2, 3, 12, 40 if levels > 2 else 3))
        if kind == 6:
            return [self._value(levels - 1) for _ in range(count)]
        if dice.random() < 0.02:
            return {"deep": self._deep(dice.choice((5, 30, 61, 62, 63, 64, 65)))}
        return Twice((self._name(), self._value(levels - 1)) for _ in range(count))

    def _deep(self, levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value] if self._dice.random() < 0.5 else {self._name(): value}
        return value

    def _number(self) -> Number:
        dice = self._dice
        kind = dice.randrange(8)
        if kind == 0:
            return Number(dice.choice(_NUMBERS if dice.random() < 0.05 else _VALID_NUMBERS))
        if kind == 1:  # any double
            value = struct.unpack("<d", dice.randbytes(8))[0]
            return Number(repr(value) if value == value and abs(value) != float("inf") else "0.5")
        if kind == 2:
            return Number(repr(dice.uniform(-1000, 1000)))
        if kind == 3:
            return Number(f"{dice.uniform(-1e6, 1e6):.{dice.randrange(20)}f}")
        if kind == 4:
            return Number(f"{dice.uniform(-10, 10):.{dice.randrange(18)}e}")
        if kind == 5:
            return Number(str(dice.randrange(-(2**64), 2**64) >> dice.randrange(1, 66)))
        return Number(repr(round(dice.uniform(0, 10 ** dice.randrange(16)), dice.randrange(6))))

    def _name(self) -> str:
        """Return the name of a member; some come more than once, and some are those of special fields."""
        dice = self._dice
        if dice.random() < 0.5:
            return dice.choice(("a", "b", "aa", "ab", "_id", "country", "region", "price", "amount", "$ref", "a.b", ""))
        return self._string()

    def _string(self) -> str:
        dice = self._dice
        if dice.random() < 0.03:
            return dice.choice(("x", "é", "中", "\n"))[:1] * dice.choice(_LENGTHS)
        alphabet = dice.choices(_ALPHABETS, (600, 150, 100, 100, 100, 2, 100))[0]
        return "".join(dice.choices(alphabet, k=dice.randrange(24)))

    def write(self, value: Any) -> bytes:
        """Return a value as JSON in one of the styles that clients have."""
        dice = self._dice
        style = _Style(
            dice.random() < 0.5,
            *dice.choice(((",", ":"), (", ", ": "), (" ,\n\t", "\r\n : "))),
            dice.random() < 0.1,
        )
        return style.text(value).encode("utf-8", "surrogatepass")


class _Style:
    """How a client writes JSON."""

    def __init__(self, ascii_only: bool, comma: str, colon: str, slashes: bool) -> None:
        self._ascii_only, self._comma, self._colon, self._slashes = ascii_only, comma, colon, slashes

    def text(self, value: Any) -> str:
        if isinstance(value, Number):
            return str(value)
        if isinstance(value, (dict, Twice)):
            members = value.items() if isinstance(value, dict) else value
            inside = (f"{self.text(str(name))}{self._colon}{self.text(below)}" for name, below in members)
            return f"{{{self._comma.join(inside)}}}"
        if isinstance(value, list):
            return f"[{self._comma.join(map(self.text, value))}]"
        text = json.dumps(value, ensure_ascii=self._ascii_only)
        return text.replace("/", "\\/") if self._slashes else text


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30)
    | st.sampled_from(_VALID_NUMBERS).map(Number)
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=20,
)
_TEXTS = st.text(max_size=20)
_OBJECTS = st.dictionaries(st.text(max_size=8), _TREES, max_size=6)
_DATE_TEXTS = st.sampled_from(_DATES) | st.datetimes().map(lambda moment: f"{moment.isoformat()}Z")
_FILES = st.fixed_dictionaries(
    {},
    optional={name: _TEXTS for name in _FILE_FIELDS if name not in ("create_date", "file_metadata")}
    | {"create_date": _DATE_TEXTS, "file_metadata": _OBJECTS},
)
# Items that Hypothesis finds; most are valid.
RECORDS = st.fixed_dictionaries(
    {"source_url": _TEXTS, "root_job_id": st.text(min_size=1, max_size=20), "data": _OBJECTS},
    optional={
        "key_hash": _TEXTS,
        "value_hash": _TEXTS,
        "is_approved": st.booleans() | st.none(),
        "tags": _OBJECTS | st.dictionaries(st.sampled_from(["country", "region", "language"]), _LEAVES),
        "files": st.lists(_FILES, max_size=3),
        "last_scraped_date": _DATE_TEXTS,
    },
)
