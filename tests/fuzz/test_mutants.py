"""The faults of `mutants` can be planted in the compiler as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import tessera
from tests.fuzz.mutants import MUTANTS, Mutant

ROOT = Path(tessera.__file__).parent


def test_there_are_enough_faults_of_different_names() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_one_change_of_the_tree(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
