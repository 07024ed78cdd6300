"""A short fuzzing run by the OpenAPI document; `make fuzz` is the long one."""

from __future__ import annotations

import pytest

from scripts.fuzz import fuzz

pytestmark = pytest.mark.slow


def test_no_response_differs_from_the_document(mongo_url: str) -> None:
    done = fuzz(mongo_url, examples=3)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "No issues found" in done.stdout
