"""Fuzzes a running service by its own OpenAPI document: python -m scripts.fuzz [--examples 300]."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from service.runtime.local_mongo import local_mongo
from service.store import SCOPES
from tests.support.processes import ServiceProcess, make_token

_CONFIGURATION = Path(__file__).with_suffix(".toml")
# Not among them: missing_test_data, validation_mismatch and low_valid_rate. No generated id names an output, and the
# document cannot say that a deletion needs at least one filter: 404 and 422 are right there.
_WARNINGS = (
    *("missing_auth", "unused_openapi_auth", "rate_limited", "method_not_allowed"),
    *("missing_deserializer", "unsupported_regex", "unresolvable_reference"),
)


def fuzz(mongo_url: str, examples: int) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with all checks and a fixed seed against a service of its own; return what it said."""
    with ServiceProcess(mongo_url) as service:
        service.wait_until_ready()
        return subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(_CONFIGURATION)),
                *("run", f"{service.url}/openapi.json"),
                *("--header", f"Authorization: Bearer {make_token(mongo_url, 1, *SCOPES)}"),
                *("--max-examples", str(examples), "--seed", "1", "--generation-database", "none"),
                "--generation-allow-x00=false",  # no string may have NUL: said once, not in every schema
                # Not expressible in the document: integers of 64 bits inside `data`, the paths of `fields`, ports.
                *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
                *("--warnings", ",".join(_WARNINGS)),
                *("--phases", "examples,coverage,fuzzing", "--no-color"),
            ],
            env={**os.environ, "SCHEMATHESIS_HOOKS": "scripts.fuzz_hooks"},
            capture_output=True,
            text=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=300, help="requests of each kind for each operation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, local_mongo(Path(folder)) as mongo:
        done = fuzz(mongo.url, options.examples)
    print(done.stdout, done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
