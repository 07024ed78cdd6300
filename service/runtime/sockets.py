"""Sockets: those of the listening ports, and the bytes that the kernel still has to deliver."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path

from service.settings import SettingsError

BACKLOG = 1024
# Bytes that the kernel buffers for a client that does not read: no other limit counts them.
_UNSENT_BYTES = 128 * 1024
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"


def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Return a socket for each address of `host`, all on one port; with 0, the system chooses the port.

    `shared` ones may be bound again by other processes of this user.
    """
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, address in dict.fromkeys((family, address[:2]) for family, _, _, _, address in addresses):
            sockets.append(bound := socket.socket(family, socket.SOCK_STREAM))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # its connections inherit it
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((address[0], port))
            port = address_of(bound)[1]
    except OSError as error:
        close(sockets)
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(f"Cannot listen on {host} port {port}: {reason}. Change HOST or PORT.") from None
    return sockets


def close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Return the host and the port that a socket listens on."""
    host, port = listener.getsockname()[:2]
    return host, port


def unsent_bytes(ports: Iterable[int]) -> int:
    """Return how many bytes of connections to these ports the kernel holds: not sent, or not acknowledged.

    Includes closed connections, for which `SIOCOUTQ` no longer works. 0 if the system has no such table.
    """
    ours, unsent = set(ports), 0
    for table in _TABLES:
        with contextlib.suppress(OSError), table.open() as lines:
            next(lines)
            for line in lines:  # sl  local_address  rem_address  st  tx_queue:rx_queue …
                _, local, _, state, queues = line.split(maxsplit=5)[:5]
                if state != _LISTENING and int(local.rpartition(":")[2], 16) in ours:
                    unsent += int(queues.partition(":")[0], 16)
    return unsent
