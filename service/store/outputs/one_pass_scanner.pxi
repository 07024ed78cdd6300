# The text of the one-pass encoder: JSON as it was sent, passed from its beginning to its end.

cdef extern from *:
    """
    #define EACH_BYTE 0x0101010101010101ULL  /* times a byte: eight of them */
    #define HIGH_BITS 0x8080808080808080ULL
    #define lowest_bit(word) __builtin_ctzll(word)
    """
    const uint64_t EACH_BYTE, HIGH_BITS
    int lowest_bit(uint64_t word)

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **stop, void *overflow) except? -1

# Python reads a number of more digits ten times as slowly.
cdef Py_ssize_t _MAX_DIGITS = 40


@cython.final
cdef class Scanner:
    """Passes the parts of a JSON text. Every method raises Unsure behind the end, and where another part comes."""

    cdef bytes text
    cdef const unsigned char *_start
    cdef Py_ssize_t at, _end

    def __cinit__(self, bytes text not None):
        self.text, self._end = text, PyBytes_GET_SIZE(text)
        self._start = <const unsigned char *> PyBytes_AS_STRING(text)

    cdef inline int byte(self, Py_ssize_t at) except -1:
        if not 0 <= at < self._end:
            raise Unsure
        return self._start[at]

    cdef inline int peek(self) except -1:
        """Pass white space; return the byte after it."""
        cdef int byte = self.byte(self.at)
        while byte == c' ' or byte == c'\n' or byte == c'\r' or byte == c'\t':
            self.at += 1
            byte = self.byte(self.at)
        return byte

    cdef inline int expect(self, int byte) except -1:
        """Pass white space and this byte."""
        if self.peek() != byte:
            raise Unsure
        self.at += 1
        return 0

    cdef inline bint passes(self, int byte) except -1:
        """Pass this byte if it comes next; return whether it does."""
        if self.peek() != byte:
            return False
        self.at += 1
        return True

    cdef inline bint more(self, int end) except -1:
        """Pass a comma, or the end of an object or array; return whether it was a comma."""
        if self.passes(c','):
            return True
        self.expect(end)
        return False

    cdef int finish(self) except -1:
        """Pass the white space at the end."""
        cdef int byte
        while self.at < self._end:
            byte = self.byte(self.at)
            if byte != c' ' and byte != c'\n' and byte != c'\r' and byte != c'\t':
                raise Unsure
            self.at += 1
        return 0

    cdef int word(self, bytes word) except -1:
        """Pass `true`, `false` or `null`."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(word)
        if size > self._end - self.at or memcmp(self._start + self.at, PyBytes_AS_STRING(word), size):
            raise Unsure
        self.at += size
        return 0

    cdef inline Py_ssize_t digits_end(self, Py_ssize_t at, uint64_t *number) except -1:
        """Return the place after the digits here, and the number that they continue. Raises if there is none."""
        cdef Py_ssize_t start = at
        cdef int byte = self.byte(at)
        while c'0' <= byte <= c'9':
            number[0] = number[0] * 10 + <uint64_t> (byte - c'0')
            at += 1
            byte = self.byte(at)
        if not 0 < at - start <= _MAX_DIGITS:
            raise Unsure
        return at

    cdef double double_of(self, Py_ssize_t start, Py_ssize_t end) except? -1:
        """Return the number that Python reads between two places, which are those of a number."""
        cdef char *stop = NULL
        self.byte(start)
        cdef double value = PyOS_string_to_double(<const char *> self._start + start, &stop, NULL)
        if <const unsigned char *> stop != self._start + end:  # it stops at NUL, which ends the text, if not before
            raise Unsure
        return value

    cdef bint string(self, Buffer into) except -1:
        """Pass a string, and append its decoded text; return whether it has escapes."""
        cdef bint escaped = False
        cdef Py_ssize_t start, at
        cdef int byte
        self.expect(c'"')
        start = at = self.at
        while True:
            at = self._plain_end(at)
            byte = self.byte(at)
            if byte >= 0x80:
                at = self._characters_end(at)
                continue
            into.part(self.text, start, at)
            if byte == c'"':
                self.at = at + 1
                return escaped
            if byte != c'\\':
                raise Unsure
            escaped = True
            start = at = self._escape(at + 1, into)

    cdef inline Py_ssize_t _plain_end(self, Py_ssize_t at) except -1:
        """Return the place of the next byte that is a quote, a backslash, a control character or not ASCII."""
        cdef uint64_t word, quotes, backslashes, special
        cdef int byte
        while 0 <= at <= self._end - 8:
            memcpy(&word, self._start + at, 8)
            # A byte is zero if taking one from it sets its high bit. The lowest such byte is certain; more is not needed.
            quotes = word ^ EACH_BYTE * c'"'
            backslashes = word ^ EACH_BYTE * c'\\'
            special = (quotes - EACH_BYTE) & ~quotes | (backslashes - EACH_BYTE) & ~backslashes
            special = (special | (word - EACH_BYTE * 0x20) & ~word | word) & HIGH_BITS
            if special:
                return at + (lowest_bit(special) >> 3)
            at += 8
        while True:
            byte = self.byte(at)
            if byte == c'"' or byte == c'\\' or byte < 0x20 or byte >= 0x80:
                return at
            at += 1

    cdef Py_ssize_t _characters_end(self, Py_ssize_t at) except -1:
        """Return the end of the characters outside of ASCII that begin here. Raises if they are not UTF-8."""
        cdef int first = self.byte(at), second
        cdef Py_ssize_t end, place
        while first >= 0x80:
            # The second byte is bounded where the form would be too long, a surrogate, or above all characters.
            second = self.byte(at + 1)
            if 0xC2 <= first <= 0xDF:
                end = at + 2
            elif 0xE0 <= first <= 0xEF and (first != 0xE0 or second >= 0xA0) and (first != 0xED or second < 0xA0):
                end = at + 3
            elif 0xF0 <= first <= 0xF4 and (first != 0xF0 or second >= 0x90) and (first != 0xF4 or second < 0x90):
                end = at + 4
            else:
                raise Unsure
            for place in range(at + 1, end):
                if self.byte(place) & 0xC0 != 0x80:
                    raise Unsure
            at = end
            first = self.byte(at)
        return at

    cdef Py_ssize_t _escape(self, Py_ssize_t at, Buffer into) except -1:
        """Append the character of an escape, whose letter is at a place; return the place after it."""
        cdef int letter = self.byte(at), unit, low
        if letter == c'"' or letter == c'\\' or letter == c'/':
            into.byte(letter)
        elif letter == c'n':
            into.byte(10)
        elif letter == c't':
            into.byte(9)
        elif letter == c'r':
            into.byte(13)
        elif letter == c'b':
            into.byte(8)
        elif letter == c'f':
            into.byte(12)
        elif letter == c'u':
            unit = self._unit(at + 1)
            at += 4
            if 0xD800 <= unit < 0xDC00 and self.byte(at + 1) == c'\\' and self.byte(at + 2) == c'u':
                low = self._unit(at + 3)
                at += 6
                if not 0xDC00 <= low < 0xE000:
                    raise Unsure
                unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
            if unit == 0 or 0xD800 <= unit < 0xE000:  # NUL, or half a pair
                raise Unsure
            self._append(unit, into)
        else:
            raise Unsure
        return at + 1

    cdef int _unit(self, Py_ssize_t at) except -1:
        """Return the number that four hexadecimal digits name."""
        cdef int unit = 0, digit
        cdef Py_ssize_t place
        for place in range(at, at + 4):
            digit = self.byte(place)
            if c'0' <= digit <= c'9':
                unit = unit * 16 + digit - c'0'
            elif c'a' <= digit | 0x20 <= c'f':
                unit = unit * 16 + (digit | 0x20) - c'a' + 10
            else:
                raise Unsure
        return unit

    cdef int _append(self, int character, Buffer into) except -1:
        """Append a character in UTF-8."""
        if character < 0x80:
            return into.byte(character)
        if character < 0x800:
            into.byte(0xC0 | character >> 6)
        else:
            if character < 0x10000:
                into.byte(0xE0 | character >> 12)
            else:
                into.byte(0xF0 | character >> 18)
                into.byte(0x80 | character >> 12 & 0x3F)
            into.byte(0x80 | character >> 6 & 0x3F)
        return into.byte(0x80 | character & 0x3F)
