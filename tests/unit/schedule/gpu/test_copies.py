"""Staging and pipelining of copies: the scheduled kernel means what the plain one means."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.errors import LanguageError, ResourceError
from tessera.interp import interpret
from tessera.ir import decisions
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.shared import AllocSharedOp, CommitGroupOp, CpAsyncOp, SharedTransposeOp
from tessera.schedule.gpu.copies import StageCopiesPass
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.frontend.support import built
from tests.unit.lower.support import aligned


def product(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 32), (N, 16)):
        acc = ts.tile.zeros((32, 16), ts.f32)
        for k in ts.tile.range(0, K, 16):
            acc = ts.tile.mma(a[m : m + 32, k : k + 16], b[k : k + 16, n : n + 16], acc)
        c[m : m + 32, n : n + 16] = acc


def scores(q: ts.Tensor["S", 32, ts.bf16], k: ts.Tensor["S", 32, ts.bf16], c: ts.Tensor["S", "S", ts.f32]) -> None:
    for m in ts.tile.grid((S, 16)):
        query = q[m : m + 16, :]
        for n in ts.tile.range(0, S, 16):
            c[m : m + 16, n : n + 16] = ts.tile.mma(query, k[n : n + 16, :].T, accumulator=ts.f32)


def scaled(a: ts.Tensor["M", 16, ts.bf16], b: ts.Tensor[16, "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        c[m : m + 16, n : n + 16] = ts.tile.mma(a[m : m + 16, :] * 2, b[:, n : n + 16], accumulator=ts.f32)


def by_threads(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["N", "K", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 32), (N, 64)):
        acc = ts.tile.zeros((32, 64), ts.f32)
        for k in ts.tile.range(0, K, 16):
            acc = ts.tile.mma(a[m : m + 32, k : k + 16], b[n : n + 64, k : k + 16].T, acc)
        c[m : m + 32, n : n + 64] = acc


def staged(function: Any, target: str = "sm_80", stages: int | None = None) -> Any:
    module = built(function).module
    StageCopiesPass(target_named(target), Knobs(stages=stages)).apply(module)
    module.verify()
    return module


def count(module: Any, kind: type[Any]) -> int:
    return sum(isinstance(op, kind) for op in module.walk())


def random_bf16(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, None])
@pytest.mark.parametrize("size", [(32, 16, 16), (70, 33, 50), (1, 1, 1), (64, 48, 5), (33, 17, 160)])
def test_a_pipelined_product_equals_float64(stages: int | None, size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = random_bf16(m, k), random_bf16(k, n)
    c = np.full((m, n), np.nan, np.float32)
    interpret(staged(product, stages=stages), [a, b, c])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5 * k)


@pytest.mark.parametrize("stages", [1, 3])
def test_transposed_operands_become_views(stages: int) -> None:
    module = staged(scores, stages=stages)
    assert count(module, LoadOp) == 0
    assert count(module, SharedTransposeOp) >= 1
    q, k = random_bf16(50, 32), random_bf16(50, 32) * 2
    c = np.full((50, 50), np.nan, np.float32)
    interpret(module, [q, k, c])
    np.testing.assert_allclose(c, q.astype(np.float64) @ k.astype(np.float64).T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "terms", "shapes"),
    [
        ("sm_80", 64, {(3, 32, 16), (3, 64, 16)}),
        ("sm_80", 66, {(3, 32, 16), (3, 64, 16)}),
        ("sm_80", 65, {(3, 16, 32), (3, 16, 64)}),
        ("sm_90a", 65, {(3, 16, 32), (3, 16, 64)}),
        ("sm_75", 65, {(3, 32, 16), (3, 64, 16)}),
    ],
)
def test_what_threads_multiply_is_transposed_where_copies_take_4_bytes(target: str, terms: int, shapes: Any) -> None:
    module = aligned(by_threads, {"M": 64, "N": 64, "K": terms})
    StageCopiesPass(target_named(target), Knobs(stages=3)).apply(module)
    module.verify()
    assert {op.result.type.shape for op in module.walk() if isinstance(op, AllocSharedOp)} == shapes


def test_depth_follows_the_knob_the_target_and_the_memory() -> None:
    def depth(module: Any) -> int:
        return next(op.attributes["tessera_schedule.stages"].data for op in module.walk() if isinstance(op, scf.ForOp))

    assert depth(staged(product, stages=2)) == 2
    assert depth(staged(product)) == 2, "nothing is known of where rows begin: threads fill the ring"
    known = aligned(product, {"M": 64, "N": 64, "K": 64})
    StageCopiesPass(target_named("sm_80"), Knobs()).apply(known)
    assert depth(known) == 4
    turing = staged(product, "sm_75")
    assert not any("tessera_schedule.stages" in op.attributes for op in turing.walk())
    shapes = {op.result.type.shape for op in staged(product, stages=3).walk() if isinstance(op, AllocSharedOp)}
    assert shapes == {(3, 32, 16), (3, 16, 16)}


def test_no_copies_are_started_for_iterations_past_the_end() -> None:
    loop = next(op for op in staged(product, stages=3).walk() if isinstance(op, scf.ForOp))
    inside = [op for op in loop.walk() if isinstance(op, CpAsyncOp)]
    assert all(isinstance(op.parent_op(), scf.IfOp) for op in inside)
    assert not any(isinstance(op.parent_op(), scf.IfOp) for op in loop.walk() if isinstance(op, CommitGroupOp))


def test_copies_of_rows_that_begin_anywhere_have_no_bounds_along_full_steps() -> None:
    def told(module: Any) -> list[int | None]:
        loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
        return [decisions.INSIDE.of(op) for op in loop.walk() if isinstance(op, CpAsyncOp)]

    # Terms are the last dimension of a and the first of b; the last step keeps its bounds.
    assert told(staged(product, stages=3)) == [2, 1, None, None]
    known = aligned(product, {"M": 64, "N": 64, "K": 64})
    StageCopiesPass(target_named("sm_80"), Knobs(stages=3)).apply(known)
    assert told(known) == [None, None]


def test_a_load_with_other_uses_stays_a_load() -> None:
    module = staged(scaled)
    assert count(module, LoadOp) == 1, "a is scaled in registers"
    assert count(module, CpAsyncOp) == 1, "b goes straight to the product"


def test_more_stages_than_memory_is_an_error_that_lists_the_sizes() -> None:
    with pytest.raises(ResourceError, match=r"200 stages need .* sm_80 has 166912") as caught:
        staged(product, stages=200)
    assert "32x16: 1024" in str(caught.value)


@pytest.mark.parametrize("config", [{"num_warps": 3}, {"num_warps": 64}, {"stages": 0}, {"num_stages": "two"}])
def test_a_knob_out_of_range_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(LanguageError) as caught:
        Knobs.from_config(config)
    assert caught.value.code == "bad-knob"


def in_place(a: ts.Tensor["M", 16, ts.bf16], b: ts.Tensor[16, 16, ts.bf16]) -> None:
    for _ in ts.tile.grid((1, 1)):
        for m in ts.tile.range(0, M, 16):
            a[16:32, :] = ts.tile.mma(a[m : m + 16, :], b[:, :], accumulator=ts.f32)


def test_an_operand_that_the_loop_stores_to_is_not_fetched_ahead() -> None:
    a, b = random_bf16(48, 16), np.eye(16).astype(ml_dtypes.bfloat16)
    a[16:32] = 9
    expected = a[32:48].copy()  # the last iteration's rows; the second iteration reads what the first stored
    interpret(staged(in_place, stages=3), [a, b])
    np.testing.assert_array_equal(a[16:32], expected)


def _waits_before(
    flag: ts.Tensor[1, ts.i32],
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        while ts.tile.atomic_load(flag[0], order="acquire") == 0:
            pass
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc
        ts.tile.atomic_add(flag[0], 1, order="release")


def _waits_inside(
    flag: ts.Tensor[1, ts.i32],
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            ts.tile.fence("acquire")
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_loops_copy_ahead_where_no_order_stands_in_them(target: str) -> None:
    sizes = {"M": 512, "N": 512, "K": 512}
    outside = ts.kernel(_waits_before).compile(target=target, dims=sizes, dump=["tirh"])
    assert outside.reflection["schedule"]["stages"] > 1
    text = outside.dumps["tirh"]
    assert isinstance(text, str)
    order = [text.index('"load" %'), text.index("cp_async"), text.index("scf.for"), text.rindex("wait_group 0")]
    assert order == sorted(order), "copies start after the wait"
    assert text.rindex("wait_group 0") < text.index('order "release"'), "and have arrived before the release"
    inside = ts.kernel(_waits_inside).compile(target=target, dims=sizes)
    assert inside.reflection["schedule"].get("stages", 1) == 1
    if target == "sm_90a":
        assert "waits for" in outside.reflection["roles"][0]
