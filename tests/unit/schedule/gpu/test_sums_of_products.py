"""Products add to what they would be added to, where that changes nothing but the order of a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.driver.binding import assumed_facts
from tessera.frontend.build import build_kernel
from tessera.frontend.signature import Signature
from tessera.frontend.specialize import Specialization
from tessera.interp import interpret
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.mma import MmaOp
from tessera.schedule.gpu.sums_of_products import SumsOfProductsPass
from tests.unit.schedule.hopper.kernels import random

A, B = ts.Tensor["M", "K", ts.bf16], ts.Tensor["K", "N", ts.bf16]
C = ts.Tensor["M", "N", ts.f32]


def added(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 16):
            acc = 0.5 * acc + ts.tile.mma(a[m : m + 16, k : k + 16], b[k : k + 16, n : n + 16])
        c[m : m + 16, n : n + 16] = acc


def added_in_8_bits(a: ts.Tensor["M", "K", ts.fp8_e4m3], b: ts.Tensor["K", "N", ts.fp8_e5m2], c: C) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = acc + ts.tile.mma(a[m : m + 16, k : k + 32], b[k : k + 32, n : n + 16])
        c[m : m + 16, n : n + 16] = acc


def added_twice(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 16):
            p = ts.tile.mma(a[m : m + 16, k : k + 16], b[k : k + 16, n : n + 16])
            acc = acc + p + p * 2.0
        c[m : m + 16, n : n + 16] = acc


def between_barriers(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left = ts.tile.alloc_shared((16, 16), ts.bf16)
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 16):
            ts.tile.cp_async(left, a[m : m + 16, k : k + 16])
            ts.tile.commit_group()
            ts.tile.wait_group(0)
            ts.tile.barrier()
            p = ts.tile.mma(left, b[k : k + 16, n : n + 16])
            ts.tile.barrier()
            acc = acc + p
        c[m : m + 16, n : n + 16] = acc


def rewritten(function: Any, profile: str = "fast") -> Any:
    signature = Signature.of(function)
    facts = tuple(assumed_facts(param, {}) for param in signature.runtime_params)
    module = build_kernel(signature, Specialization(facts, (), (), profile)).module
    SumsOfProductsPass().apply(module)
    module.verify()
    return module


def tile_sums(module: Any) -> int:
    adds = [op for op in module.walk() if isinstance(op, ElementwiseOp) and op.fn.data == "add"]
    return sum(isinstance(operand.owner, MmaOp) for op in adds for operand in op.operands)


def test_a_product_starts_from_what_it_is_added_to() -> None:
    module = rewritten(added)
    (product,) = [op for op in module.walk() if isinstance(op, MmaOp)]
    assert isinstance(product.acc.owner, ElementwiseOp)
    assert product.acc.owner.fn.data == "mul"
    a, b, c = random(20, 40), random(40, 24), np.full((20, 24), np.nan, np.float32)
    interpret(module, [a, b, c])
    expected = np.zeros((20, 24))
    for k in range(0, 40, 16):
        part = a[:, k : k + 16].astype(np.float64) @ b[k : k + 16].astype(np.float64)
        expected = 0.5 * expected + part
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("profile", ["strict", "deterministic"])
def test_other_profiles_keep_the_order_of_sums(profile: str) -> None:
    assert tile_sums(rewritten(added, profile)) == 1


def test_a_product_with_another_use_stays() -> None:
    assert tile_sums(rewritten(added_twice)) == 1


def test_a_product_of_a_shared_buffer_stays_between_its_barriers() -> None:
    assert tile_sums(rewritten(between_barriers)) == 1


def test_products_of_8_bit_floats_are_added_apart() -> None:
    assert tile_sums(rewritten(added_in_8_bits)) == 1
