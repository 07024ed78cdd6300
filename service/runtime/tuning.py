"""The garbage collector and the allocator, tuned for pages of items, and the limit of open files."""

from __future__ import annotations

import ctypes
import gc
import logging
import resource

log = logging.getLogger("service")

# Options of glibc's mallopt, and the memory that it may keep.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 16 * 1024 * 1024
# New containers before a collection of the young ones: most of a page or a body is freed by then.
_YOUNG = 10_000
_MIDDLE = 5
# A full collection while a large body is decoded holds the interpreter lock and finds nothing. With the steps above,
# this is more containers than one body has.
_FULL_AFTER = 14
# One process serves no more connections than this.
_ENOUGH = 65_536
# Kept for logs, metrics, certificates, threads and commands; the database's connections come on top.
_RESERVE = 128
_FEW = 1024


def tune_collector() -> None:
    """Exempt all objects loaded so far from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL_AFTER)


def tune_allocator() -> None:
    """Let glibc keep the memory of one page for the next instead of giving it back to the kernel.

    Pages of 1000 items: 33 instead of 42 ms of CPU, most of it page faults, and 165 MB instead of 209 at
    the most. One arena is enough where one thread runs at a time. Other C libraries have no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, 1)):
            mallopt(option, value)


def raise_file_limit(mongo_pool: int) -> int:
    """Raise the soft limit of open files to its maximum; return how many connections fit below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH if hard == unlimited else min(hard, _ENOUGH)
    limit = wanted if soft == unlimited else max(soft, wanted)
    if soft not in (limit, unlimited):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    usable = min(limit, _ENOUGH)
    connections = usable - min(_RESERVE + mongo_pool, usable // 2)
    level = logging.WARNING if connections < _FEW else logging.INFO
    log.log(level, "file limit", extra={"files": limit, "before": soft, "max_connections": connections})
    return connections
