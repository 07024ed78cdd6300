"""How a command runs: its client, its result, its errors and its exit code."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from sds_client.cli import printing, settings
from sds_client.cli.errors import NothingFoundError, UsageError
from sds_client.cli.printing import Result, discard, tell
from sds_client.environment import DEFAULT_URL
from sds_client.errors import AccessError, ClientError
from sds_client.sync import Client
from sds_client.transport import Waiting

# Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 there is nothing to export, 4 the verdict
# on a job is `failed`, 130 interrupted.
WRONG_USAGE, NOTHING_FOUND, VERDICT_FAILED = 2, 3, 4


def options() -> argparse.ArgumentParser:
    """Return the options of every command that calls the service."""
    # Absent instead of None, so that a default of `groups list` does not replace what was given after `groups`.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--url", help=f"address of the service; else SDS_URL, else {DEFAULT_URL}")
    common.add_argument("--token", help="access token; better in SDS_TOKEN, where other users do not see it")
    common.add_argument("--cacert", metavar="FILE", help="certificates to trust, in PEM format; else SDS_CACERT")
    common.add_argument("--json", dest="as_json", action="store_true", help="print the result as JSON")
    return common


def command(work: Callable[..., Result | None]) -> Callable[..., int]:
    """Make a command of a function: give it a client, show its result, and turn an exception into an exit code."""
    return _command(work, stores=False)


def storing_command(work: Callable[..., Result | None]) -> Callable[..., int]:
    """Make a command that stores or deletes something: it fails when its result cannot be shown."""
    return _command(work, stores=True)


def _command(work: Callable[..., Result | None], stores: bool) -> Callable[..., int]:
    @functools.wraps(work)
    def run(
        url: str | None = None,
        token: str | None = None,
        cacert: str | None = None,
        as_json: bool = False,
        **given: Any,
    ) -> int:
        umask = os.umask(0o077)  # files for the owner only: cookies are as good as passwords
        try:
            if "source_url" in given and not token:
                settings.check_host(url)
            with Client(url, token, cacert=cacert, on_wait=_report_wait) as client:
                result = work(client, **given)
            if result is not None:
                printing.show(result, as_json)
            sys.stdout.flush()
            return result.code if result else 0
        except NothingFoundError as error:
            tell(f"error: {error}\n")
            return NOTHING_FOUND
        except (AccessError, UsageError) as error:
            tell(f"error: {error}\n")
            return WRONG_USAGE
        except (ClientError, ValueError) as error:
            tell(f"error: {error}\n")
            return 1
        except BrokenPipeError:  # the reader of standard output, such as `head`, has enough
            discard(sys.stdout)
            if stores:
                tell("error: nobody reads the result of the command\n")
            return 1 if stores else 0
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            tell(f"error: {place}{error.strerror}\n")
            discard(sys.stdout)  # on a full disk it would fail again at the exit
            return 1
        except KeyboardInterrupt:
            tell("\nstopped\n")
            return 130
        finally:
            os.umask(umask)

    return run


def _report_wait(waiting: Waiting) -> None:
    """Print what a command waits for; a service that was never reached is an error at once."""
    if waiting.error.status == 0 and not waiting.has_responded:
        raise waiting.error
    tell(f"waiting for the service ({waiting.error}); giving up in {waiting.seconds:.0f} s, Ctrl-C stops\n")
