"""What is stored back to a shared buffer: tiles and views of its own contents, some of which are the same as it.

A tile is what the buffer held when it was loaded. A view is read where it is used, so that no barrier can come between
reading it and storing it: it is never stored to its own buffer.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.driver.pipeline import compile_tiles
from tessera.ir.record import record_on
from tessera.platforms.platform import platform_named
from tessera.target.registry import target_named
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device
from tessera.verify import check_shared
from tests.errors.support import imported
from tests.unit.frontend.support import run
from tests.unit.lower.support import aligned

SIZE = 8

TILES = {
    "ts.tile.load(b)": lambda x: x,
    "ts.tile.load(b) + 1": lambda x: x + 1,
    "b + 1": lambda x: x + 1,
    "ts.tile.load(b.T)": lambda x: x.T,
    "ts.tile.load(b.T.T)": lambda x: x,
    "ts.tile.load(b).T": lambda x: x.T,
    "ts.tile.load(b).T.T": lambda x: x,
    "ts.tile.load(b.T).T": lambda x: x,
    "ts.tile.transpose(ts.tile.load(b.T), (1, 0))": lambda x: x,
    "ts.tile.transpose(ts.tile.load(b), (0, 1))": lambda x: x,
    "ts.tile.reshape(b, (8, 8))": lambda x: x,
    "ts.tile.reshape(b.T, (8, 8))": lambda x: x.T,
    "ts.tile.reshape(ts.tile.reshape(b, (4, 16)).T, (8, 8))": lambda x: x.reshape(4, 16).T.reshape(8, 8),
    "ts.tile.reshape(ts.tile.reshape(b, (4, 16)), (8, 8))": lambda x: x,
    "ts.tile.flip(ts.tile.flip(ts.tile.load(b), 0), 0)": lambda x: x,
}
"""Tiles of what a buffer holds, and what they are of it."""

VIEWS = ("b", "b.T", "b.T.T", "b.T.T.T", "ts.tile.transpose(b, (0, 1))", "ts.tile.transpose(b.T, (1, 0))")

HEAD = f"""
import tessera as ts


def kernel(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, {SIZE}), (n, {SIZE})):
        b = ts.tile.alloc_shared(({SIZE}, {SIZE}), ts.f32)
        b[...] = x[i : i + {SIZE}, j : j + {SIZE}]
        ts.tile.barrier()
"""

TAIL = f"""
        b[...] = v
        ts.tile.barrier()
        y[i : i + {SIZE}, j : j + {SIZE}] = ts.tile.load(b)
"""


def kernel(value: str, barrier: bool, folder: Path) -> Any:
    """Return a kernel that stores an expression of a buffer's contents to it."""
    path = folder / "stored_back.py"
    between = "        ts.tile.barrier()\n" if barrier else ""
    path.write_text(f"{HEAD}        v = {value}\n{between}{TAIL}")
    return imported(path).kernel


def emulated(function: Any, x: np.ndarray) -> np.ndarray:
    """Return what the kernel's PTX stores on an emulated GPU."""
    module = aligned(function)
    record_on(module, target="sm_80", after="frontend", knobs={}, facts={})
    target = target_named("sm_80")
    artifact = compile_tiles(module, target, ("ptx",), platform_named(target.backend).write)
    device, y = Device(), np.zeros_like(x)
    pointers = [device.add(array.reshape(-1).view(np.uint8), np.ones(array.nbytes, bool)) for array in (x, y)]
    Emulation(artifact).run(device, pointers, [(x.shape, (x.shape[1], 1))] * 2, [], Limits(10**7, order=1))
    return device.back(1).view(np.float32).reshape(x.shape)


@pytest.mark.parametrize("value", TILES)
def test_a_tile_is_stored_back_after_a_barrier(value: str, tmp_path: Path) -> None:
    function = kernel(value, True, tmp_path)
    x = np.arange(4 * SIZE * SIZE, dtype=np.float32).reshape(2 * SIZE, 2 * SIZE)
    expected = np.block([[TILES[value](part) for part in np.hsplit(rows, 2)] for rows in np.vsplit(x, 2)])
    interpreted, compiled = np.zeros_like(x), np.zeros_like(x)
    run(function, x, interpreted)
    np.testing.assert_array_equal(interpreted, expected)
    ts.kernel(function)(x, compiled)
    np.testing.assert_array_equal(compiled, expected)
    np.testing.assert_array_equal(emulated(function, x), expected)


@pytest.mark.parametrize(("value", "barrier"), [*((v, False) for v in TILES), *product(VIEWS, (False, True))])
def test_else_it_races(value: str, barrier: bool, tmp_path: Path) -> None:
    function = kernel(value, barrier, tmp_path)
    module = aligned(function)
    with pytest.raises(ts.LanguageError, match="writes a shared buffer that was read after the last barrier") as caught:
        check_shared(module)
    assert caught.value.code == "race"
    assert ("read where it is used" in str(caught.value)) == (value in VIEWS)
    x = np.zeros((SIZE, SIZE), np.float32)
    with pytest.raises(ts.TesseraError) as interpreted:
        run(function, x, x.copy())
    assert interpreted.value.code == "race"
