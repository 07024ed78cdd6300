"""TCP proxies in front of the members of a replica set: `python -m scripts.member_proxy`.

Started by `scripts.replica_set`. The first line on standard input is a JSON array of
`[proxy port, mongod port]`, one for each member; each later line is a command:

    {"pid": [member, process id]}     which process the member is now
    {"cut": [member, …]}              nothing passes between these members and the others

Each line is confirmed by a line on standard output. Ends when standard input does.

A cut holds bytes back instead of closing connections, as a network that drops packets does: once it
is over, what was sent meanwhile arrives late. Clients reach every member all the time, also one that
is cut off: a primary that does not know yet that it was replaced is the hardest case for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

_CLIENT = -1
_LISTENING = "0A"


class Members:
    """Knows which member a connection comes from, and which members are cut off."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.cut: set[int] = set()
        self.connections: set[Connection] = set()

    def source(self, port: int, proxy_port: int) -> int:
        """Return the member whose process holds the socket from `port` to `proxy_port`, else that it is a client."""
        inode = _inode(port, proxy_port)
        if inode:
            for member, pid in self.pids.items():
                if _holds(pid, inode):
                    return member
        return _CLIENT

    def is_cut(self, one: int, other: int) -> bool:
        return _CLIENT not in (one, other) and (one in self.cut) != (other in self.cut)

    def set_cut(self, members: list[int]) -> None:
        self.cut = set(members)
        for connection in list(self.connections):
            connection.update()


def _inode(port: int, remote_port: int) -> str:
    """Return the inode of the socket connected from one local port to another."""
    ends = f":{port:04X}", f":{remote_port:04X}"
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                part = line.split()
                if part[1].endswith(ends[0]) and part[2].endswith(ends[1]) and part[3] != _LISTENING:
                    return part[9]
    return ""


def _holds(pid: int, inode: str) -> bool:
    name = f"socket:[{inode}]"
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == name:
                    return True
    return False


class Connection(asyncio.Protocol):
    """One end of a connection through a proxy; `other` is the far end."""

    def __init__(self, members: Members, target: int, port: int) -> None:
        self._members, self._target, self._port = members, target, port
        self.source = _CLIENT
        self.transport: Any = None
        self.other: Connection | None = None
        self._waiting: list[bytes] = []
        self._full = self._held = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._members.connections.add(self)
        if self.other is None:  # accepted: open the far end
            peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
            self.source = self._members.source(peer[1], local[1])
            asyncio.get_running_loop().create_task(self._open())
        self.update()

    async def _open(self) -> None:
        far = Connection(self._members, self._target, self._port)
        far.other, far.source = self, self.source
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, "127.0.0.1", self._port)
        except OSError:
            self.transport.abort()
            return
        if self.transport.is_closing():
            far.transport.abort()
            return
        self.other = far
        self._pass_on()

    def update(self) -> None:
        """Stop or start reading, by whether the two members are cut off from each other."""
        self._held = self._members.is_cut(self.source, self._target)
        self._pass_on()
        self._read()

    def _read(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if self._held or self._full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._waiting.append(data)
        self._pass_on()
        if self._held:
            self._read()  # uvloop starts to read a new connection although it was paused

    def _pass_on(self) -> None:
        if self._held or self.other is None or self.other.transport is None:
            return
        for data in self._waiting:
            self.other.transport.write(data)
        self._waiting.clear()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other._full = True
            self.other._read()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other._full = False
            self.other._read()

    def connection_lost(self, _: Exception | None) -> None:
        self._members.connections.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    members = Members()
    for member, (proxy_port, port) in enumerate(json.loads(await lines.readline())):
        make = lambda member=member, port=port: Connection(members, member, port)
        await loop.create_server(make, "127.0.0.1", proxy_port)
    print("ok", flush=True)
    while line := await lines.readline():
        command = json.loads(line)
        if "pid" in command:
            member, pid = command["pid"]
            members.pids[member] = pid
        if "cut" in command:
            members.set_cut(command["cut"])
        print("ok", flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
