"""What the store raises, and how the driver's errors become it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

DUPLICATE_KEY = 11000
# Server codes of a primary that is leaving or gone, a host that `mongos` cannot reach, a write concern not met in
# time, a lost cursor, and operations that a shutdown or a time limit ended.
_PASSING_CODES = {
    *(6, 7, 43, 50, 64, 89, 91, 100, 133, 134, 189, 202, 211, 262, 365),
    *(9001, 10107, 11600, 11601, 11602, 13435, 13436),
}
# Server codes of a message that cannot be read, as one document in it is too deep, too large or malformed.
_REFUSING_CODES = {2, 9, 15, 22, 10334}

# Server codes of a wrong configuration -> what the operator has to fix.
_FIXES = {
    13: "the database user lacks rights: grant it readWrite on MONGO_DATABASE",
    18: "the database refuses the login: correct user, password and authSource in MONGO_URL",
}

log = logging.getLogger("service.store")


class StoreError(Exception):
    """The database refused an operation. Carries no document: driver messages do."""


class StoreUnavailable(StoreError):
    """The database did not respond, or not in time; the same request may work later."""


class CursorExpired(StoreError):
    """A list cannot be continued after this cursor: its record, or deletion records after it, were removed."""


class Misconfigured(StoreUnavailable):
    """Nothing works until the operator does what the message says."""


class LayoutError(Misconfigured):
    """The database was written by another version of the service."""


@contextmanager
def driver_errors() -> Iterator[None]:
    """Turn the driver's errors into the store's, without their text, which holds documents."""
    try:
        yield
    except (ConnectionFailure, ExecutionTimeout, WTimeoutError) as error:
        raise StoreUnavailable(type(error).__name__) from None
    except PyMongoError as error:
        code = getattr(error, "code", None)
        if code in _FIXES:
            log.error(_FIXES[code], extra={"code": code})
            raise Misconfigured(_FIXES[code]) from None
        passing = isinstance(error, BulkWriteError) and is_passing(error)
        if error.timeout or code in _PASSING_CODES or passing:
            raise StoreUnavailable(type(error).__name__) from None
        raise StoreError(f"{type(error).__name__} {code}") from None
    except (BSONError, OverflowError, UnicodeEncodeError) as error:
        raise StoreError(type(error).__name__) from None


def is_refusal(error: Exception) -> bool:
    """Return whether a whole message failed because of one document in it, before any of it was written."""
    if isinstance(error, PyMongoError):
        return isinstance(error, OperationFailure) and error.code in _REFUSING_CODES
    return isinstance(error, (BSONError, OverflowError, UnicodeEncodeError, RecursionError))


def is_passing(error: BulkWriteError) -> bool:
    """Return whether a bulk write may work later: its outcome is unknown."""
    details = error.details
    return bool(details.get("writeConcernErrors")) or any(
        failed["code"] in _PASSING_CODES for failed in details.get("writeErrors", ())
    )
