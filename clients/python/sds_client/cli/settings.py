"""The address of the service on the command line."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from sds_client.cli.errors import UsageError


def check_host(url: str | None) -> None:
    """Refuse an address on another host than that of SDS_URL: a page given by mistake would get the token."""
    usual = os.environ.get("SDS_URL")
    if url and usual and urlsplit(url).hostname != urlsplit(usual).hostname:
        raise UsageError(
            f"--url is the address of the service, and SDS_URL is {usual}: name a page with --source-url; for another "
            "service, change SDS_URL or give its --token too"
        )
