"""The supervisor without processes: what it hands to a worker that it starts again."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from service.runtime.sockets import close
from service.runtime.supervisor import Supervisor
from service.settings import Settings


class Worker:
    """A process that only the test ends."""

    def __init__(self, arguments: list[str], *, pass_fds: list[int], **_: Any) -> None:
        self.files, self.returncode, self.pid = set(pass_fds), None, 1

    def poll(self) -> int | None:
        return self.returncode

    def die(self) -> None:
        self.returncode = -9  # type: ignore[assignment]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A supervisor with two workers, and those workers."""
    monkeypatch.setattr(subprocess, "Popen", Worker)
    made = Supervisor(Settings(host="127.0.0.1", port=0, workers=2), "mongodb://127.0.0.1")
    for number in range(2):
        made._start(number, 1.0)
    yield made, [made._workers[number].process for number in range(2)]
    for listeners in made._listeners.values():
        close(listeners)


def test_the_first_worker_that_starts_again_accepts_what_waits_for_the_dead(two: Any) -> None:
    made, workers = two
    for worker in workers:
        worker.die()
    made._note_deaths()
    made._start(1, 1.0)
    assert made._workers[1].process.files == workers[0].files | workers[1].files
    made._start(0, 1.0)
    assert made._workers[0].process.files.isdisjoint(made._workers[1].process.files)


def test_workers_that_start_at_the_same_time_keep_their_own_sockets(two: Any) -> None:
    made, workers = two
    for worker in workers:
        worker.die()
    made._note_deaths()
    made._due = dict.fromkeys(made._due, (0.0, 1.0))
    assert made._restart_due() == 2
    assert [made._workers[number].process.files for number in range(2)] == [worker.files for worker in workers]


def test_a_worker_that_cannot_be_started_is_tried_again_and_the_others_go_on(
    two: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, workers = two
    workers[0].die()
    made._note_deaths()
    made._due[0] = 0.0, 4.0

    def refuse(*_: Any, **__: Any) -> Worker:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert made._restart_due() == 0
    assert (set(made._workers), made._due[0][1]) == ({1}, 8.0)
    monkeypatch.setattr(subprocess, "Popen", Worker)
    made._due[0] = 0.0, 8.0
    assert made._restart_due() == 1
    assert set(made._workers) == {0, 1}
