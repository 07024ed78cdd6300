# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""One pass from the JSON text of an item to what is queued for the database: an optional extension.

It does what the decoder (`http/input/records.py`) and the encoder (`encode.py`) do together, without a Python object
per value. They stay the reference: a text that is not certainly valid here is theirs, and so is every error message.
What is accepted here becomes the same bytes: `python -m scripts.one_pass` compares both.
"""

from datetime import datetime
from hashlib import sha256
from sys import byteorder

from orjson import dumps

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from schemas.base import MAX_KEY, parse_date
from schemas.outputs import FileInput, OutputInput
from service.store.outputs.documents import canonical as canonical_json
from service.store.outputs.encode import FILTER_TAGS, MAX_BSON_BYTES, MAX_FILTER, PART, PUT_BYTES, Put

if byteorder != "little":
    raise ImportError("the one-pass encoder needs a processor that is little-endian, as BSON is")

# A larger text is for Python, which decodes it piece by piece: one call holds the interpreter lock to its end.
cdef Py_ssize_t _MAX_TEXT = 512 * 1024
# After a text of more bytes, the memory that it took is returned.
cdef Py_ssize_t _LARGE_TEXT = 64 * 1024
cdef Py_ssize_t _MAX_BUFFER = 64 * 1024 * 1024

include "one_pass_memory.pxi"
include "one_pass_scanner.pxi"
include "one_pass_json.pxi"
include "one_pass_fields.pxi"
include "one_pass_files.pxi"

cdef enum:
    # Places in the texts of an item.
    SOURCE_URL = 0
    ROOT_JOB_ID = 1
    KEY_HASH = 2
    VALUE_HASH = 3
    LAST_SCRAPED_DATE = 4
    _ITEM_TEXTS = 5
    _FILTERS = 2

cdef list _ITEM_FIELDS = _text_fields(
    OutputInput, "source_url", "root_job_id", "key_hash", "value_hash", "last_scraped_date"
)
cdef list _FILTER_NAMES = [name.encode() for name in FILTER_TAGS]
# How each begins as an element of BSON.
cdef list _FILTER_HEADS = [b"\x02%b\0" % name for name in _FILTER_NAMES]
assert (len(_ITEM_FIELDS), len(_FILTER_NAMES)) == (_ITEM_TEXTS, _FILTERS)
cdef bytes _VARIANTS = b"89ab"


cdef long long _handed_back = 0


def handed_back():
    """Return how many items this process has left to the encoder in Python."""
    return _handed_back


cdef class OnePass:
    """Encodes the items of one body. It takes memory with its first text, and returns it after a large one."""

    cdef object _encoder
    cdef dict _ignored
    cdef bytes _prefix, _mark
    cdef int _max_depth
    cdef Py_ssize_t _max_item_bytes
    cdef bint _is_busy
    cdef Fields _fields
    cdef Files _files
    cdef Buffer _hashed, _content

    def __init__(self, encoder not None, int max_depth):
        self._encoder, self._prefix = encoder, encoder.group.key_prefix
        self._ignored, self._mark = encoder.comparing.tree, encoder.comparing.mark.encode()
        self._max_item_bytes, self._max_depth = encoder.max_item_bytes, max_depth

    def __call__(self, item):
        """Return a validated item as it is queued for the database, made by the encoder in Python."""
        global _handed_back
        _handed_back += 1
        return self._encoder(item)

    def from_text(self, bytes text not None):
        """Return an item as it is queued for the database, and its number of files; None if that is for Python."""
        if len(text) > _MAX_TEXT or self._is_busy:
            return None
        self._is_busy = True  # hashing lets other threads run
        if self._fields is None:
            self._fields = Fields()
            self._files = Files(self._fields, self._max_depth, self._encoder.now)
            self._hashed, self._content = Buffer(4096), Buffer(4096)
        try:
            return self._encode(text)
        except Unsure:
            return None
        finally:
            self._is_busy = False
            if len(text) > _LARGE_TEXT:
                self._fields = self._files = self._hashed = self._content = None

    cdef tuple _encode(self, bytes text):
        cdef Fields fields = self._fields
        cdef Scanner scanner
        cdef Text[_ITEM_TEXTS] texts
        cdef Text[_FILTERS] filters
        cdef Span data, compared, tags
        cdef bint has_data = False, has_tags = False, has_files = False
        cdef Py_ssize_t place, start
        is_approved = None
        fields.begin(text)
        self._files.begin()
        self._hashed.truncate(0)
        self._content.truncate(0)
        for place in range(_ITEM_TEXTS):
            texts[place].is_sent = False
        for place in range(_FILTERS):
            filters[place].is_sent = False
        scanner = fields.reader.text
        scanner.expect(c'{')
        while True:
            start = fields.name()
            place = fields.place(_ITEM_FIELDS, start)
            if place >= 0:
                fields.read(&texts[place], <tuple> _ITEM_FIELDS[place])
            elif fields.is_name(start, b"data") and not has_data:
                has_data = True
                start = scanner.at
                data = compared = fields.object(self._max_depth, _NOTHING)
                if self._ignored:
                    scanner.at = start
                    compared = fields.object(self._max_depth, self._ignored)
            elif fields.is_name(start, b"tags") and not has_tags:
                has_tags = True
                tags = fields.object(self._max_depth, _NOTHING)
                self._read_filters(filters)
            elif fields.is_name(start, b"files") and not has_files:
                has_files = True
                self._files.read()
            elif fields.is_name(start, b"is_approved") and is_approved is None:
                is_approved = bool(fields.reader.boolean())
            else:
                raise Unsure
            if not scanner.more(c'}'):
                break
        scanner.finish()
        if not (has_data and texts[SOURCE_URL].is_sent and texts[ROOT_JOB_ID].is_sent):
            raise Unsure
        if not has_tags:
            tags = fields.empty_object()
        return self._put(texts, &data, &compared, &tags, filters, is_approved), self._files.count

    cdef int _read_filters(self, Text *filters) except -1:
        """Find the tags that can be filtered by, in those that were read last, as `encode.filter_tags` does it."""
        cdef Buffer bson = self._fields.reader.bson
        cdef Members members = self._fields.reader.members
        cdef Py_ssize_t index, place, start, end
        cdef Member member
        for index in range(members.count):
            members.get(index, &member)
            for place in range(_FILTERS):
                if bson.at(member.key - 1) == BSON_STRING and bson.equals(
                    member.key, member.key_end, <bytes> _FILTER_NAMES[place]
                ):
                    start = member.key_end + 5  # behind NUL and the length
                    end = start + bson.int32_at(start - 4) - 1
                    filters[place].start, filters[place].end = start, end
                    filters[place].is_sent = bson.has_length(start, end, 0, MAX_FILTER)
        return 0

    cdef object _put(
        self, Text *texts, Span *data, Span *compared, Span *tags, Text *filters, object is_approved
    ):
        """Return the item that was read, with its hashes and its identity as `Encoder` makes them."""
        cdef Fields fields = self._fields
        cdef Buffer canonical = fields.reader.canonical, bson = fields.reader.bson
        cdef Buffer hashed = self._hashed, content = self._content
        cdef Text digest, tags_digest, rest, output_id, content_hash
        cdef bint key_is_made = not texts[KEY_HASH].is_sent, states_hash
        cdef Py_ssize_t place, files_size
        hashed.copy(canonical, data.text, data.text_end)
        digest = self._digest()
        states_hash = texts[VALUE_HASH].is_sent and not self._same(&texts[VALUE_HASH], &digest)
        if not texts[VALUE_HASH].is_sent:
            texts[VALUE_HASH] = digest
        if self._ignored:
            hashed.copy(canonical, compared.text, compared.text_end)
            digest = self._digest()
        if key_is_made:
            hashed.copy(fields.texts, texts[SOURCE_URL].start, texts[SOURCE_URL].end)
            hashed.byte(c'\n')
            hashed.copy(canonical, compared.text, compared.text_end)
            texts[KEY_HASH] = self._digest()
        hashed.copy(canonical, tags.text, tags.text_end)
        tags_digest = self._digest()
        hashed.copy(fields.texts, texts[SOURCE_URL].start, texts[SOURCE_URL].end)
        hashed.byte(c'\n')
        if states_hash:
            hashed.copy(fields.texts, texts[VALUE_HASH].start, texts[VALUE_HASH].end)
        hashed.byte(c'\n')
        files_size = self._files.append_canonical(hashed)
        if (
            texts[SOURCE_URL].end - texts[SOURCE_URL].start
            + data.text_end - data.text + tags.text_end - tags.text + files_size
        ) > self._max_item_bytes:
            raise Unsure
        rest = self._digest()
        content_hash = fields.begin_text()
        fields.texts.copy(fields.texts, digest.start, digest.start + _PART)
        fields.texts.copy(fields.texts, tags_digest.start, tags_digest.start + _PART)
        fields.texts.copy(fields.texts, rest.start, rest.start + _PART)
        fields.texts.text(self._mark)
        content_hash.end = fields.texts.size
        output_id = self._output_id(&texts[KEY_HASH])
        self._name_files(&texts[KEY_HASH])
        self._element(b"\x02output_id\0", &output_id)
        self._element(b"\x02root_job_id\0", &texts[ROOT_JOB_ID])
        self._element(b"\x02key_hash\0", &texts[KEY_HASH])
        self._element(b"\x02value_hash\0", &texts[VALUE_HASH])
        self._element(b"\x02source_url\0", &texts[SOURCE_URL])
        for place in range(_FILTERS):
            if filters[place].is_sent:
                content.element(_FILTER_HEADS[place], bson, filters[place].start, filters[place].end)
        self._element(b"\x02content_hash\0", &content_hash)
        content.text(b"\x03data\0")
        content.copy(bson, data.bson, data.bson_end)
        content.text(b"\x03tags\0")
        content.copy(bson, tags.bson, tags.bson_end)
        content.text(b"\x04files\0")
        content.int32(<int32_t> (self._files.bson.size + 5))
        content.copy(self._files.bson, 0, self._files.bson.size)
        content.byte(0)
        if content.size + 5 > <Py_ssize_t> MAX_BSON_BYTES:
            raise Unsure
        scraped = fields.moment(&texts[LAST_SCRAPED_DATE])
        if scraped is not None:
            scraped = scraped.replace(tzinfo=None)
        return Put(
            fields.str_of(&output_id),
            fields.str_of(&texts[KEY_HASH]),
            key_is_made,
            fields.str_of(&texts[ROOT_JOB_ID]),
            is_approved,
            scraped,
            fields.str_of(&content_hash),
            content.bytes_of(0, content.size),
            tuple(self._files.undated),
            content.size + 5 + PUT_BYTES,
        )

    cdef Text _digest(self) except *:
        """Append the SHA-256 of what is in `_hashed` to the texts, and empty it."""
        cdef Text digest = self._fields.begin_text()
        self._fields.texts.ascii(sha256(self._hashed.bytes_of(0, self._hashed.size)).hexdigest())
        digest.end = self._fields.texts.size
        self._hashed.truncate(0)
        return digest

    cdef Text _output_id(self, Text *key_hash) except *:
        """Append the identity of a key to the texts, as `Group.output_id` makes it."""
        cdef Buffer texts = self._fields.texts
        cdef Text digest, output_id
        cdef int variant
        self._hashed.text(self._prefix)
        self._hashed.copy(texts, key_hash.start, key_hash.end)
        digest = self._digest()
        variant = texts.at(digest.start + 16)
        variant -= c'0' if variant <= c'9' else c'a' - 10
        output_id = self._fields.begin_text()
        texts.copy(texts, digest.start, digest.start + 8)
        texts.byte(c'-')
        texts.copy(texts, digest.start + 8, digest.start + 12)
        texts.text(b"-8")
        texts.copy(texts, digest.start + 13, digest.start + 16)
        texts.byte(c'-')
        texts.byte(_VARIANTS[variant & 3])
        texts.copy(texts, digest.start + 17, digest.start + 20)
        texts.byte(c'-')
        texts.copy(texts, digest.start + 20, digest.start + 32)
        output_id.end = texts.size
        return output_id

    cdef bint _same(self, Text *one, Text *other) except -1:
        return self._fields.texts.compare(one.start, one.end, other.start, other.end) == 0

    cdef int _element(self, bytes head, Text *text) except -1:
        return self._content.element(head, self._fields.texts, text.start, text.end)

    cdef int _name_files(self, Text *key_hash) except -1:
        """Give the files that were sent without an id the one that comes from their content, as `Encoder` does it."""
        cdef dict number_by_text = {}
        cdef Py_ssize_t number
        cdef File file
        cdef Text digest
        for number in range(self._files.count):
            self._files.get(number, &file)
            if not file.id_at:
                continue
            text = self._fields.reader.canonical.bytes_of(file.text, file.text_end)
            earlier = number_by_text.get(text, 0)
            number_by_text[text] = earlier + 1
            self._hashed.copy(self._fields.texts, key_hash.start, key_hash.end)
            self._hashed.byte(c'\n')
            self._hashed.text(text)
            if earlier:
                self._hashed.byte(c'\n')
                self._hashed.decimal(earlier)
            digest = self._digest()
            self._files.bson.set_from(file.id_at, self._fields.texts, digest.start, digest.start + _PART)
        return 0
