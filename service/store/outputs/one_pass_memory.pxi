# Memory of the one-pass encoder: bytes that grow, and the members of objects. Every method checks its bounds; addresses
# are taken here only, and none outlives the statement that takes it.


class Unsure(Exception):
    """Raised for a text that may be invalid, or that Python encodes."""


@cython.final
cdef class Buffer:
    """Bytes that grow at their end."""

    cdef bytearray _owner
    cdef unsigned char *_start
    cdef Py_ssize_t _room, size

    def __cinit__(self, Py_ssize_t room):
        self._owner = bytearray(room)
        self._start, self._room = <unsigned char *> PyByteArray_AS_STRING(self._owner), room

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        """Make room for more bytes."""
        if not 0 <= more <= self._room - self.size:
            self._grow(more)
        return 0

    cdef int _grow(self, Py_ssize_t more) except -1:
        if not 0 <= more <= _MAX_BUFFER - self.size:
            raise Unsure
        cdef Py_ssize_t room = max(2 * self._room, self.size + more)
        PyByteArray_Resize(self._owner, room)
        self._start, self._room = <unsigned char *> PyByteArray_AS_STRING(self._owner), room
        return 0

    cdef inline int check(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Raise unless there are such bytes."""
        if not 0 <= start <= end <= self.size:
            raise IndexError
        return 0

    cdef inline int truncate(self, Py_ssize_t size) except -1:
        """Keep the first bytes only."""
        self.check(0, size)
        self.size = size
        return 0

    cdef inline int append(self, const void *source, Py_ssize_t size) except -1:
        """Append bytes of which the caller has checked that they are there."""
        self.reserve(size)
        memcpy(self._start + self.size, source, size)
        self.size += size
        return 0

    cdef inline int byte(self, unsigned char value) except -1:
        return self.append(&value, 1)

    cdef inline int int32(self, int32_t value) except -1:
        return self.append(&value, 4)

    cdef inline int int64(self, int64_t value) except -1:
        return self.append(&value, 8)

    cdef inline int double(self, double value) except -1:
        return self.append(&value, 8)

    cdef inline int text(self, bytes text) except -1:
        return self.append(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef inline int part(self, bytes text, Py_ssize_t start, Py_ssize_t end) except -1:
        """Append a part of a text."""
        if not 0 <= start <= end <= PyBytes_GET_SIZE(text):
            raise IndexError
        return self.append(PyBytes_AS_STRING(text) + start, end - start)

    cdef inline int copy(self, Buffer source, Py_ssize_t start, Py_ssize_t end) except -1:
        """Append a part of a buffer, which may be this one."""
        source.check(start, end)
        self.reserve(end - start)  # before the address is taken: this may move what is copied
        return self.append(source._start + start, end - start)

    cdef inline int ascii(self, str text) except -1:
        cdef Py_ssize_t size = 0
        cdef const char *utf8 = PyUnicode_AsUTF8AndSize(text, &size)
        return self.append(utf8, size)

    cdef int decimal(self, Py_ssize_t number) except -1:
        """Append a number of at least zero in decimal digits."""
        cdef Py_ssize_t power = 1
        while number // power >= 10:
            power *= 10
        while power:
            self.byte(c'0' + number // power % 10)
            power //= 10
        return 0

    cdef inline int element(self, bytes head, Buffer source, Py_ssize_t start, Py_ssize_t end) except -1:
        """Append an element of BSON whose value is a text, behind its type and name."""
        self.text(head)
        self.int32(<int32_t> (end - start + 1))
        self.copy(source, start, end)
        return self.byte(0)

    cdef inline int _set(self, Py_ssize_t at, const void *source, Py_ssize_t size) except -1:
        self.check(at, at + size)
        memcpy(self._start + at, source, size)
        return 0

    cdef inline int set_byte(self, Py_ssize_t at, unsigned char value) except -1:
        return self._set(at, &value, 1)

    cdef inline int set_int32(self, Py_ssize_t at, int32_t value) except -1:
        return self._set(at, &value, 4)

    cdef inline int set_from(self, Py_ssize_t at, Buffer source, Py_ssize_t start, Py_ssize_t end) except -1:
        """Replace bytes by a part of a buffer, which may be another part of this one."""
        source.check(start, end)
        return self._set(at, source._start + start, end - start)

    cdef inline int at(self, Py_ssize_t place) except -1:
        self.check(place, place + 1)
        return self._start[place]

    cdef inline int read(self, Py_ssize_t place, void *into, Py_ssize_t size) except -1:
        """Copy bytes to memory of which the caller has checked that it is large enough."""
        self.check(place, place + size)
        memcpy(into, self._start + place, size)
        return 0

    cdef inline int int32_at(self, Py_ssize_t place) except? -1:
        cdef int32_t value
        self.read(place, &value, 4)
        return value

    cdef inline bytes bytes_of(self, Py_ssize_t start, Py_ssize_t end):
        self.check(start, end)
        return PyBytes_FromStringAndSize(<const char *> self._start + start, end - start)

    cdef inline str str_of(self, Py_ssize_t start, Py_ssize_t end):
        self.check(start, end)
        return PyUnicode_DecodeUTF8(<const char *> self._start + start, end - start, NULL)

    cdef inline bint equals(self, Py_ssize_t start, Py_ssize_t end, bytes text) except -1:
        self.check(start, end)
        return end - start == PyBytes_GET_SIZE(text) and (
            memcmp(self._start + start, PyBytes_AS_STRING(text), end - start) == 0
        )

    cdef inline int compare(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t other, Py_ssize_t other_end) except -2:
        """Return -1, 0 or 1: whether one part is lower than another one, the same or higher, byte by byte."""
        cdef Py_ssize_t size = end - start, other_size = other_end - other
        cdef int order
        self.check(start, end)
        self.check(other, other_end)
        order = memcmp(
            self._start + start,
            self._start + other,
            min(size, other_size),
        )
        if order == 0:
            return (size > other_size) - (size < other_size)
        return -1 if order < 0 else 1

    cdef bint has_length(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t least, Py_ssize_t most) except -1:
        """Return whether a text has at least and at most so many characters."""
        cdef Py_ssize_t length = end - start, place
        if length > most or least > 1:
            length = 0
            for place in range(start, end):
                length += self.at(place) & 0xC0 != 0x80
        return least <= length <= most


cdef struct Member:
    Py_ssize_t key, key_end  # its name in the BSON
    Py_ssize_t start, end  # in the canonical text: its name, a colon and its value


cdef enum:
    _ROW = 32  # bytes of one

assert sizeof(Member) == _ROW


@cython.final
cdef class Members:
    """The members of the objects that are being read."""

    cdef Buffer _rows
    cdef Py_ssize_t count

    def __cinit__(self):
        self._rows = Buffer(32 * _ROW)

    cdef inline int add(self, Member *row) except -1:
        self._rows.append(row, _ROW)
        self.count += 1
        return 0

    cdef inline int get(self, Py_ssize_t index, Member *row) except -1:
        return self._rows.read(index * _ROW, row, _ROW)

    cdef inline int truncate(self, Py_ssize_t count) except -1:
        self._rows.truncate(count * _ROW)
        self.count = count
        return 0

    cdef int sort(self, Py_ssize_t first, Buffer bson) except -1:
        """Sort the members from `first` on by name. Raises if a name is there twice."""
        cdef Py_ssize_t end = self.count, run = 1, start
        while run < end - first:
            start = first
            while start < end:
                self._merge(start, min(start + run, end), min(start + 2 * run, end), bson)
                start += 2 * run
            self._rows.set_from(first * _ROW, self._rows, end * _ROW, self.count * _ROW)
            self.truncate(end)
            run *= 2
        return 0

    cdef int _merge(self, Py_ssize_t left, Py_ssize_t middle, Py_ssize_t end, Buffer bson) except -1:
        """Append two sorted runs, the second of which begins at `middle`, as one."""
        cdef Py_ssize_t right = middle
        cdef Member a, b
        cdef int order
        while left < middle or right < end:
            if left < middle:
                self.get(left, &a)
            if right < end:
                self.get(right, &b)
            if left == middle:
                order = 1
            elif right == end:
                order = -1
            else:
                order = bson.compare(a.key, a.key_end, b.key, b.key_end)
            if order < 0:
                self.add(&a)
                left += 1
            elif order > 0:
                self.add(&b)
                right += 1
            else:
                raise Unsure
        return 0
