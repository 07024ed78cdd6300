"""The server's command line: `python -m service`, or `scraping-data-service`."""

import signal
import sys


def main() -> int:
    """Run one command; return its exit code."""
    # PID 1 of a container ignores a signal without a handler: set before the imports, which take a second.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.argv[1:] in (["healthcheck"], ["healthcheck", "--ready"]):
        from service.runtime.healthcheck import check  # without the other imports: it runs every few seconds

        return check(ready="--ready" in sys.argv)
    from service.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
