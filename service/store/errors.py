"""What the store raises, and how the driver's errors become it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    ExecutionTimeout,
    PyMongoError,
    WTimeoutError,
)

# Server codes of a primary that is leaving or gone, a write concern not met in time, and
# operations that a shutdown or a time limit ended.
_PASSING_CODES = {50, 64, 91, 100, 189, 262, 10107, 11600, 11602, 13435, 13436}


class StoreError(Exception):
    """The database refused an operation. Carries no document: driver messages do."""


class StoreUnavailable(StoreError):
    """The database did not answer, or not in time; the same request may work later."""


@contextmanager
def driver_errors() -> Iterator[None]:
    """Turn the driver's errors into the store's, without their text, which holds documents."""
    try:
        yield
    except (ConnectionFailure, ExecutionTimeout, WTimeoutError) as error:
        raise StoreUnavailable(type(error).__name__) from None
    except PyMongoError as error:
        code = getattr(error, "code", None)
        if error.timeout or code in _PASSING_CODES or _passing_bulk(error):
            raise StoreUnavailable(type(error).__name__) from None
        raise StoreError(f"{type(error).__name__} {code}") from None
    except BSONError as error:
        raise StoreError(type(error).__name__) from None


def _passing_bulk(error: PyMongoError) -> bool:
    return isinstance(error, BulkWriteError) and bool(error.details.get("writeConcernErrors"))
