"""Shared memory: asynchronous copies arrive when waited for; a missing wait or barrier is reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tessera.errors import DeviceError, Frame, Location
from tessera.interp import interpret
from tessera.ir.locations import to_loc
from tessera.ir.tile import memory, mma, shared, structure
from tessera.ir.tile.types import TensorType
from tests.unit.interp.kernels import tensor_kernel
from tests.unit.ir.samples import F32, At

MATRIX = TensorType.of([-1, -1], F32)


def run(steps: Callable, rows: int = 6, **options) -> np.ndarray:
    """Run `steps(at, source, target, buffer)` on a shared buffer of 4 x 8; returns p1."""

    def body(at, source, target):
        steps(at, source, target, at(shared.AllocSharedOp([4, 8], F32, "xor")))

    source = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
    target = np.full((4, 8), -1, np.float32)
    interpret(tensor_kernel([MATRIX, MATRIX], body, [1]), [source, target], **options)
    return target


def copy(at, source, buffer, row: int = 0) -> None:
    op = shared.CpAsyncOp(buffer, source, [at.const(row), at.const(0)], [4, 8])
    op.location = to_loc(Location(Frame("gemm.py", 7, 9)))
    at.do(op)


def commit(at) -> None:
    at.do(shared.CommitGroupOp())


def settle(at, pending: int = 0) -> None:
    at.do(shared.WaitGroupOp(pending))
    at.do(shared.BarrierOp())


def store_out(at, buffer, target) -> None:
    tile = at(shared.SharedLoadOp(buffer))
    at.do(memory.StoreOp(tile, target, [at.const(0), at.const(0)], [4, 8]))


def test_a_copy_arrives_at_its_wait_and_pads_with_zeros() -> None:
    def steps(at, source, target, buffer):
        copy(at, source, buffer, row=3)
        commit(at)
        settle(at)
        store_out(at, buffer, target)

    got = run(steps)
    assert np.array_equal(got[:3], np.arange(24, 48, dtype=np.float32).reshape(3, 8))
    assert not got[3].any()


def test_stages_arrive_group_by_group() -> None:
    def body(at, source, target):
        ring = at(shared.AllocSharedOp([2, 4, 8], F32))
        for stage in (0, 1):
            copy(at, source, at(shared.SharedViewOp(ring, at.const(stage))), row=stage)
            commit(at)
        settle(at, pending=1)  # the first has arrived, the second not yet
        store_out(at, at(shared.SharedViewOp(ring, at.const(0))), target)
        store_out(at, at(shared.SharedViewOp(ring, at.const(1))), target)

    module = tensor_kernel([MATRIX, MATRIX], body, [1])
    source, target = np.arange(48, dtype=np.float32).reshape(6, 8), np.zeros((4, 8), np.float32)
    with pytest.raises(DeviceError, match="while an asynchronous copy to it is under way"):
        interpret(module, [source, target])
    assert np.array_equal(target, source[:4])


def no_commit(at, source, target, buffer):
    copy(at, source, buffer)
    settle(at)
    store_out(at, buffer, target)


def no_wait(at, source, target, buffer):
    copy(at, source, buffer)
    commit(at)
    at.do(shared.BarrierOp())
    store_out(at, buffer, target)


def no_barrier(at, source, target, buffer):
    copy(at, source, buffer)
    commit(at)
    at.do(shared.WaitGroupOp(0))
    store_out(at, buffer, target)


def nothing_written(at, source, target, buffer):
    store_out(at, buffer, target)


def overwritten_while_read(at, source, target, buffer):
    copy(at, source, buffer)
    commit(at)
    settle(at)
    store_out(at, buffer, target)
    copy(at, source, buffer)


def overwritten_while_copied(at, source, target, buffer):
    copy(at, source, buffer)
    copy(at, source, buffer)


def stored_twice(at, source, target, buffer):
    tile = at(memory.LoadOp(source, [at.const(0), at.const(0)], [4, 8]))
    at.do(shared.SharedStoreOp(tile, buffer))
    at.do(shared.SharedStoreOp(tile, buffer))


def stored_and_read(at, source, target, buffer):
    tile = at(memory.LoadOp(source, [at.const(0), at.const(0)], [4, 8]))
    at.do(shared.SharedStoreOp(tile, buffer))
    store_out(at, buffer, target)


@pytest.mark.parametrize(
    ("steps", "code", "message"),
    [
        (no_commit, "race", "under way, by cp_async at gemm.py:7:9"),
        (no_wait, "race", "under way"),
        (no_barrier, "race", "written after the last barrier"),
        (nothing_written, "uninitialized-read", "nothing was written to"),
        (overwritten_while_read, "race", "read after the last barrier, by shared_load"),
        (overwritten_while_copied, "race", "while it is being copied to, by cp_async at gemm.py:7:9"),
        (stored_twice, "race", "twice with no barrier"),
        (stored_and_read, "race", "written after the last barrier, by shared_store"),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_what_is_missing_is_reported(steps: Callable, code: str, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        run(steps)
    assert caught.value.code == code
    assert message in str(caught.value)
    assert "element (0, 0)" in str(caught.value)


def test_without_checks_an_early_read_sees_no_data_of_the_copy() -> None:
    assert not np.array_equal(run(no_wait, checks=False), np.arange(32, dtype=np.float32).reshape(4, 8))


def test_a_stage_outside_the_ring() -> None:
    def steps(at, source, target, buffer):
        at(shared.SharedViewOp(buffer, at.const(4)))

    with pytest.raises(DeviceError, match="stage 4 does not exist in a buffer of 4 stages"):
        run(steps)


def test_every_program_has_its_own_buffers() -> None:
    def body(at, source, target):
        grid = structure.GridOp([at.const(8)], [4])
        at.do(grid)
        inner, row = At(grid.body.block), grid.body.block.args[0]
        buffer = inner(shared.AllocSharedOp([4, 8], F32))
        tile = inner(memory.LoadOp(source, [row, inner.const(0)], [4, 8]))
        inner.do(shared.SharedStoreOp(tile, buffer))
        inner.do(shared.BarrierOp())
        out = inner(shared.SharedLoadOp(buffer))
        inner.do(memory.StoreOp(out, target, [row, inner.const(0)], [4, 8]))

    source, target = np.random.default_rng(0).random((8, 8), np.float32), np.zeros((8, 8), np.float32)
    interpret(tensor_kernel([MATRIX, MATRIX], body, [1]), [source, target])
    assert np.array_equal(source, target)


def test_mma_reads_buffers_through_transposed_views() -> None:
    def body(at, source, target):
        buffer = at(shared.AllocSharedOp([4, 8], F32))
        at.do(shared.SharedStoreOp(at(memory.LoadOp(source, [at.const(0), at.const(0)], [4, 8])), buffer))
        at.do(shared.BarrierOp())
        turned = at(shared.SharedTransposeOp(buffer, [1, 0]))
        acc = at(memory.LoadOp(target, [at.const(0), at.const(0)], [4, 4]))
        at.do(memory.StoreOp(at(mma.MmaOp(buffer, turned, acc, "f32")), target, [at.const(0)] * 2, [4, 4]))

    source, target = np.random.default_rng(0).random((4, 8), np.float32), np.ones((4, 4), np.float32)
    interpret(tensor_kernel([MATRIX, MATRIX], body, [1]), [source, target])
    assert np.allclose(target, 1 + source @ source.T, rtol=1e-6)
