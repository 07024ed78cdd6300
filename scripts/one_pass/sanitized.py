"""Fuzz the one-pass encoder, built with the sanitizers of addresses and undefined behaviour.

`python -m scripts.one_pass.sanitized --minutes 30`: minutes of CPU. `--broken` removes a check of bounds first: the
sanitizers must find it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from scripts.one_pass.items import Items

MODULE = "service.store.outputs.one_pass"
_SOURCES = Path(__file__).parents[2] / "service/store/outputs"
_SANITIZERS = "-fsanitize=address,undefined"
# An item is written and broken in so many ways: to make one costs as much.
_WAYS = 30
_CHECK = """        self.reserve(size)
        memcpy("""


def build(folder: Path, broken: bool) -> Path:
    """Build the extension with the sanitizers; return its file."""
    for source in _SOURCES.glob("one_pass*.p[xy]*"):
        shutil.copy(source, folder)
    if broken:
        memory = folder / "one_pass_memory.pxi"
        text = memory.read_text()
        assert _CHECK in text
        memory.write_text(text.replace(_CHECK, "        memcpy("))
    generated, built = folder / "one_pass.c", folder / "one_pass.so"
    cython = (sys.executable, "-m", "cython", "-3", "--module-name", MODULE, "one_pass.pyx", "-o", generated)
    subprocess.run(cython, cwd=folder, check=True)
    flags = ("-shared", "-fPIC", "-g1", "-O1", "-fno-wrapv", _SANITIZERS, "-fno-sanitize-recover=all")
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["gcc", *flags, include, generated, "-o", built], check=True)
    return built


def fuzz(built: Path, minutes: float, seed: int) -> int:
    """Fuzz in a process that has the sanitizers; return its exit code."""
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environ = {
        **os.environ,
        "LD_PRELOAD": runtime,
        # Python's own allocator would hide what is read or written beyond an object.
        "PYTHONMALLOC": "malloc",
        # Python keeps memory until it ends.
        "ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, "-m", "scripts.one_pass.sanitized", "--seed", str(seed), "--minutes", str(minutes)]
    return subprocess.run([*command, "--built", str(built)], env=environ).returncode


def run(built: Path, minutes: float, seed: int) -> None:
    """Encode texts until the time is over. The sanitizers end the process when they find something."""
    spec = spec_from_file_location(MODULE, built, loader=ExtensionFileLoader(MODULE, str(built)))
    assert spec is not None and spec.loader is not None
    sys.modules[MODULE] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    from scripts.one_pass.__main__ import comparisons

    maps = Path("/proc/self/maps").read_text()
    assert str(built) in maps and "libasan" in maps and not re.search(r"one_pass\.cpython", maps)
    encoders, items, dice = [choice.one_pass for choice in comparisons()], Items(seed), random.Random(seed)
    texts = encoded = 0
    end = time.process_time() + 60 * minutes
    while time.process_time() < end:
        item = items.item()
        for _ in range(_WAYS):
            texts += 1
            text = items.write(item)
            text = items.broken(text) if dice.random() < 0.7 else text
            encoded += dice.choice(encoders).from_text(text) is not None
    print(f"{texts:,} texts in {minutes:g} minutes of CPU, {encoded:,} of them encoded: nothing found")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--broken", action="store_true", help="without a check of bounds")
    parser.add_argument("--built", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.built is not None:
        run(options.built, options.minutes, options.seed)
        return 0
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="one-pass-") as folder:
        return fuzz(build(Path(folder), options.broken), options.minutes, options.seed)


if __name__ == "__main__":
    sys.exit(main())
