"""How a process of the service reacts to an attack: its longest /healthz and the growth of its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

# Seconds between two calls.
PAUSE = 0.002

# Calls again and again on one connection, in a process of its own, as the attacker is busy. Prints the longest
# time in seconds when its standard input ends. Time in which the service did not run at all is not counted: the
# machine belongs to others too.
_PROBE = """
import select, socket, sys, time
port, pid = map(int, sys.argv[1:3])
pause = float(sys.argv[3])
clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) gives it
request = b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
connection = socket.create_connection(("127.0.0.1", port), timeout=60)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
longest = 0.0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], pause)[0]:
    began, worked = time.perf_counter(), time.clock_gettime(clock)
    connection.sendall(request)
    data = b""
    while not data.endswith(b'"ok"}'):
        data += connection.recv(4096)
    longest = max(longest, min(time.perf_counter() - began, time.clock_gettime(clock) - worked))
print(longest)
"""


class Probe:
    """Measures a process for as long as the context lasts: `stall` in seconds, `growth` in bytes."""

    def __init__(self, port: int, pid: int, pause: float = PAUSE) -> None:
        self._port, self._pid, self._pause = port, pid, pause
        self.stall = 0.0
        self.growth = 0

    def __enter__(self) -> Probe:
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # the peak begins anew
        self._before = self._memory("VmRSS")
        self._asking = subprocess.Popen(
            [sys.executable, "-c", _PROBE, str(self._port), str(self._pid), str(self._pause)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._asking.stdout is not None
        assert self._asking.stdout.readline() == "ready\n"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        printed, _ = self._asking.communicate("\n", timeout=90)
        self.growth = max(0, self._memory("VmHWM") - self._before)
        if kind is None:
            self.stall = float(printed)

    def grown(self) -> int:
        """Return how much more memory the process has now than before."""
        return self._memory("VmRSS") - self._before

    def __repr__(self) -> str:
        return f"stall {self.stall * 1000:.0f} ms, growth {self.growth / 2**20:.0f} MB"

    def _memory(self, name: str) -> int:
        text = Path(f"/proc/{self._pid}/status").read_text()
        return int(text.partition(f"{name}:")[2].split()[0]) * 1024
