# The fields of the one-pass encoder: texts, dates and objects of items and files, as the schemas describe them.

# Characters of a date.
_MAX_DATE = 64
cdef int64_t _EPOCH_DAY = datetime(1970, 1, 1).toordinal()

cdef struct Text:
    Py_ssize_t start, end
    bint is_sent, is_escaped

cdef struct Span:  # of a value, in the BSON and in the canonical text
    Py_ssize_t bson, bson_end, text, text_end


def _text_fields(schema, *names):
    """Return of each text field its name, its least and its most characters."""
    fields = [(name, schema._declared_fields[name]) for name in names]
    return [
        (name.encode(), getattr(field, "min_length", 0), getattr(field, "max_length", _MAX_DATE))
        for name, field in fields
    ]


cdef int64_t _milliseconds(object moment) except? -1:
    """Return a moment in UTC as BSON has it."""
    cdef int64_t days = moment.toordinal() - _EPOCH_DAY
    cdef int64_t seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    return (days * 86_400 + seconds) * 1000 + <int64_t> (moment.microsecond // 1000)


@cython.final
cdef class Fields:
    """Reads the fields of a record: texts go to `texts`, objects to the BSON and the canonical text of `reader`."""

    cdef Reader reader
    cdef Buffer texts

    def __cinit__(self):
        self.reader, self.texts = Reader(), Buffer(2048)

    cdef int begin(self, bytes text) except -1:
        self.texts.truncate(0)
        return self.reader.begin(text)

    cdef Py_ssize_t name(self) except -1:
        """Pass the name of a field and its colon; return where in the texts the name begins, which ends them."""
        cdef Py_ssize_t start = self.texts.size
        self.reader.text.string(self.texts)
        self.reader.text.expect(c':')
        return start

    cdef bint is_name(self, Py_ssize_t start, bytes name) except -1:
        return self.texts.equals(start, self.texts.size, name)

    cdef Py_ssize_t place(self, list fields, Py_ssize_t start) except? -1:
        """Return the place of a name in the fields; -1 if it is not there."""
        cdef Py_ssize_t place
        for place in range(len(fields)):
            if self.is_name(start, <bytes> (<tuple> fields[place])[0]):
                return place
        return -1

    cdef int read(self, Text *text, tuple field) except -1:
        """Pass the value of a text field, which was not sent before."""
        if text.is_sent:
            raise Unsure
        text[0] = self.begin_text()
        text.is_escaped = self.reader.text.string(self.texts)
        text.end = self.texts.size
        if not self.texts.has_length(text.start, text.end, field[1], field[2]):
            raise Unsure
        return 0

    cdef Text begin_text(self) noexcept:
        """Return a text that is appended next; its end is not known yet."""
        cdef Text text
        text.start = text.end = self.texts.size
        text.is_sent, text.is_escaped = True, False
        return text

    cdef str str_of(self, Text *text):
        return self.texts.str_of(text.start, text.end)

    cdef object moment(self, Text *text):
        """Return the moment that a text names; None if it was not sent."""
        if not text.is_sent:
            return None
        try:
            return parse_date(self.str_of(text))
        except ValueError:
            raise Unsure

    cdef Span object(self, int levels, dict ignored) except *:
        """Pass an object; its members stay in `reader.members` until the next one."""
        cdef Span span = self._begin_span()
        self.reader.members.truncate(0)
        self.reader.document(levels, ignored)
        return self._end_span(span)

    cdef Span empty_object(self) except *:
        """Write an object that was not sent."""
        cdef Span span = self._begin_span()
        self.reader.bson.text(b"\x05\0\0\0\0")
        self.reader.canonical.text(b"{}")
        return self._end_span(span)

    cdef Span _begin_span(self) noexcept:
        cdef Span span
        span.bson = span.bson_end = self.reader.bson.size
        span.text = span.text_end = self.reader.canonical.size
        return span

    cdef Span _end_span(self, Span span) noexcept:
        span.bson_end, span.text_end = self.reader.bson.size, self.reader.canonical.size
        return span
