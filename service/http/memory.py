"""Memory that many large responses at once leave behind in the allocator goes back to the kernel."""

from __future__ import annotations

import asyncio
import ctypes

_SECONDS = 5.0
# What the allocator may keep for the next pages, and how much more than that is worth returning.
_KEPT_BYTES = 16 * 1024 * 1024
_FREE_BYTES = 48 * 1024 * 1024


class _MallInfo(ctypes.Structure):
    """What glibc says of its heap; `fordblks` is what it keeps free."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def return_memory() -> bool:
    """Return to the kernel what glibc keeps free, if it is much; other C libraries do so by themselves."""
    library = ctypes.CDLL(None)
    mallinfo, trim = getattr(library, "mallinfo2", None), getattr(library, "malloc_trim", None)
    if mallinfo is None or trim is None:
        return False
    mallinfo.restype = _MallInfo
    if mallinfo().fordblks <= _FREE_BYTES:
        return False
    trim.argtypes = [ctypes.c_size_t]
    return bool(trim(_KEPT_BYTES))


async def watch_memory() -> None:
    """Return memory every few seconds, for as long as this runs."""
    while True:
        await asyncio.sleep(_SECONDS)
        await asyncio.to_thread(return_memory)
