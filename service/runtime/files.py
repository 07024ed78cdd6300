"""How many files this process may open, and how many of them connections may take."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger("service")

# One process serves no more connections than this.
_ENOUGH = 65_536
# Kept for logs, metrics, certificates, threads and commands; the database's connections come on top.
_RESERVE = 128
_FEW = 1024


def raise_file_limit(mongo_pool: int) -> int:
    """Raise the soft limit of open files to its maximum; return how many connections fit below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH if hard == unlimited else min(hard, _ENOUGH)
    limit = wanted if soft == unlimited else max(soft, wanted)
    if soft not in (limit, unlimited):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    reserve = min(_RESERVE + mongo_pool, limit // 2)
    connections = limit - reserve
    level = logging.WARNING if connections < _FEW else logging.INFO
    log.log(level, "file limit", extra={"files": limit, "before": soft, "max_connections": connections})
    return connections
