"""Prints the OpenAPI document of the code: python -m scripts.openapi."""

from __future__ import annotations

import sys

from service.http.openapi import document
from service.routes import ROUTES
from service.settings import Settings


def main() -> None:
    sys.stdout.buffer.write(document(tuple(ROUTES), Settings().max_records, ""))


if __name__ == "__main__":
    main()
