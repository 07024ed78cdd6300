"""`python -m service` and `sds`: the whole command line, or the client's part where the server is not installed."""

import signal
import sys
from importlib.util import find_spec


def main() -> int:
    """Run one command; return its exit code."""
    # PID 1 of a container ignores a signal without a handler: set before the imports, which take a second.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.argv[1:2] == ["healthcheck"]:
        from service.runtime.healthcheck import main as run  # without them: it runs every few seconds
    elif find_spec("motor") is None:
        from service.client.__main__ import main as run
    else:
        from service.cli import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
