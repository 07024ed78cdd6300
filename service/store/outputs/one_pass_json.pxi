# The JSON of the one-pass encoder: each value is checked, and written as BSON and as canonical JSON.

cdef enum:
    BSON_DOUBLE = 0x01
    BSON_STRING = 0x02
    BSON_DOCUMENT = 0x03
    BSON_ARRAY = 0x04
    BSON_BOOLEAN = 0x08
    BSON_DATE = 0x09
    BSON_NULL = 0x0A
    BSON_INT32 = 0x10
    BSON_INT64 = 0x12
    # A double holds as many digits exactly. An integer of more than this does not fit in 64 bits.
    _EXACT_DIGITS = 15
    _MAX_INTEGER_DIGITS = 19

# Numbers of many digits, which are faster in Python if there are a lot of them.
cdef Py_ssize_t _MAX_RARE_NUMBERS = 200
cdef double[16] _POWERS = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15]
# Characters of the name of a member.
cdef Py_ssize_t _MAX_NAME = MAX_KEY
cdef dict _NOTHING = {}
# How each character is written that cannot stand in a string as it is.
cdef dict _ESCAPES = {c'"': b'\\"', c'\\': b"\\\\", **{byte: b"\\u%04x" % byte for byte in range(0x20)}}
_ESCAPES.update({8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"})


@cython.final
cdef class Reader:
    """Reads values of a JSON text, and appends them to `bson` and to `canonical`: sorted keys, no spaces, UTF-8."""

    cdef Scanner text
    cdef Buffer bson, canonical, _sorted
    cdef Members members
    cdef Py_ssize_t _rare_numbers

    def __cinit__(self):
        self.bson, self.canonical, self._sorted = Buffer(4096), Buffer(4096), Buffer(1024)
        self.members = Members()

    cdef int begin(self, bytes text) except -1:
        """Forget the text before, and begin with this one."""
        self.text, self._rare_numbers = Scanner(text), 0
        self.bson.truncate(0)
        self.canonical.truncate(0)
        return self.members.truncate(0)

    cdef int value(self, Py_ssize_t type_at, int levels, dict ignored) except -1:
        """Pass a value of at most so many levels; the type of its element is at a place of the BSON."""
        cdef int byte = self.text.peek()
        cdef Py_ssize_t first
        if byte == c'"':
            self.bson.set_byte(type_at, BSON_STRING)
            return self._string_value()
        if byte == c'{':
            self.bson.set_byte(type_at, BSON_DOCUMENT)
            first = self.members.count
            self.document(levels, ignored)
            return self.members.truncate(first)
        if byte == c'[':
            self.bson.set_byte(type_at, BSON_ARRAY)
            return self._array(levels, ignored)
        if byte == c't' or byte == c'f':
            self.bson.set_byte(type_at, BSON_BOOLEAN)
            return self.bson.byte(self.boolean())
        if byte == c'n':
            self.bson.set_byte(type_at, BSON_NULL)
            self.text.word(b"null")
            return self.canonical.text(b"null")
        return self._number(type_at)

    cdef bint boolean(self) except -1:
        """Pass `true` or `false`; return which."""
        cdef bint value = self.text.peek() == c't'
        cdef bytes word = b"true" if value else b"false"
        self.text.word(word)
        self.canonical.text(word)
        return value

    cdef int document(self, int levels, dict ignored) except -1:
        """Pass an object, and add its members to `members`.

        Those that `ignored` names are left out of them and of the canonical text, as `fields.without` does it.
        """
        cdef Buffer bson = self.bson, canonical = self.canonical
        cdef Py_ssize_t size_at = bson.size, first = self.members.count, start = canonical.size + 1
        cdef Py_ssize_t type_at
        cdef bint in_order = True, escaped
        cdef Member member, before
        if levels <= 0:
            raise Unsure
        bson.int32(0)
        canonical.byte(c'{')
        self.text.expect(c'{')
        cdef bint more = not self.text.passes(c'}')
        while more:
            type_at = bson.size
            bson.byte(0)
            if self.members.count > first:
                canonical.byte(c',')
            member.start = canonical.size
            member.key = bson.size
            escaped = self.text.string(bson)
            member.key_end = bson.size
            bson.byte(0)
            if not bson.has_length(member.key, member.key_end, 0, _MAX_NAME):
                raise Unsure
            self.quote(bson, member.key, member.key_end, escaped)
            canonical.byte(c':')
            self.text.expect(c':')
            below = ignored.get(bson.str_of(member.key, member.key_end), _NOTHING) if ignored else _NOTHING
            self.value(type_at, levels - 1, _NOTHING if below is None else below)
            member.end = canonical.size
            more = self.text.more(c'}')
            if below is None:
                canonical.truncate(member.start - (self.members.count > first))
                continue
            if in_order and self.members.count > first:
                self.members.get(self.members.count - 1, &before)
                in_order = bson.compare(before.key, before.key_end, member.key, member.key_end) < 0
            self.members.add(&member)
        if not in_order:
            self.members.sort(first, bson)
            self._write_sorted(first, start)
        canonical.byte(c'}')
        bson.byte(0)
        return bson.set_int32(size_at, bson.size - size_at)

    cdef int _write_sorted(self, Py_ssize_t first, Py_ssize_t start) except -1:
        """Write the canonical text of an object's members, which begins at `start`, in their order."""
        cdef Py_ssize_t index
        cdef Member member
        self._sorted.truncate(0)
        for index in range(first, self.members.count):
            if index > first:
                self._sorted.byte(c',')
            self.members.get(index, &member)
            self._sorted.copy(self.canonical, member.start, member.end)
        return self.canonical.set_from(start, self._sorted, 0, self._sorted.size)

    cdef int _array(self, int levels, dict ignored) except -1:
        cdef Buffer bson = self.bson, canonical = self.canonical
        cdef Py_ssize_t size_at = bson.size, index = 0, type_at
        if levels <= 0:
            raise Unsure
        bson.int32(0)
        canonical.byte(c'[')
        self.text.expect(c'[')
        cdef bint more = not self.text.passes(c']')
        while more:
            if index:
                canonical.byte(c',')
            type_at = bson.size
            bson.byte(0)
            bson.decimal(index)
            bson.byte(0)
            self.value(type_at, levels - 1, ignored)
            index += 1
            more = self.text.more(c']')
        canonical.byte(c']')
        bson.byte(0)
        return bson.set_int32(size_at, bson.size - size_at)

    # -- strings ------------------------------------------------------------------------------

    cdef int _string_value(self) except -1:
        cdef Buffer bson = self.bson
        cdef Py_ssize_t start = bson.size + 4
        bson.int32(0)
        cdef bint escaped = self.text.string(bson)
        bson.byte(0)
        bson.set_int32(start - 4, bson.size - start)
        return self.quote(bson, start, bson.size - 1, escaped)

    cdef int quote(self, Buffer source, Py_ssize_t start, Py_ssize_t end, bint escaped) except -1:
        """Append a decoded text to the canonical one; a text that came without escapes needs none."""
        cdef Buffer canonical = self.canonical
        cdef Py_ssize_t at
        cdef int byte
        canonical.byte(c'"')
        if escaped:
            for at in range(start, end):
                byte = source.at(at)
                if byte < 0x20 or byte == c'"' or byte == c'\\':
                    canonical.copy(source, start, at)
                    canonical.text(_ESCAPES[byte])
                    start = at + 1
        canonical.copy(source, start, end)
        return canonical.byte(c'"')

    # -- numbers ------------------------------------------------------------------------------

    cdef int _number(self, Py_ssize_t type_at) except -1:
        cdef bint negative = self.text.byte(self.text.at) == c'-'
        cdef Py_ssize_t start = self.text.at, whole = start + negative, point, end
        cdef uint64_t digits = 0, exponent = 0
        cdef double value
        point = end = self.text.digits_end(whole, &digits)
        if self.text.byte(whole) == c'0' and point > whole + 1:
            raise Unsure
        if self.text.byte(point) == c'.':
            end = self.text.digits_end(point + 1, &digits)
        if self.text.byte(end) | 0x20 == c'e':
            end += 2 if self.text.byte(end + 1) == c'+' or self.text.byte(end + 1) == c'-' else 1
            return self._rare_number(type_at, start, self.text.digits_end(end, &exponent))
        if end == point:
            return self._integer(type_at, start, whole, end, digits)
        if end - whole - 1 > _EXACT_DIGITS:
            return self._rare_number(type_at, start, end)
        # Both are exact, so their quotient is the nearest double, and no shorter text names it.
        value = <double> digits / _POWERS[end - point - 1]
        if digits and value < 1e-3:
            return self._rare_number(type_at, start, end)
        self.text.at = end
        while self.text.byte(end - 1) == c'0' and end > point + 2:
            end -= 1
        self.bson.set_byte(type_at, BSON_DOUBLE)
        self.bson.double(-value if negative else value)
        return self.canonical.part(self.text.text, start, end)

    cdef int _integer(
        self, Py_ssize_t type_at, Py_ssize_t start, Py_ssize_t whole, Py_ssize_t end, uint64_t digits
    ) except -1:
        cdef int64_t value
        if end - whole > _MAX_INTEGER_DIGITS or digits > <uint64_t> INT64_MAX or (digits == 0 and whole > start):
            raise Unsure
        value = -<int64_t> digits if whole > start else <int64_t> digits
        if INT32_MIN <= value <= INT32_MAX:
            self.bson.set_byte(type_at, BSON_INT32)
            self.bson.int32(<int32_t> value)
        else:
            self.bson.set_byte(type_at, BSON_INT64)
            self.bson.int64(value)
        self.text.at = end
        return self.canonical.part(self.text.text, start, end)

    cdef int _rare_number(self, Py_ssize_t type_at, Py_ssize_t start, Py_ssize_t end) except -1:
        """Pass a number of many digits or with an exponent: Python reads it, and orjson writes it."""
        cdef double value = self.text.double_of(start, end)
        self._rare_numbers += 1
        if self._rare_numbers > _MAX_RARE_NUMBERS or not 1e-300 < abs(value) < 1e300:
            raise Unsure
        self.bson.set_byte(type_at, BSON_DOUBLE)
        self.bson.double(value)
        self.text.at = end
        return self.canonical.text(dumps(value))
