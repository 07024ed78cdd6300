"""Help for scripts that start processes: ports that stay free, and children that die with their parent."""

from __future__ import annotations

import ctypes
import random
import signal
import socket
import sys

# Below what Linux and macOS give to outgoing connections (from 32768 and 49152): the port of a
# killed process is still free when it starts again.
_PORTS = range(12_000, 32_000)
_PR_SET_PDEATHSIG = 1
_SECURE_RANDOM = random.SystemRandom()  # the same seed in two runs must not mean the same ports


def free_port() -> int:
    """Return a port that nobody listens on and that no outgoing connection takes."""
    for _ in range(200):
        port = _SECURE_RANDOM.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("No free port found between 12000 and 32000.")


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
