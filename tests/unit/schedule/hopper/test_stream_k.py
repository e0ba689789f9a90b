"""Steps of the last tiles shared out over all programs: what they give, and that what is lost is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DeviceError, LanguageError
from tessera.interp import interpret
from tessera.ir.tile.memory import StoreOp
from tessera.ir.tile.roles import BulkStoreOp
from tessera.ir.tile.stream import CollectSumsOp, LeaveSumsOp
from tessera.schedule.knobs import Knobs
from tests.unit.schedule.hopper.kernels import (
    attention,
    gemm,
    gemm_scaled,
    gemm_stored_transposed,
    gemm_transposed,
    gemm_wide,
    has_roles,
    note,
    random,
    scheduled,
)
from tests.unit.schedule.hopper.test_split_k import gated, scaled_in_the_loop, started_at_one, stored_in_the_loop


def triangle(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, m + 64, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def product(size: tuple[int, int, int]) -> tuple[Any, Any, Any, Any]:
    m, n, k = size
    a, b, c = random(m, k), random(k, n), np.full((m, n), np.nan, np.float32)
    return a, b, c, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("programs", [1, 3, 4, 7])
@pytest.mark.parametrize("size", [(64, 64, 64), (77, 72, 200), (200, 136, 72), (1, 8, 1032), (320, 64, 328)])
def test_a_shared_product_equals_float64(size: tuple[int, int, int], programs: int) -> None:
    module = scheduled(gemm, dict(zip("MNK", size, strict=True)), stream_k=1)
    assert has_roles(module)
    assert note(module, "stream_k") == ""
    a, b, c, exact = product(size)
    interpret(module, [a, b, c], programs=programs)
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5 * (size[2] + 1))


@pytest.mark.parametrize("k", [0, 8, 64, 200])
def test_loops_of_any_length_even_none(k: int) -> None:
    module = scheduled(gemm, {"M": 136, "N": 136, "K": 64}, stream_k=1)
    assert has_roles(module)
    a, b, c, exact = product((136, 136, k))
    interpret(module, [a, b, c], programs=4)
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5 * (k + 1))


@pytest.mark.parametrize("function", [gemm_wide, gemm_transposed, gemm_scaled])
def test_operands_of_any_kind(function: Any) -> None:
    module = scheduled(function, {"M": 136, "N": 136, "K": 264}, stream_k=1)
    assert has_roles(module)
    a, b, c, exact = product((136, 136, 264))
    given = b.T.copy() if function is gemm_transposed else b
    interpret(module, [a, given, c], programs=5)
    np.testing.assert_allclose(c, exact * (2 if function is gemm_scaled else 1), rtol=1e-5, atol=1e-2)


def test_a_result_that_is_stored_transposed() -> None:
    module = scheduled(gemm_stored_transposed, {"M": 136, "N": 72, "K": 264}, stream_k=1)
    a, b, _, exact = product((136, 72, 264))
    c = np.full((72, 136), np.nan, np.float32)
    interpret(module, [a, b, c], programs=5)
    np.testing.assert_allclose(c, exact.T, rtol=1e-5, atol=1e-2)


def test_two_sums_are_shared_together() -> None:
    module = scheduled(gated, {"M": 70, "N": 72, "K": 328}, stream_k=1)
    x, g, u, y = random(70, 328), random(328, 72), random(328, 72) + 1, np.full((70, 72), np.nan, np.float32)
    interpret(module, [x, g, u, y], programs=3)
    x64 = x.astype(np.float64)
    np.testing.assert_allclose(y, (x64 @ g.astype(np.float64)) * (x64 @ u.astype(np.float64)), rtol=1e-3, atol=0.1)


def test_every_order_of_programs_gives_the_same_bits() -> None:
    module = scheduled(gemm, {"M": 200, "N": 136, "K": 392}, stream_k=1)
    a, b, first, _ = product((200, 136, 392))
    interpret(module, [a, b, first], programs=5)
    for seed in range(3):
        c = np.full_like(first, np.nan)
        interpret(module, [a, b, c], programs=5, order_seed=seed)
        assert c.tobytes() == first.tobytes()


def test_tiles_are_stored_by_the_copy_engine_by_their_owners_only() -> None:
    module = scheduled(gemm, {"M": 256, "N": 256, "K": 256}, stream_k=1)
    assert not any(isinstance(op, StoreOp) for op in module.walk())
    stores = [op for op in module.walk() if isinstance(op, BulkStoreOp)]
    (total,) = [op for op in module.walk() if isinstance(op, CollectSumsOp)]
    assert stores
    assert all(op.parent_block() is total.parent_block() for op in stores)


@pytest.mark.parametrize(
    ("function", "knobs", "target", "why"),
    [
        (started_at_one, {}, "sm_90a", "starts at a value other than zero"),
        (scaled_in_the_loop, {}, "sm_90a", "carries something that is not a sum of products"),
        (stored_in_the_loop, {}, "sm_90a", "written before the sum is complete"),
        (triangle, {}, "sm_90a", "steps of the loop depend on the tile"),
        (gemm, {}, "sm_80", "sm_80 has no persistent programs"),
        (gemm, {}, "sm_90", "sm_90 has no persistent programs"),
        (gemm, {"split_k": 2}, "sm_90a", "share tiles or operands"),
        (gemm, {"cluster": 2}, "sm_90a", "share tiles or operands"),
        (gemm, {"ping_pong": 1}, "sm_90a", "ping_pong=1 was asked for"),
    ],
)
def test_what_cannot_be_shared_is_not_and_says_why(function: Any, knobs: dict[str, int], target: str, why: str) -> None:
    module = scheduled(function, {"M": 64, "N": 64, "K": 128}, on=target, stream_k=1, **knobs)
    assert why in note(module, "stream_k")
    assert not any(isinstance(op, CollectSumsOp) for op in module.walk())


def test_attention_is_left_alone() -> None:
    module = scheduled(attention, {"H": 1, "S": 64}, stream_k=1)
    assert "stream_k=1 is ignored" in note(module, "stream_k")


def without(module: Any, kind: type) -> Any:
    for op in [op for op in module.walk() if isinstance(op, kind)]:
        for total, partial in zip(op.results, getattr(op, "partials", ()), strict=False):
            total.replace_all_uses_with(partial)
        op.detach()
    return module


@pytest.mark.parametrize(
    ("lost", "code", "message"),
    [
        (LeaveSumsOp, "deadlock", "waits for ever for the partial sums of program"),
        (CollectSumsOp, "race", "nobody collects the partial sums of program"),
    ],
)
def test_partial_sums_that_are_lost_are_missed(lost: type, code: str, message: str) -> None:
    module = without(scheduled(gemm, {"M": 64, "N": 64, "K": 256}, stream_k=1), lost)
    a, b, c, _ = product((64, 64, 256))
    with pytest.raises(DeviceError, match=message) as caught:
        interpret(module, [a, b, c], programs=2)
    assert caught.value.code == code


@pytest.mark.parametrize("value", [2, -1, "yes"])
def test_a_bad_value_is_refused(value: Any) -> None:
    with pytest.raises(LanguageError) as caught:
        Knobs.from_config({"stream_k": value})
    assert caught.value.code == "bad-knob"
