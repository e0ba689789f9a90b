"""Kernels whose barriers suffice compile: rings, branches, jumps and data that the check has to see through."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tessera as ts

F = ts.f32
ROW = ts.Tensor["m", "n", F]


def prefetch_by_parity(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])
        ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.cp_async(b[(k + 1) % 2], x[i : i + 8, k * 32 + 32 : k * 32 + 64])
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 2])
            ts.tile.barrier()


def last_copy_left_out(x: ROW, y: ROW):
    """The wait depends on whether there is a next copy."""
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        ts.tile.cp_async(b[0], x[i : i + 8, 0:32])
        ts.tile.commit_group()
        stage = 0
        for k in ts.tile.range(0, n, 32):
            if k + 32 < n:
                ts.tile.cp_async(b[1 - stage], x[i : i + 8, k + 32 : k + 64])
                ts.tile.commit_group()
                ts.tile.wait_group(1)
            else:
                ts.tile.wait_group(0)
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = ts.tile.load(b[stage])
            ts.tile.barrier()
            stage = 1 - stage


def one_barrier_a_step(x: ROW, y: ROW):
    """With three stages the copy goes to the stage before the one that was read before the barrier."""
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((3, 8, 32), F)
        for s in ts.tile.static_range(2):
            ts.tile.cp_async(b[s], x[i : i + 8, s * 32 : s * 32 + 32])
            ts.tile.commit_group()
        for k in ts.tile.range(0, n // 32):
            ts.tile.wait_group(1)
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 3])
            ts.tile.cp_async(b[(k + 2) % 3], x[i : i + 8, k * 32 + 64 : k * 32 + 96])
            ts.tile.commit_group()


def barrier_but_in_the_first_step(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            if k > 0:
                ts.tile.barrier()
            b[...] = x[i : i + 8, k : k + 32]
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = b


def same_condition_twice(x: ROW, y: ROW, mode: int):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]
        if mode > 2:
            ts.tile.barrier()
        if mode > 2:
            y[i : i + 8, 0:32] = b


def exclusive_conditions(x: ROW, y: ROW, mode: int):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]
        ts.tile.barrier()
        held = ts.tile.zeros((8, 32), F)
        if mode < 4:
            held += b
        if mode == 4:
            b[...] = held
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def stage_from_data(x: ROW, y: ROW, order: ts.Tensor["n", ts.i32]):
    """Which stages differ is known to the caller alone."""
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        b[order[0]][...] = x[i : i + 8, 0:32]
        b[order[1]][...] = x[i : i + 8, 32:64]
        ts.tile.barrier()
        y[i : i + 8, 0:32] = ts.tile.load(b[0]) + ts.tile.load(b[1])


def left_early(x: ROW, y: ROW, limit: int):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            b[...] = x[i : i + 8, k : k + 32]
            if k > limit:
                break
            ts.tile.barrier()
            y[i : i + 8, k : k + 32] = b
            ts.tile.barrier()


def filled_by_the_loop(x: ROW, y: ROW):
    """The loop over the data may have any length, also none; then nobody looks at what is read after it."""
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        for k in ts.tile.range(0, n, 32):
            b[...] = x[i : i + 8, k : k + 32]
            ts.tile.barrier()
        y[i : i + 8, 0:32] = b


def length_from_data(x: ROW, y: ROW, length: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        b = ts.tile.alloc_shared((1, 32), F)
        for k in ts.tile.range(0, length[i], 32):
            b[...] = x[i : i + 1, k : k + 32]
            ts.tile.barrier()
            y[i : i + 1, k : k + 32] = b
            ts.tile.barrier()
        y[i : i + 1, 0:32] = b


def copies_that_nobody_reads(x: ROW, y: ROW):
    """Groups without copies, waits without groups, and copies that are under way at the end harm nobody."""
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        ts.tile.wait_group(0)
        ts.tile.commit_group()
        ts.tile.wait_group(3)
        ts.tile.cp_async(b, x[i : i + 8, 0:32])
        ts.tile.commit_group()
        y[i : i + 8, 0:32] = x[i : i + 8, 0:32]


def disjoint_parts(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((32, 32), F)
        for k in ts.tile.range(0, 4):
            b[k * 8 : k * 8 + 8, :] = x[i : i + 8, k * 32 : k * 32 + 32]
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b[8:16, :]
        b[0:8, 0:32:2] = x[i : i + 8, 0:16]
        b[0:8, 1:32:2] = x[i : i + 8, 0:16]
        b.T[ts.tile.arange(32), 16] = x[i, 0:32]
        ts.tile.barrier()
        y[i : i + 8, 32:64] = b[0:8, :]


def written_where_the_index_says(x: ROW, y: ROW, places: ts.Tensor[8, ts.i32]):
    """What an index tile names is not known: elements that nothing else wrote may be read."""
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[places[:], :] = x[i : i + 8, 0:32]
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b
        y[i, 0:8] = b[places[:], 3]


def halves_of_stages(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((2, 8, 32), F)
        for k in ts.tile.range(0, n // 32):
            b[k % 2, 0:4, :] = x[i : i + 4, k * 32 : k * 32 + 32]
            b[k % 2][4:8, :] = x[i + 4 : i + 8, k * 32 : k * 32 + 32]
            ts.tile.barrier()
            y[i : i + 8, k * 32 : k * 32 + 32] = ts.tile.load(b[k % 2])


def outside_of_the_buffer(x: ROW, y: ROW):
    """Elements that a buffer does not have are neither read nor written."""
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8,), F)
        b[8:16] = x[i, 0:8]
        y[i, 0:8] = b[8:16]


def added_in_place(x: ROW, y: ROW):
    for i in ts.tile.grid((m, 8)):
        b = ts.tile.alloc_shared((8, 32), F)
        b[...] = x[i : i + 8, 0:32]
        ts.tile.barrier()
        b[...] += 1.0
        ts.tile.barrier()
        b[0:4, :] *= 2.0
        ts.tile.barrier()
        y[i : i + 8, 0:32] = b


KERNELS = [
    function
    for function in list(globals().values())
    if callable(function) and getattr(function, "__module__", "") == __name__
]


@pytest.mark.parametrize("function", KERNELS, ids=lambda function: function.__name__)
def test_it_compiles(function: Callable[..., None]) -> None:
    ts.compile(ts.kernel(function), target="sm_80", dump=["tirt"])
