"""What one program does to memory happens in its order, whatever is fused, stored or computed in place."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.property.ordered import PRIME, OrderedProgram, ordered_program

GUARD, GUARD_VALUE = 64, 77


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the modules of the kernels, which the compiler reads."""
    return tmp_path_factory.mktemp("ordered")


def kernel_of(program: OrderedProgram, path: Path) -> Any:
    """Write the module of a program and import its kernel."""
    path.write_text(program.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.k


def guarded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a copy that lies between guard elements, and the array with these."""
    around = np.full(values.size + 2 * GUARD, GUARD_VALUE, values.dtype)
    inner = around[GUARD:-GUARD].reshape(values.shape)
    inner[...] = values
    return inner, around


def check(program: OrderedProgram, kernel: Any, seed: int, numbers: Sequence[int]) -> None:
    """Compare one call with what the program means."""
    rng = np.random.default_rng(seed)
    dtype = getattr(ts, program.dtype).numpy()
    given = [
        rng.integers(0, PRIME, (2, program.rows)).astype(dtype),
        rng.integers(0, PRIME, (2, *program.sides)).astype(dtype),
        np.full((2, program.outputs), -5, np.int32),
    ]
    wanted = [array.copy() for array in given]
    program.expected(*wanted, *numbers)
    got = [guarded(array) for array in given]
    kernel(*(inner for inner, _ in got), *numbers)
    for name, want, (inner, around) in zip("XMO", wanted, got, strict=True):
        np.testing.assert_array_equal(inner, want, f"{name} of seed {seed}\n{program.source}")
        edges = np.concatenate([around[:GUARD], around[-GUARD:]])
        assert (edges == GUARD_VALUE).all(), f"written outside {name} by seed {seed}\n{program.source}"


@pytest.mark.parametrize("seed", range(30))
def test_programs_do_what_they_say_in_order(folder: Path, seed: int) -> None:
    program = ordered_program(seed)
    kernel = kernel_of(program, folder / f"ordered_{seed}.py")
    for numbers in ((0, 1), (2, 3)):
        check(program, kernel, seed, numbers)
