"""What linters with their default rules say of the OpenAPI document as it is served: nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.node import TOOLS, node_modules, run


def test_redocly_has_no_error_and_no_warning(document: Path, tmp_path: Path) -> None:
    printed = run(node_modules() / ".bin/redocly", "lint", "--format", "json", document, cwd=tmp_path)
    report = json.JSONDecoder().raw_decode(printed[printed.index("{") :])[0]
    assert (report["totals"]["errors"], report["totals"]["warnings"]) == (0, 0), report["problems"]


def test_spectral_has_no_error_no_warning_and_no_hint(document: Path, tmp_path: Path) -> None:
    options = ("--ruleset", TOOLS / "spectral.yaml", "--fail-severity", "hint")
    run(node_modules() / ".bin/spectral", "lint", *options, document, cwd=tmp_path)
