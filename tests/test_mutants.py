"""The list of `make mutants` stays up to date with the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutants.__main__ import mutated
from scripts.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_changes_one_place_of_the_code(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    compile(changed := mutated(source, mutant), mutant.file, "exec")
    assert changed != source
    assert all((ROOT / path).exists() for path in mutant.tests)


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
