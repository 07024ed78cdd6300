"""`python -m service healthcheck`: ask the service on this machine how it is, without its imports."""

from __future__ import annotations

import socket
import sys

from service.settings import Settings, SettingsError

_SECONDS = 4.0
_MAX_HEAD = 4096
# Where to reach a service that listens on every address.
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def check(ready: bool) -> int:
    """Return 0 if the service on HOST and PORT is alive; with `ready`, if its database responds too."""
    try:
        settings = Settings.load()
        status = fetch_status(settings, "/readyz" if ready else "/healthz", _SECONDS)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: no response from {settings.host}:{settings.port}: {error}", file=sys.stderr)
        return 1
    if status != 200:
        print(f"error: the service responds with {status or 'something other than HTTP'}", file=sys.stderr)
        return 1
    return 0


def fetch_status(settings: Settings, path: str, seconds: float) -> int:
    """Return the status of a GET, 0 if the response is not HTTP. Raises OSError if there is none in time."""
    host = _LOOPBACK.get(settings.host, settings.host)
    with socket.create_connection((host, settings.port), seconds) as plain:
        connection = _encrypt(plain) if settings.tls_cert else plain
        with connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            head = b""
            while b"\r\n" not in head and len(head) < _MAX_HEAD and (data := connection.recv(_MAX_HEAD)):
                head += data
    words = head.split(None, 2)
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0


def _encrypt(plain: socket.socket) -> socket.socket:
    """Return the connection under TLS; the certificate is for another name than this machine's own."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)
