"""The address and the token of the service where the caller gives none: those of the environment."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from sds_client.errors import AccessError

DEFAULT_URL = "http://127.0.0.1:8080"
_HOW_TO_GET_ONE = (
    "no access token: set SDS_TOKEN, or give a token; `make run` prints one, and where the service runs, "
    "`scraping-data-service token create --organization 1` makes one"
)


def address(url: str | None) -> str:
    """Return the address given, else that of SDS_URL."""
    return url or os.environ.get("SDS_URL") or DEFAULT_URL


def access_token(token: str | None) -> str:
    """Return the token given, else that of SDS_TOKEN or of the file that SDS_TOKEN_FILE names."""
    value, path = os.environ.get("SDS_TOKEN"), os.environ.get("SDS_TOKEN_FILE")
    if token:
        return token
    if value and path:
        raise AccessError("set SDS_TOKEN or SDS_TOKEN_FILE, not both")
    if path:
        try:
            value = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"SDS_TOKEN_FILE names a file that cannot be read: {path}") from None
    if not value:
        raise AccessError(_HOW_TO_GET_ONE)
    return value


def tls_context(cacert: str | os.PathLike[str] | None) -> ssl.SSLContext | bool:
    """Return what verifies the service: the certificates of a file, else of SDS_CACERT, else those of the system."""
    path = cacert or os.environ.get("SDS_CACERT")
    if not path:
        return True
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError):
        raise ValueError(f"{os.fspath(path)} holds no certificates in PEM format") from None
