"""`python -m service` and `sds`: the whole command line, or the client's part where the server is not installed."""

import sys
from importlib.util import find_spec


def main() -> int:
    if find_spec("motor") is None:
        from service.client.__main__ import main as run
    else:
        from service.cli import main as run
    return run()


if __name__ == "__main__":
    sys.exit(main())
