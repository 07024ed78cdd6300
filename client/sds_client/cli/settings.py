"""The address and the token of the service: from flags, else from the environment."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8080"


def address(url: str | None) -> str:
    """Return the address given by `--url` or SDS_URL."""
    return url or os.environ.get("SDS_URL") or DEFAULT_URL


def access_token(token: str | None) -> str:
    """Return the token given by `--token`, SDS_TOKEN or the file that SDS_TOKEN_FILE names."""
    value, path = os.environ.get("SDS_TOKEN"), os.environ.get("SDS_TOKEN_FILE")
    if token:
        return token
    if value and path:
        raise ValueError("set SDS_TOKEN or SDS_TOKEN_FILE, not both")
    if path:
        try:
            value = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"SDS_TOKEN_FILE names a file that cannot be read: {path}") from None
    if not value:
        raise ValueError("no access token: set SDS_TOKEN, or give --token")
    return value
