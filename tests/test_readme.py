"""What the README lists is what the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from service.http.errors import _HTTP, _INTERNAL

ROOT = Path(__file__).parents[1]


def types_in_the_code() -> set[str]:
    """Return the `type` of every problem that the service can name."""
    found = {kind for kind, _, _ in [*_HTTP.values(), _INTERNAL]}
    for folder in ("schemas", "service"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("problem", "invalid", "_refused") and isinstance(node.args[0], ast.Constant):
                    found.add(str(node.args[0].value))
    return found


def test_the_types_of_errors_are_found_in_the_code() -> None:
    decided = {"missing", "unknown_field", "string_type", "datetime_invalid", "value_error", "json_invalid"}
    decided |= {"auth_missing", "auth_invalid", "scope_missing", "not_found", "too_large", "unavailable"}
    assert decided <= types_in_the_code()


def test_the_readme_has_every_type_of_error() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)) == types_in_the_code()
