"""A replica set of real mongods on this machine, whose members can be killed, frozen and cut off.

For tests and for the checker. Linux only: `/proc` tells which member a connection comes from.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from scripts.processes import die_with_parent, free_port
from service.runtime.local_mongo import find_program

NAME = "rs"
ELECTION_SECONDS = 2.0
_START_SECONDS = 60.0
# One command to one member on this machine; longer means that it is frozen or gone.
_COMMAND_SECONDS = 10.0
_POLL_SECONDS = 0.05


class ReplicaSetError(Exception):
    """Raised when the replica set does not get where it should within the time for it."""


class Member:
    """One mongod; clients and other members reach it by `proxy_port`, which a set of one does not need."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder = number, folder / f"member-{number}"
        self.port = self.proxy_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.is_frozen = self.is_cut_off = False

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None and not self.is_frozen

    def command(self, command: str, value: Any = 1, **options: Any) -> dict[str, Any]:
        """Run an admin command on this very member."""
        milliseconds = int(_COMMAND_SECONDS * 1000)
        with MongoClient[Any](
            "127.0.0.1",
            self.port,
            directConnection=True,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            socketTimeoutMS=milliseconds,
            retryReads=False,
        ) as client:
            return dict(client.admin.command(command, value, **options))

    def fail_point(self, name: str, mode: Any = "alwaysOn", **data: Any) -> int:
        """Set a fail point of the server; return how often it was met before.

        `mode` is "alwaysOn", "off" or {"times": n}.
        """
        return int(self.command("configureFailPoint", name, mode=mode, **({"data": data} if data else {}))["count"])

    def __repr__(self) -> str:
        return f"member {self.number}"


class ReplicaSet:
    """A replica set of `nodes` mongods on temporary folders; all of it is gone at exit.

    Every wait is bounded and raises ReplicaSetError.
    """

    def __init__(self, nodes: int, *, test_commands: bool = True) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="replica-set-"))
        self.members = [Member(number, self._folder) for number in range(nodes)]
        self._parameters = {"enableTestCommands": int(test_commands), "diagnosticDataCollectionEnabled": "false"}
        self._proxy: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{member.proxy_port}" for member in self.members)
        return f"mongodb://{hosts}/?replicaSet={NAME}"

    def __enter__(self) -> Self:
        try:
            if len(self.members) > 1:
                self._start_proxy()
            for member in self.members:
                self._start(member)
            for member in self.members:
                self._wait_until_it_responds(member)
            self._initiate()
            self.wait_until_healthy()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove their files."""
        for process in [*(member.process for member in self.members), self._proxy]:
            if process is not None:
                process.kill()  # also ends a frozen one
                process.wait(_COMMAND_SECONDS)
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- failing ------------------------------------------------------------------------------

    def kill(self, member: Member) -> None:
        """Kill a member by `kill -9`."""
        assert member.process is not None
        member.process.kill()
        member.process.wait(_COMMAND_SECONDS)

    def restart(self, member: Member) -> None:
        """Start a killed member again; it recovers and catches up on its own, which may take a minute."""
        self._start(member)

    def freeze(self, member: Member) -> None:
        """Stop a member in the middle of what it does; its connections stay open."""
        assert member.process is not None
        member.process.send_signal(signal.SIGSTOP)
        member.is_frozen = True

    def thaw(self, member: Member) -> None:
        """Let a frozen member continue."""
        assert member.process is not None
        member.process.send_signal(signal.SIGCONT)
        member.is_frozen = False

    def step_down(self, member: Member, seconds: int = 10) -> None:
        """Make the primary a secondary that does not stand for election for some seconds."""
        with suppress(OperationFailure):  # not primary any more: what was wanted
            member.command("replSetStepDown", seconds, secondaryCatchUpPeriodSecs=2, force=True)

    def cut_off(self, member: Member) -> None:
        """Let nothing pass between a member and the others; clients still reach all of them."""
        member.is_cut_off = True
        self._set_cut()

    def rejoin(self, member: Member) -> None:
        """End a cut: what was sent meanwhile arrives now."""
        member.is_cut_off = False
        self._set_cut()

    def never_primary(self, member: Member) -> None:
        """Keep a member from standing for election for two minutes."""
        member.command("replSetFreeze", 120)

    # -- waiting ------------------------------------------------------------------------------

    def primary(self) -> Member | None:
        """Return the primary of the newest term that can be reached, or None."""
        newest: tuple[int, Member] | None = None
        for member in self.members:
            if not member.is_up:
                continue
            with suppress(PyMongoError):
                status = member.command("replSetGetStatus", initialSync=0)
                if status["myState"] == 1 and (newest is None or status["term"] > newest[0]):
                    newest = status["term"], member
        return None if newest is None else newest[1]

    def wait_for_primary(self, other_than: Member | None = None, seconds: float = 30) -> Member:
        """Return the primary as soon as there is one that takes writes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            member = self.primary()
            if member is not None and member is not other_than:
                with suppress(PyMongoError):
                    if member.command("hello").get("isWritablePrimary"):
                        return member
            time.sleep(_POLL_SECONDS)
        raise ReplicaSetError(f"There is no new primary after {seconds:.0f} s.")

    def is_healthy(self) -> bool:
        """Return whether the primary sees every member as primary or secondary, with changes of its own term.

        One that has none yet may have to roll back, for which it needs this very primary: if most members do, there is
        no other primary as long as this one is away.
        """
        if not all(member.is_up and not member.is_cut_off for member in self.members):
            return False
        primary = self.primary()
        if primary is None:
            return False
        with suppress(PyMongoError):
            status = primary.command("replSetGetStatus")
            writable = primary.command("hello").get("isWritablePrimary")
            return bool(writable) and all(
                member["state"] in (1, 2) and member["health"] and member["optime"]["t"] == status["term"]
                for member in status["members"]
            )
        return False

    def wait_until_healthy(self, seconds: float = 60) -> Member:
        """Wait until all members are primary or secondary; return the primary."""
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            if time.monotonic() > deadline:
                raise ReplicaSetError(f"Not all members are back after {seconds:.0f} s.")
            time.sleep(_POLL_SECONDS)
        return self.wait_for_primary()

    # -- starting -----------------------------------------------------------------------------

    def _start(self, member: Member) -> None:
        member.folder.mkdir(exist_ok=True)
        command = [find_program().path, "--replSet", NAME, "--port", str(member.port), "--dbpath", str(member.folder)]
        command += ["--bind_ip", "127.0.0.1", "--nounixsocket", "--networkMessageCompressors", "disabled"]
        command += ["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "2048"]
        command += ["--logpath", str(member.folder / "log"), "--logappend"]
        for name, value in self._parameters.items():
            command += ["--setParameter", f"{name}={value}"]
        member.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the script only, which ends them
            preexec_fn=die_with_parent,
        )
        member.is_frozen = member.is_cut_off = False
        self._tell({"pid": [member.number, member.process.pid]})

    def _wait_until_it_responds(self, member: Member) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if not member.is_up:
                log = (member.folder / "log").read_text(errors="replace")[-1000:]
                raise ReplicaSetError(f"{member} ended: {log}")
            with suppress(PyMongoError):
                member.command("ping")
                return
            time.sleep(_POLL_SECONDS)
        raise ReplicaSetError(f"{member} does not respond after {_START_SECONDS:.0f} s.")

    def _initiate(self) -> None:
        hosts = [{"_id": member.number, "host": f"127.0.0.1:{member.proxy_port}"} for member in self.members]
        settings = {"electionTimeoutMillis": int(ELECTION_SECONDS * 1000), "heartbeatIntervalMillis": 500}
        self.members[0].command("replSetInitiate", {"_id": NAME, "members": hosts, "settings": settings})

    def _start_proxy(self) -> None:
        for member in self.members:
            member.proxy_port = free_port()
        self._proxy = subprocess.Popen(
            [sys.executable, "-m", "scripts.member_proxy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._tell([[member.proxy_port, member.port] for member in self.members])

    def _set_cut(self) -> None:
        self._tell({"cut": [member.number for member in self.members if member.is_cut_off]})

    def _tell(self, command: Any) -> None:
        """Send a line to the proxy, if there is one, and wait until it is done."""
        if self._proxy is None:
            return
        assert self._proxy.stdin is not None and self._proxy.stdout is not None
        self._proxy.stdin.write(json.dumps(command).encode() + b"\n")
        self._proxy.stdin.flush()
        if self._proxy.stdout.readline() != b"ok\n":
            raise ReplicaSetError("The proxy between the members has ended.")
