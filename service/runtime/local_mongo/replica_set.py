"""Makes a running mongod the primary of a replica set of one, with the service's user."""

from __future__ import annotations

import subprocess
import time
from typing import Any

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from service.runtime.local_mongo.folder import HOST, SET, USER, Folder, LocalMongoError
from service.runtime.local_mongo.mongod import POLL_SECONDS, START_SECONDS, tail

RESPONSE_SECONDS = 30.0
# Error codes of its commands.
UNAUTHORIZED, AUTHENTICATION_FAILED, ALREADY_INITIALIZED, NOT_YET_INITIALIZED = 13, 18, 23, 94


def set_up(process: subprocess.Popen[bytes], folder: Folder, port: int) -> str:
    """Make the server the primary of a replica set of one with our user; return its address."""
    has_user = _has_user(folder, port, RESPONSE_SECONDS)
    # Without any user, the localhost exception lets us initiate the set and make the first one.
    login = {"username": USER, "password": folder.password} if has_user else {}
    deadline = time.monotonic() + START_SECONDS
    with _client(port, RESPONSE_SECONDS, **login) as client:
        while not _is_primary(client, folder, port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise LocalMongoError(
                    f"MongoDB does not become ready; the end of {folder.log}:\n{tail(folder.logged())}"
                )
            time.sleep(POLL_SECONDS)
        if not has_user:
            try:
                client.admin.command("createUser", USER, pwd=folder.password, roles=["root"])
            except OperationFailure as error:
                raise _refused(folder, error) from None
    return folder.address(port)


def responds(folder: Folder, port: int) -> bool:
    """Return whether the server on `port` responds and is the one of `folder`."""
    try:
        return _has_user(folder, port, seconds=1)
    except PyMongoError:
        return False


def _has_user(folder: Folder, port: int, seconds: float) -> bool:
    """Return whether the server on `port` knows our user; both sides prove that they know the password."""
    try:
        with _client(port, seconds, username=USER, password=folder.password) as client:
            client.admin.command("ping")
        return True
    except OperationFailure as error:
        if error.code != AUTHENTICATION_FAILED:
            raise
        return False


def _client(port: int, seconds: float, **login: Any) -> MongoClient[dict[str, Any]]:
    return MongoClient(HOST, port, directConnection=True, serverSelectionTimeoutMS=int(seconds * 1000), **login)


def _is_primary(client: MongoClient[dict[str, Any]], folder: Folder, port: int) -> bool:
    """Return whether the server takes writes; make it a member of its replica set if needed."""
    try:
        hello = client.admin.command("hello")
        if "setName" not in hello:
            _name_member(client, folder, port)
        return bool(hello["isWritablePrimary"])
    except AutoReconnect:  # it closes all connections when its state changes
        return False


def _name_member(client: MongoClient[dict[str, Any]], folder: Folder, port: int) -> None:
    """Set the address of the only member: in a new replica set, or after the port has changed."""
    config = {"_id": SET, "version": 1, "members": [{"_id": 0, "host": f"{HOST}:{port}"}]}
    try:
        client.admin.command("replSetInitiate", config)
    except OperationFailure as error:
        if error.code == UNAUTHORIZED:
            raise _refused(folder, error) from None
        if error.code != ALREADY_INITIALIZED:
            raise
        try:
            client.admin.command("replSetReconfig", config, force=True)
        except OperationFailure as later:
            if later.code != NOT_YET_INITIALIZED:  # still loading its configuration
                raise


def _refused(folder: Folder, error: OperationFailure) -> Exception:
    if error.code != UNAUTHORIZED:
        return error
    return LocalMongoError(
        f"{folder.password_file} is not the password of the database in {folder.data}. "
        "Put the right file back, or move the folder away."
    )
