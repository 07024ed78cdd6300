"""The exceptions of the store, and how the driver's errors are turned into them."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    CollectionInvalid,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidName,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

DUPLICATE_KEY = 11000
# A read takes longer than the database keeps a snapshot (minSnapshotHistoryWindowInSeconds, 300).
SNAPSHOT_TOO_OLD = 239
# Server codes of an invalid command: a defect of the service. All other codes (no disk space, a lost lock, a read-only
# member, a code of a later version) may be temporary.
_DEFECT_CODES = {
    *(2, 9, 12, 14, 15, 16, 22, 28, 40, 52, 54, 55, 56, 57, 59, 66, 72, 73, 96, 241),  # bad values, paths, operators
    *(10334, 17280, 17419, 17420, 40352, 40353, 40415, DUPLICATE_KEY, 121),  # 121: a validator that an operator has set
}
# The server's text, with code 2, when an index is missing.
_NO_INDEX = "hint"
# Server codes of a wrong configuration -> what the operator has to fix.
_FIXES = {
    13: "the database user lacks rights: grant it readWrite on MONGO_DATABASE",
    18: "the database refuses the login: correct user, password and authSource in MONGO_URL",
}

log = logging.getLogger("service.store")


class StoreError(Exception):
    """The database refused an operation. Its text quotes no document, as the driver's does."""


class StoreUnavailable(StoreError):
    """The database did not respond, or not in time; the same request may work later."""


class CursorExpired(StoreError):
    """A list cannot be continued after this cursor: its record, or deletion records after it, were removed."""


class ItemExists(StoreError):
    """An item is to be restored that was not deleted."""


class CursorInvalid(StoreError):
    """A cursor that no page of this list has returned."""


class Misconfigured(StoreUnavailable):
    """Nothing works until the operator does what the message says."""


class DatabaseRefused(Misconfigured):
    """The database is none that this version can serve: another version wrote it, or it is no replica set."""


# What the driver raises.
DRIVER_ERRORS = (PyMongoError, BSONError, OverflowError, UnicodeEncodeError)


def store_error(error: Exception) -> StoreError:
    """Return the store's error for one of the driver, without its text, which holds documents."""
    without_frames(error)
    name = type(error).__name__
    if not isinstance(error, PyMongoError):
        return StoreError(name)
    if isinstance(error, (ConnectionFailure, ExecutionTimeout, WTimeoutError)):
        return StoreUnavailable(name)
    code = getattr(error, "code", None)
    if code in _FIXES:
        log.error(_FIXES[code], extra={"code": code})
        return Misconfigured(_FIXES[code])
    if _is_defect(error):
        return StoreError(f"{name} {code}")
    log.warning("the database failed", extra={"error": name, "code": code})
    return StoreUnavailable(name)


def without_frames(error: Exception) -> Exception:
    """Return the error with the place where it was raised, and without the values on the way there.

    Its frames hold what was read or written, and the error itself. Only for errors whose frames have ended.
    """
    trace = error.__traceback__
    traceback.clear_frames(trace)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return error.with_traceback(trace)


def is_passing_code(code: int) -> bool:
    """Return whether an error that the server reports for one document may be temporary."""
    return code not in _DEFECT_CODES


def duplicates(error: BulkWriteError) -> list[dict[str, Any]]:
    """Return the entries of a bulk write that met another document with their key; raises any other error."""
    failed: list[dict[str, Any]] = error.details["writeErrors"]
    if error.details.get("writeConcernErrors") or any(one["code"] != DUPLICATE_KEY for one in failed):
        raise error
    return failed


def _is_defect(error: PyMongoError) -> bool:
    """Return whether the service has sent an operation that can never work."""
    if error.timeout:
        return False
    if isinstance(error, BulkWriteError):
        failed = error.details.get("writeErrors", ())
        return not (error.details.get("writeConcernErrors") or any(is_passing_code(one["code"]) for one in failed))
    if isinstance(error, OperationFailure):
        reason = str((error.details or {}).get("errmsg", ""))
        return error.code in _DEFECT_CODES and _NO_INDEX not in reason
    # Network errors of the driver were handled above.
    return isinstance(error, (ConfigurationError, InvalidOperation, InvalidName, CollectionInvalid, DocumentTooLarge))
