# The files of an item in the one-pass encoder.

cdef enum:
    # Places in the texts of a file.
    FILE_ID = 0
    CREATE_DATE = 6
    _FILE_TEXTS = 10
    # The array, the file and its metadata.
    _FILE_LEVELS = 3
    # Digits of a part of a hash, and of an id that is made: `encode.PART`.
    _PART = 32

cdef struct File:
    Py_ssize_t text, text_end  # its canonical text, as it was sent
    Py_ssize_t id_at  # where its id belongs in the BSON; 0 if it was sent

# In the order in which they are stored.
cdef list _FILE_FIELDS = _text_fields(
    FileInput, "id", "field", "url_etag_hash", "blob_key", "blob_url", "source_url", "create_date", "file_url",
    "file_type", "file_checksum"
)
assert len(_FILE_FIELDS) == _FILE_TEXTS and PART == _PART
# How each begins as an element of BSON.
cdef list _FILE_HEADS = [b"\x02%b\0" % field[0] for field in _FILE_FIELDS]
# What stands before each in the canonical text, in its order; the place of `file_metadata` is -1.
cdef list _CANONICAL_FIELDS = [
    (b'%b"%b":' % (b"," if number else b"{", name), place)
    for number, (name, place) in enumerate(
        sorted([(field[0], place) for place, field in enumerate(_FILE_FIELDS)] + [(b"file_metadata", -1)])
    )
]
cdef Py_ssize_t _MAX_FILES = OutputInput._declared_fields["files"].max_length
cdef bytes _NO_ID = b"0" * _PART


@cython.final
cdef class Files:
    """The files of an item: their canonical texts, and `bson`, the elements of their array."""

    cdef Fields _fields
    cdef Buffer bson, _rows
    cdef Py_ssize_t count
    cdef list undated  # the numbers of those that were sent without a date
    cdef int _max_depth
    cdef object _now

    def __cinit__(self, Fields fields not None, int max_depth, object now):
        self._fields, self._max_depth, self._now = fields, max_depth, now
        self.bson, self._rows = Buffer(1024), Buffer(8 * sizeof(File))
        self.undated = []

    cdef int begin(self) except -1:
        self.count, self.undated = 0, []
        self.bson.truncate(0)
        return self._rows.truncate(0)

    cdef int read(self) except -1:
        """Pass the array of files."""
        cdef Scanner text = self._fields.reader.text
        text.expect(c'[')
        cdef bint more = not text.passes(c']')
        while more:
            self._read_file()
            more = text.more(c']')
        return 0

    cdef int _read_file(self) except -1:
        cdef Fields fields = self._fields
        cdef Buffer canonical = fields.reader.canonical
        cdef Text[_FILE_TEXTS] texts
        cdef Span metadata
        cdef File row
        cdef bint has_metadata = False, more
        cdef Py_ssize_t place, start
        if self.count >= _MAX_FILES or self._max_depth < _FILE_LEVELS:
            raise Unsure
        for place in range(_FILE_TEXTS):
            texts[place] = fields.begin_text()
            texts[place].is_sent = False
        fields.reader.text.expect(c'{')
        more = not fields.reader.text.passes(c'}')
        while more:
            start = fields.name()
            place = fields.place(_FILE_FIELDS, start)
            if place >= 0:
                fields.read(&texts[place], <tuple> _FILE_FIELDS[place])
            elif fields.is_name(start, b"file_metadata") and not has_metadata:
                has_metadata = True
                metadata = fields.object(self._max_depth - _FILE_LEVELS + 1, _NOTHING)
            else:
                raise Unsure
            more = fields.reader.text.more(c'}')
        if not has_metadata:
            metadata = fields.empty_object()
        moment = fields.moment(&texts[CREATE_DATE])
        if moment is None:
            self.undated.append(self.count)
        row.text = canonical.size
        self._write_canonical(texts, &metadata, moment)
        row.text_end = canonical.size
        row.id_at = self._write_bson(texts, &metadata, moment)
        self._rows.append(&row, sizeof(File))
        self.count += 1
        return 0

    cdef int _write_canonical(self, Text *texts, Span *metadata, object moment) except -1:
        """Append the canonical text of a file: what was sent, and the defaults of the schema."""
        cdef Buffer canonical = self._fields.reader.canonical
        cdef Py_ssize_t place
        cdef bytes head
        for head, place in _CANONICAL_FIELDS:
            if place < 0:
                canonical.text(head)
                canonical.copy(canonical, metadata.text, metadata.text_end)
            elif place == CREATE_DATE:
                if moment is not None:
                    canonical.text(head)
                    canonical.text(canonical_json(moment))
            elif texts[place].is_sent or place != FILE_ID:
                canonical.text(head)
                self._fields.reader.quote(
                    self._fields.texts, texts[place].start, texts[place].end, texts[place].is_escaped
                )
        return canonical.byte(c'}')

    cdef Py_ssize_t _write_bson(self, Text *texts, Span *metadata, object moment) except -1:
        """Append a file to the BSON; return where its id belongs, 0 if it was sent."""
        cdef Buffer bson = self.bson
        cdef Py_ssize_t size_at, id_at = 0, place
        bson.byte(BSON_DOCUMENT)
        bson.decimal(self.count)
        bson.byte(0)
        size_at = bson.size
        bson.int32(0)
        for place in range(_FILE_TEXTS):
            if place == CREATE_DATE:
                bson.text(b"\x09create_date\0")
                bson.int64(_milliseconds(self._now if moment is None else moment))
            elif place == FILE_ID and not texts[place].is_sent:
                bson.text(_FILE_HEADS[place])
                bson.int32(_PART + 1)
                id_at = bson.size
                bson.text(_NO_ID)
                bson.byte(0)
            else:
                bson.element(_FILE_HEADS[place], self._fields.texts, texts[place].start, texts[place].end)
        bson.text(b"\x03file_metadata\0")
        bson.copy(self._fields.reader.bson, metadata.bson, metadata.bson_end)
        bson.byte(0)
        bson.set_int32(size_at, <int32_t> (bson.size - size_at))
        return id_at

    cdef int get(self, Py_ssize_t number, File *row) except -1:
        return self._rows.read(number * <Py_ssize_t> sizeof(File), row, sizeof(File))

    cdef Py_ssize_t append_canonical(self, Buffer into) except -1:
        """Append the canonical text of all files; return its size."""
        cdef Py_ssize_t start = into.size, number
        cdef File row
        into.byte(c'[')
        for number in range(self.count):
            if number:
                into.byte(c',')
            self.get(number, &row)
            into.copy(self._fields.reader.canonical, row.text, row.text_end)
        into.byte(c']')
        return into.size - start
