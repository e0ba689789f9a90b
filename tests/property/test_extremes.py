"""Slices that start anywhere in the range of an index are bounded, and so are stages of shared buffers."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.interp import interpret
from tessera.ir.passes import PassRunner
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.property.test_random_kernels import built

SIZE, GUARD = 70, 128
STARTS = sorted(
    {0, 1, -1, 5, -63, -64, -65, SIZE - 1, SIZE, SIZE + 1}
    | {sign * (2**power) + near for sign in (1, -1) for power in (31, 32, 62) for near in (-1, 0, 1)}
    | {
        end + near
        for end in (-(2**63), 2**63 - 1)
        for near in (0, 1, 10, 63, 64, 69, 70, -1, -10, -63, -64, -70)
        if -(2**63) <= end + near < 2**63
    }
)


@ts.kernel
def move(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor[64, ts.f32], k: int):
    y[k : k + 64] = ts.tile.load(x[k : k + 64], fill=5.0) + 1.0
    z[:] = ts.tile.load(x[k : k + 64], fill=5.0)


@ts.kernel
def rows(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32], k: int, j: int):
    y[k : k + 8, j : j + 9] = x[k : k + 8, j : j + 9].T.T + 1.0


@ts.kernel
def update(y: ts.Tensor["n", ts.i8], k: int):
    for t in ts.tile.range(2):
        y[k : k + 17] = (y[k : k + 17].to(ts.i32) + t + 1).to(ts.i8)


@ts.kernel
def stages(x: ts.Tensor[64, ts.f32], y: ts.Tensor[64, ts.f32], z: ts.Tensor[2, 64, ts.f32], k: int):
    s = ts.tile.alloc_shared((2, 64), ts.f32)
    s[0] = ts.tile.full((64,), 3.0)
    s[1] = ts.tile.full((64,), 4.0)
    ts.tile.barrier()
    s[k] = x[:] + 1.0
    ts.tile.barrier()
    y[:] = s[k] * 2.0
    z[0, :] = s[0]
    z[1, :] = s[1]


@ts.kernel
def products(x: ts.Tensor[16, 16, ts.f32], y: ts.Tensor[16, 16, ts.f32], z: ts.Tensor[16, 16, ts.f32], k: int):
    s = ts.tile.alloc_shared((2, 16, 16), ts.f32)
    s[0] = x[:, :]
    s[1] = ts.tile.zeros((16, 16), ts.f32)
    ts.tile.barrier()
    y[:, :] = ts.tile.mma(s[k], s[0]) + ts.tile.mma(s[0], s[k].T)
    ts.tile.barrier()
    ts.tile.cp_async(s[k], x[:, :])
    ts.tile.barrier()
    z[:, :] = s[1]


def guarded(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a copy between guard elements, and all of it."""
    around = np.full(array.size + 2 * GUARD, 99, array.dtype)
    inner = around[GUARD:-GUARD].reshape(array.shape)
    inner[...] = array
    return inner, around


def untouched(around: np.ndarray) -> bool:
    """Return whether the guard elements are as they were."""
    return bool((np.concatenate([around[:GUARD], around[-GUARD:]]) == 99).all())


def window(start: int, length: int, size: int) -> tuple[slice, slice]:
    """Return which part of a tile, and of a tensor, a slice is; counted in Python's integers."""
    low, high = max(start, 0), max(min(start + length, size), max(start, 0))
    low = min(low, size)
    high = max(min(high, size), low)
    return slice(low - start, high - start) if high > low else slice(0, 0), slice(low, high)


@pytest.mark.parametrize("start", STARTS)
def test_slices_that_start_anywhere_are_bounded(start: int) -> None:
    x = np.arange(SIZE, dtype=np.float32)
    (y, around), (z, also) = guarded(np.zeros(SIZE, np.float32)), guarded(np.zeros(64, np.float32))
    move(x, y, z, start)
    tile, tensor = window(start, 64, SIZE)
    loaded, stored = np.full(64, 5, np.float32), np.zeros(SIZE, np.float32)
    loaded[tile] = x[tensor]
    stored[tensor] = x[tensor] + 1
    np.testing.assert_array_equal(z, loaded)
    np.testing.assert_array_equal(y, stored)
    assert untouched(around)
    assert untouched(also)
    bytes_, bounds = guarded(np.zeros(SIZE, np.int8))
    update(bytes_, start)
    want = np.zeros(SIZE, np.int8)
    want[window(start, 17, SIZE)[1]] = 3
    np.testing.assert_array_equal(bytes_, want)
    assert untouched(bounds)


@pytest.mark.parametrize("start", STARTS[::3])
@pytest.mark.parametrize("other", [0, 3, -(2**63), 2**63 - 1])
def test_boxes_that_start_anywhere_are_bounded(start: int, other: int) -> None:
    x = np.arange(11 * 13, dtype=np.float32).reshape(11, 13)
    y, around = guarded(np.zeros_like(x))
    rows(x, y, start, other)
    want = np.zeros_like(x)
    part = window(start, 8, 11)[1], window(other, 9, 13)[1]
    want[part] = x[part] + 1
    np.testing.assert_array_equal(y, want)
    assert untouched(around)


FAR = [2, -1, 10**9, -(2**63), 2**63 - 1, 2**58, 2**32]
TARGETS = ["cpu", "sm_70", "sm_80", "sm_90a"]


def run(kernel: Any, target: str, *arguments: Any) -> None:
    """Call a kernel on the CPU, or interpret it as it is scheduled for a GPU, where no index is checked."""
    if target == "cpu":
        kernel(*arguments)
        return
    module = built(kernel.__wrapped__, arguments)
    passes = schedule_passes(target_named(target), Knobs.from_config({}))
    PassRunner(verify="pass").run(module, "schedule", [*CANONICALIZE, *passes])
    interpret(module, list(arguments))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stage", [0, 1, *FAR])
def test_stages_outside_a_buffer_read_as_zeros_and_are_not_written(stage: int, target: str) -> None:
    x = np.arange(64, dtype=np.float32)
    y, z = np.full(64, -1, np.float32), np.full((2, 64), -1, np.float32)
    run(stages, target, x, y, z, stage)
    kept = np.stack([np.full(64, 3), np.full(64, 4)]).astype(np.float32)
    if stage in (0, 1):
        kept[stage] = x + 1
    np.testing.assert_array_equal(z, kept)
    np.testing.assert_array_equal(y, 2 * kept[stage] if stage in (0, 1) else np.zeros(64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stage", [0, 1, *FAR[:2]])
def test_stages_outside_a_buffer_are_zeros_in_products_and_get_no_copies(stage: int, target: str) -> None:
    x = (np.arange(256, dtype=np.float32) % 7).reshape(16, 16)
    y, z = np.full_like(x, -1), np.full_like(x, -1)
    run(products, target, x, y, z, stage)
    np.testing.assert_array_equal(y, x @ x + x @ x.T if stage == 0 else np.zeros_like(x))
    np.testing.assert_array_equal(z, x if stage == 1 else np.zeros_like(x))


@pytest.mark.parametrize("kernel", [move, rows, update])
def test_offsets_are_bounded_on_gpus_before_they_are_added_to(kernel: Any) -> None:
    text = str(ts.compile(kernel, target="sm_90a", dump=["tirt"]).dumps["tirt"])
    assert '"maximum"' in text
    assert '"minimum"' in text
