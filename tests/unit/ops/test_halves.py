"""f32 products as three products of tf32: when plans choose them, what operands become, what three products give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.linalg import halves
from tessera.ops.linalg.by_halves import LEAST_TERMS, TERMS, flags_of, stored, why_none
from tessera.ops.linalg.halves import product_kernel, storing_kernel
from tessera.ops.linalg.plan import Plan, plan, unshared
from tessera.ops.linalg.prepare import EMPTY, again_kernel, sized
from tessera.ops.linalg.problem import Forced, Options
from tessera.ops.linalg.scratch import TILE
from tessera.runtime import cuda
from tessera.runtime.device import Device
from tessera.target.registry import target_named
from tests.unit.ops.test_flash_attention import emulated
from tests.unit.ops.test_packing import Recorder

HOPPER = target_named("sm_90a")
SCHEDULE = Plan(64, 64, TERMS, num_warps=4, path="wgmma", halves=True)


def problem(m: int, n: int, k: int, dtype: ts.DType = ts.f32, **options: Any) -> Any:
    return sized(m, n, k, dtype, dtype, Options(**options))


def halves_of(given: Any, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """Return the halves of both operands and the flags, as the kernel that stores them makes them on the CPU."""
    copies = stored(given)
    made = [np.full(copy.lines, np.nan, np.float32) for copy in copies for _half in range(2)]
    flags = np.full(sum(flags_of(copy, (TILE["BM"], TILE["BN"])) for copy in copies), -1, np.int32)
    storing_kernel(*copies)(a, b, *made, flags)
    return [*made, flags]


def operand(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    spread = 10.0 ** rng.uniform(-8, 8, shape)
    return (rng.standard_normal(shape) * spread).astype(np.float32)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
def test_operands_are_sums_of_two_numbers_of_tf32(trans: tuple[bool, bool], batch: int | None) -> None:
    rng = np.random.default_rng(1)
    given = problem(70, 33, 150, trans_a=trans[0], trans_b=trans[1])
    given = replace(given, batch=batch, a_batched=batch is not None)
    lead = () if batch is None else (batch,)
    a = operand(rng, (*lead, *((150, 70) if trans[0] else (70, 150))))
    b = operand(rng, (33, 150) if trans[1] else (150, 33))
    high, low, right, right_low, flags = halves_of(given, a, b)
    wanted = (a.swapaxes(-1, -2) if trans[0] else a), (b if trans[1] else b.T)
    for most, rest, whole in ((high, low, wanted[0]), (right, right_low, wanted[1])):
        for half in (most, rest):
            assert not np.any(half.view(np.int32) & 0x1FFF), "tf32 has 10 bits of mantissa"
            assert not np.any(half[..., 150:]), "lines are padded with zeros"
        both = most[..., :150].astype(np.float64) + rest[..., :150]
        assert np.all(np.abs(both - whole) <= 2.0**-22 * np.abs(whole))
    assert not flags.any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -1e30])
def test_numbers_that_halves_do_not_hold_set_the_flag_of_their_tile(value: float) -> None:
    rng = np.random.default_rng(2)
    given = problem(130, 70, 200)
    a, b = rng.standard_normal((130, 200)).astype(np.float32), rng.standard_normal((200, 70)).astype(np.float32)
    a[129, 199] = value
    *_, flags = halves_of(given, a, b)
    last = flags_of(stored(given)[0], (TILE["BM"], TILE["BN"])) - 1
    assert np.flatnonzero(flags).tolist() == [last]


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("batch", [None, 2])
def test_the_product_is_computed_again_where_a_flag_is_set(flag: int, batch: int | None) -> None:
    rng = np.random.default_rng(3)
    given = replace(problem(70, 33, 150), mma_kind="fma")
    lead = () if batch is None else (batch,)
    given = replace(given, batch=batch, a_batched=batch is not None)
    a = rng.standard_normal((*lead, 70, 150)).astype(np.float32)
    b = rng.standard_normal((150, 33)).astype(np.float32)
    flags = np.zeros(1500, np.int32)
    flags[1033] = flag
    out = np.full((*lead, 70, 33), 7, np.float32)
    schedule = Plan(32, 32, 32)
    again_kernel(replace(given, mma_kind=None), schedule, EMPTY)(a, b, flags, out)
    exact = a.astype(np.float64) @ b
    assert np.abs(out - (exact if flag else 7)).max() <= 2e-4


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("batch", [None, 2])
def test_three_products_give_what_f32_holds(batch: int | None, target: str) -> None:
    rng = np.random.default_rng(4)
    m, n, k = 70, 100, 150
    lead = () if batch is None else (batch,)
    given = replace(problem(m, n, k), batch=batch, b_batched=batch is not None)
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((*lead, k, n)).astype(np.float32)
    *halves, _flags = halves_of(given, a, b)
    out = np.full((*lead, m, n), np.nan, np.float32)
    kernel = product_kernel(given, SCHEDULE, EMPTY)
    if target == "cpu":
        kernel(*halves, out)
    else:
        sizes = {"M": m, "N": n, "K": stored(given)[0].lines[-1]} | ({} if batch is None else {"B": batch})
        emulated(kernel, target, [*halves, out], sizes, ())
    exact = a.astype(np.float64) @ b.astype(np.float64)
    plain = np.abs(np.matmul(a, b) - exact).max()
    assert np.abs(out - exact).max() <= max(2 * plain, 1e-5)


def test_plans_choose_halves_for_large_products_of_f32_on_warpgroups() -> None:
    made = plan(problem(2048, 2048, 2048), HOPPER)
    assert (made.halves, made.path, made.block_k) == (True, "wgmma", TERMS)
    assert made.scratch_bytes == 4 * 2048 * 2048 * 4
    assert "mma_kind='fma' computes without" in str(made.notes)
    exact = plan(problem(2048, 2048, 2048, mma_kind="fma"), HOPPER)
    assert (exact.halves, exact.path) == (False, "fma")
    assert made.seconds < exact.seconds
    assert not plan(problem(256, 256, 256), HOPPER).halves
    assert not plan(problem(2048, 2048, 2048, ts.bf16), HOPPER).halves
    for other in ("sm_80", "sm_100", "cpu"):
        if not target_named(other).has("wgmma"):
            assert not plan(problem(2048, 2048, 2048), target_named(other)).halves


@pytest.mark.parametrize(
    ("options", "forced"),
    [
        ({"compute": ts.tf32}, {}),
        ({"acc_dtype": ts.f64}, {}),
        ({"triangular_only": "lower"}, {}),
        ({"promote": 64}, {}),
        ({"mma_kind": "fma"}, {}),
        ({}, {"block": (64, 64, 32)}),
        ({}, {"split_k": 2}),
    ],
)
def test_what_keeps_a_product_from_halves(options: dict[str, Any], forced: dict[str, Any]) -> None:
    assert why_none(problem(2048, 2048, 2048, **options), HOPPER, Forced(**forced)) is not None


def test_strict_products_are_chains_of_multiply_adds() -> None:
    with ts.numerics.profile("strict"):
        assert op.linalg.gemm.plan(2048, 2048, 2048, ts.f32, target="sm_90a").path == "fma"
    assert op.linalg.gemm.plan(2048, 2048, 2048, ts.f32, target="sm_90a").halves


def test_short_sums_and_epilogues_that_read_the_result_keep_to_multiply_adds() -> None:
    assert why_none(problem(2048, 2048, LEAST_TERMS), HOPPER, Forced()) is None
    assert why_none(problem(2048, 2048, LEAST_TERMS - 1), HOPPER, Forced()) is not None
    assert why_none(replace(problem(2048, 2048, 2048), rereads=True), HOPPER, Forced()) is not None


def test_no_kernel_of_halves_spills() -> None:
    for size in (1024, 4096):
        made = op.linalg.gemm.compile(size, size, size, ts.f32, target="sm_90a")
        found: Any = made.reflection["kernels"]
        assert found["gemm_halves"]["spill_store_bytes"] == 0
    given = replace(problem(4096, 4096, 4096), mma_kind="fma")
    again = again_kernel(given, unshared(given, HOPPER), EMPTY).compile(target="sm_90a")
    found = again.reflection["kernels"]
    assert found["gemm_again"]["spill_store_bytes"] == 0


def test_memory_is_taken_and_given_back_in_the_order_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    record: Any = Recorder(monkeypatch)
    monkeypatch.setattr(halves.arrays, "over_scratch", lambda _like, at, view, *_: (at, view.shape))
    monkeypatch.setattr(halves, "storing_kernel", lambda *_: record.kernel("halve"))
    kernels = [record.kernel(name) for name in ("again", "alone")]
    made = halves.Halves(problem(64, 128, 256), *kernels, Device("cuda", 0))
    assert made.run(record.kernel("product"), "a", "b", ("out",), None) == "result"
    left, right, flags = 64 * 256 * 4, 128 * 256 * 4, 4 + 8
    places = [0x1000, 0x1000 + left, 0x1000 + 2 * left, 0x1000 + 2 * left + right]
    given = list(zip(places, [(64, 256)] * 2 + [(128, 256)] * 2, strict=True))
    end = (0x1000 + 2 * (left + right), (flags,))
    assert record.log == [
        ("allocate", 2 * (left + right) + 4 * flags, 7),
        ("halve", "a", "b", *given, end, ("stream", 7)),
        ("product", *given, "out", ("stream", 7)),
        ("again", "a", "b", end, "out", ("stream", 7)),
        ("free", 0x1000, 7),
    ]


def test_without_memory_threads_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    record: Any = Recorder(monkeypatch)

    def full(*_args: Any) -> int:
        raise ts.errors.DeviceError("cuda:0 has no bytes left", code="out-of-memory")

    monkeypatch.setattr(halves, "storing_kernel", lambda *_: record.kernel("halve"))
    monkeypatch.setattr(cuda, "allocate", full)
    kernels = [record.kernel(name) for name in ("again", "alone")]
    made = halves.Halves(problem(64, 128, 256), *kernels, Device("cuda", 0))
    assert made.run(record.kernel("product"), "a", "b", ("out",), 5) == "result"
    assert record.log == [("alone", "a", "b", "out", ("stream", 5))]
