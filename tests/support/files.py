"""What a command left in a folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(text) if file.suffix == ".gz" else text).splitlines()]


def left(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())
