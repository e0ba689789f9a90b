"""Pipelines, barriers of copies, groups and roles: what they mean, in the interpreter and on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.driver.compile import compile as compile_kernel
from tests.unit.frontend.support import built, ops, run

A, B = ts.Tensor["M", "K", ts.f32], ts.Tensor["K", "N", ts.f32]
C = ts.Tensor["M", "N", ts.f32]


def piped(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((3, 16, 8), ts.f32), ts.tile.alloc_shared((3, 8, 16), ts.f32)
        acc = ts.tile.zeros((16, 16), ts.f32)
        ts.tile.pipeline.begin()
        ts.tile.async_copy_2d(left[0], a[m : m + 16, 0:8])
        ts.tile.async_copy_2d(right[0], b[0:8, n : n + 16])
        ts.tile.pipeline.commit()
        slot = 0
        for k in ts.tile.range(0, K, 8):
            ts.tile.pipeline.begin()
            ts.tile.async_copy_2d(left[(slot + 1) % 3], a[m : m + 16, k + 8 : k + 16])
            ts.tile.async_copy_2d(right[(slot + 1) % 3], b[k + 8 : k + 16, n : n + 16])
            ts.tile.pipeline.commit()
            ts.tile.pipeline.wait(slot, pending=1)
            acc = ts.tile.mma(left[slot], right[slot], acc)
            slot = ts.tile.pipeline.swap(slot, 3)
        ts.tile.wait_group(0)
        c[m : m + 16, n : n + 16] = acc


def in_roles(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((2, 16, 8), ts.f32), ts.tile.alloc_shared((2, 8, 16), ts.f32)
        full, empty = ts.tile.mbarrier.alloc(2), ts.tile.mbarrier.alloc(2)
        acc = ts.tile.zeros((16, 16), ts.f32)
        slot = 0
        for k in ts.tile.range(0, K, 8):
            with ts.tile.role("producer", warps=4, registers=40):
                ts.tile.mbarrier.wait(empty[slot])
                ts.tile.async_copy_2d(left[slot], a[m : m + 16, k : k + 8])
                ts.tile.async_copy_2d(right[slot], b[k : k + 8, n : n + 16])
                ts.tile.mbarrier.arrive(full[slot])
            with ts.tile.role("consumer", warps=4, registers=232):
                ts.tile.mbarrier.wait(full[slot])
                acc = ts.tile.mma(left[slot], right[slot], acc)
                ts.tile.mbarrier.arrive(empty[slot])
            slot = ts.tile.pipeline.swap(slot)
        c[m : m + 16, n : n + 16] = acc


@pytest.mark.parametrize("kernel", [piped, in_roles])
@pytest.mark.parametrize("k", [1, 8, 45])
def test_copies_are_those_that_were_waited_for(kernel: Any, k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((17, k), (k, 33)))
    for call in (lambda *args: run(kernel, *args), ts.kernel(kernel)):
        c = np.full((17, 33), np.nan, np.float32)
        call(a, b, c)
        np.testing.assert_array_equal(c, a @ b)


def test_roles_ask_the_schedule() -> None:
    module = compile_kernel(ts.kernel(in_roles), target="sm_90a", dump=["tirh"]).dumps["tirh"]
    assert "num_warps = 4 : i64, producer_registers = 40 : i64, consumer_registers = 232 : i64" in module
    assert ops(built(in_roles), "alloc_barriers") == []  # those of rings are the schedule's


def test_a_tuning_point_goes_before_what_roles_ask_for() -> None:
    kernel = ts.kernel.autotune(space={"num_warps": [8]})(in_roles)
    assert "num_warps = 8 : i64" in compile_kernel(kernel, target="sm_90a", dump=["tirh"]).dumps["tirh"]


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_groups_reduce_all_elements(name: str) -> None:
    def kernel(x: ts.Tensor["n", "m", ts.f32], r: ts.Tensor["n", 3, ts.f32], op: ts.constexpr) -> None:
        for i in ts.tile.grid((n, 1)):
            row = x[i : i + 1, 0:7]
            ts.tile.group.barrier()
            r[i, 0] = ts.tile.group.reduce(row, op)
            if ts.tile.group.any(row > 3.0):
                r[i, 1] = 1.0
            if ts.tile.group.all(row > -2.0):
                r[i, 2] = 1.0

    rng = np.random.default_rng(1)
    x = rng.integers(-3, 5, (6, 7)).astype(np.float32)
    r = np.zeros((6, 3), np.float32)
    run(kernel, x, r, constexprs={"op": name})
    expected = np.stack([getattr(x, name)(1), (x > 3).any(1), (x > -2).all(1)], 1)
    np.testing.assert_array_equal(r, expected)


def test_each_reduction_has_its_name() -> None:
    def kernel(x: ts.Tensor["n", ts.f32], r: ts.Tensor[4, ts.f32]) -> None:
        for _ in ts.tile.grid((1, 1)):
            row = x[0:7]
            r[0], r[1] = ts.tile.group.sum(row), ts.tile.group.prod(row)
            r[2], r[3] = ts.tile.group.max(row), ts.tile.group.min(row)

    x, r = np.float32([2, -1, 3, 1, 0.5, 4, 1]), np.zeros(4, np.float32)
    run(kernel, x, r)
    np.testing.assert_array_equal(r, [x.sum(), x.prod(), x.max(), x.min()])


def test_statements_of_a_role_are_those_around_it() -> None:
    """Names that a role binds live on, loops carry them, and its own loops may be left."""

    def kernel(x: ts.Tensor["n", ts.f32], r: ts.Tensor["n", ts.f32]) -> None:
        for i in ts.tile.grid((n, 4)):
            total = ts.tile.zeros((4,), ts.f32)
            with ts.tile.role("consumer"):
                last = 0
                for k in ts.tile.range(5):
                    if k == 3:
                        break
                    total += x[i : i + 4]
                    last = k + 1
            r[i : i + 4] = total + last

    x, r = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    run(kernel, x, r)
    np.testing.assert_array_equal(r, 3 * x + 3)


def test_registers_that_do_not_fit_are_told() -> None:
    def kernel(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: C) -> None:
        for m, n in ts.tile.grid((M, 128), (N, 128)):
            acc = ts.tile.zeros((128, 128), ts.f32)
            with ts.tile.role("producer", registers=200):
                ts.tile.commit_group()
            for k in ts.tile.range(0, K, 64):
                acc = ts.tile.mma(a[m : m + 128, k : k + 64], b[k : k + 64, n : n + 128], acc)
            c[m : m + 128, n : n + 128] = acc

    dims = {"M": 512, "N": 512, "K": 512}
    text = ts.kernel(kernel).compile(target="sm_90a", dims=dims, dump=["tirh"]).dumps["tirh"]
    assert "24 and 240 registers: 200 and 240 registers a thread are 87040 in all" in text
    assert "producer 24" in text
