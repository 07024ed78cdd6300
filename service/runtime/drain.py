"""Stopping without losing an accepted request or a part of its response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl

from service.runtime.server import Protocol, Runner
from service.runtime.sockets import unsent_bytes

log = logging.getLogger("service")

# After the signal to stop, connections without a request are kept this long: one may be arriving.
_LAST_REQUESTS_SECONDS = 0.5
_POLL_SECONDS = 0.05
# The handshakes of the last connections may take this long.
_HANDSHAKE_SECONDS = 2.0


async def stop_listening(runner: Runner, listeners: list[socket.socket], tls: ssl.SSLContext | None) -> None:
    """Close the ports, after accepting the connections that wait there: closing would reset them."""
    loop = asyncio.get_running_loop()
    assert runner.server is not None
    copies = [listener.dup() for listener in listeners]
    runner.close_ports()
    waiting = []
    for listener in copies:
        listener.setblocking(False)
        with listener, contextlib.suppress(OSError):  # none waits, or there are too many files
            while True:
                waiting.append(listener.accept()[0])
    limit = _HANDSHAKE_SECONDS if tls else None
    accepted = [
        loop.connect_accepted_socket(runner.server, connection, ssl=tls, ssl_handshake_timeout=limit)
        for connection in waiting
    ]
    await asyncio.gather(*accepted, return_exceptions=True)  # a client may have left


async def finish_requests(runner: Runner, deadline: float) -> None:
    """Wait until every request has its response; close the connections without a request."""
    loop = asyncio.get_running_loop()
    assert runner.server is not None
    await asyncio.sleep(_LAST_REQUESTS_SECONDS)
    while connections := list(runner.server.connections):
        for connection in connections:
            if isinstance(connection, Protocol) and not connection.busy:
                connection.force_close()
        if loop.time() > deadline:
            log.error("stopping with requests unfinished", extra={"connections": len(runner.server.connections)})
            return
        await asyncio.sleep(_POLL_SECONDS)


async def deliver_responses(ports: set[int], deadline: float) -> None:
    """Wait until the clients have received what was sent to them.

    The kernel holds the end of a response, and a container's network ends with its process.
    """
    loop, logged = asyncio.get_running_loop(), False
    while unsent := unsent_bytes(ports):
        if not logged:
            log.info("waiting for clients to receive their responses", extra={"bytes": unsent})
            logged = True
        if loop.time() > deadline:
            log.error("stopping with responses undelivered", extra={"bytes": unsent})
            return
        await asyncio.sleep(_POLL_SECONDS)
