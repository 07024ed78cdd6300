"""Stopping without losing an accepted request."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import ssl
import struct
import sys
from typing import Any

from aiohttp import web

from service.runtime.server import Protocol, Runner

log = logging.getLogger("service")

# After the order to stop, connections without a request are kept this long: one may be on its way.
_LAST_REQUESTS_SECONDS = 0.5
_POLL_SECONDS = 0.05
# Linux: SO_ATTACH_FILTER, and the instruction of a filter that ends it.
_ATTACH_FILTER, _BPF_RETURN = 26, 0x06


async def stop_listening(runner: Runner, site: web.TCPSite, tls: ssl.SSLContext | None) -> None:
    """Close the port, after taking in the connections that wait there: closing would reset them.

    New ones are kept out meanwhile, or one could come between the last that is taken in and the end.
    """
    loop = asyncio.get_running_loop()
    server: Any = site._server
    assert runner.server is not None
    listeners = [socket.socket(fileno=os.dup(s.fileno())) for s in server.sockets]
    await site.stop()
    waiting = []
    for listener in listeners:
        _refuse_new_connections(listener)
        listener.setblocking(False)
        with listener, contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(listener.accept()[0])
    for connection in waiting:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(runner.server, connection, ssl=tls)


def _refuse_new_connections(listener: socket.socket) -> None:
    """Drop the packets of connections that are not made yet, where the system can do that.

    Their clients try again after a second, and are refused or reach another process.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))  # keep 0 bytes of each
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


async def finish_requests(runner: Runner, seconds: float) -> None:
    """Wait until every request is answered; close the connections that have none."""
    loop = asyncio.get_running_loop()
    assert runner.server is not None
    deadline = loop.time() + seconds
    await asyncio.sleep(_LAST_REQUESTS_SECONDS)
    while connections := list(runner.server.connections):
        for connection in connections:
            if isinstance(connection, Protocol) and not connection.busy:
                connection.force_close()
        if loop.time() > deadline:
            log.error("stopping with requests unanswered", extra={"connections": len(runner.server.connections)})
            return
        await asyncio.sleep(_POLL_SECONDS)
