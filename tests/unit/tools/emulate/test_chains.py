"""Chains of instructions that `scripts/check_assembler.py` runs on GPUs give in the emulator what NumPy says."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.backends.nvidia.assembler_faults import respelled
from tessera.target.registry import target_named
from tessera.tools.emulate.access import marked
from tessera.tools.emulate.machine import Grid, Machine
from tessera.tools.emulate.memory import Device
from tessera.tools.emulate.parse import parse
from tessera.tools.emulate.values import step_of
from tests.unit.tools.emulate.running import run

assert run is not None  # importing it registers the instructions
TARGET = target_named("sm_90a")
HEADER = ".version 8.3\n.target sm_90a\n.address_size 64\n"


@pytest.fixture(scope="module")
def script() -> Any:
    """Return the script."""
    path = Path(__file__).resolve().parents[4] / "scripts/check_assembler.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def emulated(text: str, given: Any, chains: int) -> Any:
    """Run an entry point in one program of 64 threads; return what each chain gives."""
    device, out = Device(), np.zeros((chains, 64), np.uint64)
    raw = [np.ascontiguousarray(each).view(np.uint8).reshape(-1) for each in (given, out)]
    params = [device.add(each, np.ones(len(each), bool)).to_bytes(8, "little") for each in raw]
    device.build()
    module = parse(text)
    entry = module.entries["chains"]
    with np.errstate(all="ignore"):
        machine = Machine(module, entry, Grid(1, 0, 1, 64, 1, 0), device, params, {}, 10**8)
        machine.run([step_of(one) for one in marked(entry.code)])
    return device.back(1).view(np.uint64).reshape(chains, 64)


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_chains_are_what_the_emulator_makes_of_them(script: Any, seed: int, rewritten: bool) -> None:
    rng = random.Random(seed)
    pairs = {width: (script.inputs(width, rng), script.inputs(width, rng)) for width in script.WIDTHS}
    text, chains = script.entry("chains", rng, pairs)
    ptx = HEADER + text
    given = np.concatenate([one for width in script.WIDTHS for one in pairs[width]])
    found = emulated(respelled(ptx, TARGET) if rewritten else ptx, given, len(chains))
    wrong = [chain.lines for chain, row in zip(chains, found, strict=True) if (row != chain.result).any()]
    assert not wrong, "\n\n".join("\n".join(lines) for lines in wrong)


def test_chains_are_of_all_kinds(script: Any) -> None:
    rng = random.Random(1)
    pairs = {width: (script.inputs(width, rng), script.inputs(width, rng)) for width in script.WIDTHS}
    text = "".join(script.entry("chains", rng, pairs)[0] for _ in range(20))
    kinds = (
        "mul.hi.",
        "mul.wide.",
        "mad.lo.",
        "div.s",
        "div.u",
        "rem.s",
        "rem.u",
        "selp.b16",
        "cvt.rn.f32",
        "cvt.rzi.",
    )
    assert [kind for kind in kinds if kind not in text] == []


def test_numbers_are_divided_and_rounded_as_the_isa_says(script: Any) -> None:
    assert [script.quotient(a, b) for a, b in ((7, 2), (-7, 2), (7, -2), (-7, -2))] == [3, -3, -3, 3]
    assert [script.remainder(a, b) for a, b in ((7, 2), (-7, 2), (7, -2), (-7, -2))] == [1, -1, 1, -1]
    assert script.whole(np.array([-1, 300, 1e30, -1e30], np.float32), 16, "s").tolist() == [65535, 300, 32767, 32768]
    assert script.whole(np.array([-1, 2.0**64, 5]), 64, "u").tolist() == [0, 2**64 - 1, 5]
    assert (script.spelled(1.0, 32), script.spelled(-7.0, 64)) == ("0f3F800000", "0dC01C000000000000")
