"""Supervisors that the tests set up in their own way."""

from __future__ import annotations

import sys


def pausing(seconds: float) -> list[str]:
    """Return the start of a command whose supervisor pauses this long before it starts a worker again."""
    code = f"import sys; from service.runtime import supervisor; supervisor._FIRST_PAUSE = {seconds}; "
    code += "from service.__main__ import main; sys.exit(main())"
    return [sys.executable, "-c", code]
