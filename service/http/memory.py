"""Returns memory to the kernel that many large responses leave behind, as garbage or in the allocator."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

_SECONDS = 5.0
# Free bytes that the allocator may keep for the next pages, and how much more is worth returning.
_KEPT_BYTES = 16 * 1024 * 1024
_FREE_BYTES = 48 * 1024 * 1024
# Bytes in use before garbage is collected, and the growth after which it is collected again.
_HIGH_BYTES, _GROWN_BYTES = 128 * 1024 * 1024, 32 * 1024 * 1024


class _MallInfo(ctypes.Structure):
    """glibc's statistics of its heap."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def _heap() -> tuple[int, int]:
    """Return the bytes in use, and the free ones that glibc keeps; 0 where that is not known."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0, 0
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return info.uordblks + info.hblkhd, info.fordblks


class Garbage:
    """Collects garbage that Python's thresholds leave, once much memory stays in use.

    A connection that was lost leaves a small cycle of aiohttp's task and its exception.
    """

    def __init__(self, collect: Callable[[], object] = gc.collect) -> None:
        self._collect = collect
        self._floor = _HIGH_BYTES  # in use after the last collection
        self._was_high = self._has_collected = False

    def inspect(self, used: int) -> None:
        """Collect if more memory is in use than after the last collection, for the second time."""
        self._floor = max(_HIGH_BYTES, used if self._has_collected else min(self._floor, used))
        is_high = used > self._floor + _GROWN_BYTES
        self._has_collected = is_high and self._was_high
        self._was_high = is_high and not self._has_collected
        if self._has_collected:
            self._collect()


async def watch_memory() -> None:
    """Collect garbage and return memory every few seconds, for as long as this runs."""
    garbage = Garbage()
    while True:
        await asyncio.sleep(_SECONDS)
        used, free = _heap()
        garbage.inspect(used)
        if free > _FREE_BYTES:
            trim = ctypes.CDLL(None).malloc_trim
            trim.argtypes = [ctypes.c_size_t]
            await asyncio.to_thread(trim, _KEPT_BYTES)
