"""How the server's command line was started, for messages that name a further command."""

from __future__ import annotations

import sys
from pathlib import Path

INSTALLED = "scraping-data-service"


def program() -> str:
    """Return the program that this process was started as."""
    return INSTALLED if Path(sys.argv[0]).name == INSTALLED else "python -m service"


def command(words: str) -> str:
    """Return a command line that a user of this process can type."""
    return f"{program()} {words}"
