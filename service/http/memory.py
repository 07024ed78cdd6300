"""Returns memory to the kernel that many large responses leave behind, as garbage or in the allocator."""

from __future__ import annotations

import asyncio
import ctypes
import gc

_SECONDS = 5.0
# Free bytes that the allocator may keep for the next pages, and how much more is worth returning.
_KEPT_BYTES = 16 * 1024 * 1024
_FREE_BYTES = 48 * 1024 * 1024
# Bytes in use before garbage is collected, and the growth after which it is collected again.
_HIGH_BYTES, _GROWN_BYTES = 128 * 1024 * 1024, 32 * 1024 * 1024


class _MallInfo(ctypes.Structure):
    """glibc's statistics of its heap; `fordblks` is the free memory that it keeps."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def _heap() -> _MallInfo | None:
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _MallInfo
    info: _MallInfo = mallinfo()
    return info


def return_memory() -> bool:
    """Return glibc's free memory to the kernel, if it is much; other C libraries do so by themselves."""
    info, trim = _heap(), getattr(ctypes.CDLL(None), "malloc_trim", None)
    if info is None or trim is None or info.fordblks <= _FREE_BYTES:
        return False
    trim.argtypes = [ctypes.c_size_t]
    return bool(trim(_KEPT_BYTES))


class Garbage:
    """Collects garbage that Python's thresholds leave, once much memory stays in use.

    A response that was cut off leaves a cycle of exceptions and frames, which holds a megabyte or more.
    """

    def __init__(self) -> None:
        self._floor = _HIGH_BYTES  # in use after the last collection
        self._was_high = False

    def look(self, used: int) -> bool:
        """Collect if more memory is in use than before, for the second time; return whether it did."""
        self._floor = max(_HIGH_BYTES, min(self._floor, used))
        is_high = used > self._floor + _GROWN_BYTES
        if not (is_high and self._was_high):
            self._was_high = is_high
            return False
        gc.collect()
        info = _heap()
        self._floor, self._was_high = max(_HIGH_BYTES, used if info is None else _used(info)), False
        return True


def _used(info: _MallInfo) -> int:
    return int(info.uordblks) + int(info.hblkhd)


async def watch_memory() -> None:
    """Collect garbage and return memory every few seconds, for as long as this runs."""
    garbage = Garbage()
    while True:
        await asyncio.sleep(_SECONDS)
        info = _heap()
        if info is not None:
            garbage.look(_used(info))
        await asyncio.to_thread(return_memory)
