"""The address and the token of the service: from flags, else from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from sds_client.cli.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8080"


def address(url: str | None) -> str:
    """Return the address given by `--url` or SDS_URL."""
    return url or os.environ.get("SDS_URL") or DEFAULT_URL


def check_host(url: str | None) -> None:
    """Refuse an address on another host than that of SDS_URL: a page given by mistake would get the token."""
    usual = os.environ.get("SDS_URL")
    if url and usual and urlsplit(url).hostname != urlsplit(usual).hostname:
        raise UsageError(
            f"--url is the address of the service, and SDS_URL is {usual}: name a page with --source-url; for another "
            "service, change SDS_URL or give its --token too"
        )


def access_token(token: str | None) -> str:
    """Return the token given by `--token`, SDS_TOKEN or the file that SDS_TOKEN_FILE names."""
    value, path = os.environ.get("SDS_TOKEN"), os.environ.get("SDS_TOKEN_FILE")
    if token:
        return token
    if value and path:
        raise UsageError("set SDS_TOKEN or SDS_TOKEN_FILE, not both")
    if path:
        try:
            value = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"SDS_TOKEN_FILE names a file that cannot be read: {path}") from None
    if not value:
        raise UsageError("no access token: set SDS_TOKEN, or give --token")
    return value
