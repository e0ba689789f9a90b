"""The faults of `mutants` can be planted in the compiler as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import tessera
from tessera.target.registry import target_named
from tessera.tools.fuzz.command import fuzz
from tests.fuzz.mutants import MUTANTS

ROOT = Path(tessera.__file__).parent


def test_there_are_enough_faults_of_different_names() -> None:
    assert len(MUTANTS) >= 60
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_each_fault_is_one_change_of_the_tree() -> None:
    for mutant in MUTANTS:  # one test, of which no run leaves out cases
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, mutant.name
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.parametrize("device", sorted({mutant.device for mutant in MUTANTS} - {"amx"}))
def test_the_fuzzer_knows_what_it_is_told_of_a_fault(device: str) -> None:
    for mutant in MUTANTS:
        if mutant.device == device:
            how = ["--device", device, *(part for switch in mutant.switches for part in ("--set", switch))]
            fuzz.main([*how, "--show", "--seed", "1"], standalone_mode=False)
            assert not mutant.target or target_named(mutant.target)
