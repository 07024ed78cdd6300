"""The service with faults in it: `python -m scripts.checker.service serve`.

`CHECKER_FAULTS` is a JSON object: `delay`, `late`, `fail`, `crash` are the chances of each at a step,
`late_seconds` is longer than the lease, `log` is the file that gets a line for each fault, `mark`
false switches the watermark off, `exclusive` false lets a session be leased again while it is leased.
`CHECKER_SEED` repeats its choices.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

from service.cli import main
from service.store import Group, StoreUnavailable
from service.store.outputs.ids import Ids, Watermark
from service.store.sessions import changes

LONGEST_DELAY = 0.3


class Faults:
    """Delays, fails or kills the process at the steps of a write."""

    def __init__(self, delay: float, late: float, fail: float, crash: float, late_seconds: float, log: str) -> None:
        self.delay, self.late, self.fail, self.crash = delay, late, fail, crash
        self.late_seconds = late_seconds
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def __call__(self, step: str) -> None:
        if random.random() < self.crash:
            if step == "before write" and random.random() < 0.5:
                # In the middle of the write: it takes some milliseconds.
                asyncio.get_running_loop().call_later(random.uniform(0, 0.02), self._crash, "during write")
            else:
                self._crash(step)
        if random.random() < self.delay:
            self._note("delay", step)
            await asyncio.sleep(random.uniform(0, LONGEST_DELAY))
        if random.random() < self.late:
            self._note("late", step)
            await asyncio.sleep(self.late_seconds)
        if random.random() < self.fail:
            self._note("error", step)
            raise StoreUnavailable("injected")

    def _crash(self, step: str) -> None:
        self._note("crash", step)
        os._exit(9)

    def _note(self, kind: str, step: str) -> None:
        os.write(self.log, f"{kind} {step}\n".encode())


def install(options: dict[str, Any]) -> None:
    """Put the faults into every `Ids` made from now on."""
    random.seed(os.environ.get("CHECKER_SEED"))
    if not options.pop("mark"):
        read = Ids._read

        async def read_without_mark(self: Ids, group: Group) -> Watermark:
            watermark = await read(self, group)
            return watermark._replace(position=watermark.allocated, in_flight=False)

        Ids._read = read_without_mark  # type: ignore[method-assign]
    if not options.pop("exclusive", True):
        take = changes.take

        def take_and_leave_ready(*args: Any, **kwargs: Any) -> list[changes.Stage]:
            return [*take(*args, **kwargs), {"$set": {"state": "ready"}}]

        changes.take = take_and_leave_ready
    faults = Faults(**options)
    make = Ids.__init__

    def make_with_faults(self: Ids, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.step = faults

    Ids.__init__ = make_with_faults  # type: ignore[method-assign]


if __name__ == "__main__":
    install(json.loads(os.environ["CHECKER_FAULTS"]))
    sys.exit(main())
