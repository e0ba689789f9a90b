"""What a kernel accesses before a release, or after an acquire, stays there, whatever the target and the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from xdsl.ir import Operation

import tessera as ts
from tessera.ir.target.atomics import AtomicOp, FenceOp
from tessera.ir.target.memory import BarrierOp, PrefetchOp
from tessera.ir.target.roles import BulkStoreOp, RolesOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.text import parse_module

CPUS = ("x86-64-v3", "sapphirerapids", "aarch64")
GPUS = ("sm_80", "sm_90a")
TARGETS = (*CPUS, *GPUS)
BM, BN, BK = 128, 128, 64


def function(kernel: Any, target: str, **knobs: Any) -> FuncOp:
    """Return the TIR-T of a kernel of one launch."""
    tuned = ts.kernel.autotune(space={name: [value] for name, value in knobs.items()}, key=())(kernel)
    text = ts.compile(tuned if knobs else ts.kernel(kernel), target=target, dump=["tirt"], **knobs).dumps["tirt"]
    assert isinstance(text, str)
    (func,) = [op for op in parse_module(text).ops if isinstance(op, FuncOp)]
    return func


def is_order(op: Operation) -> bool:
    return isinstance(op, FenceOp) or (isinstance(op, AtomicOp) and op.order.data != "relaxed")


def accesses(func: FuncOp) -> Iterator[tuple[str, Operation]]:
    """Yield, in the order of the text, `order` for fences and ordered atomics, and the argument of other accesses."""
    names = {
        value: f"{record.arg}"
        for value, record in zip(func.body.block.args, func.parameters, strict=True)
        if record.kind in ("pointer", "tensor_map")
    }
    for op in func.walk():
        if is_order(op):
            yield "order", op
        elif not isinstance(op, PrefetchOp):
            yield from ((names[value], op) for value in op.operands if value in names)


def sides(func: FuncOp, arg: int) -> tuple[int, int]:
    """Return how many accesses of an argument stand before the first fence, and after it."""
    found = [name for name, _ in accesses(func)]
    at = found.index("order")
    return found[:at].count(str(arg)), found[at:].count(str(arg))


def held_over_a_store(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 256)):
        v = x[i : i + 256]
        ts.tile.atomic_store(flag[0], 1, order="release")
        y[i : i + 256] = v * 2.0


def held_over_an_update(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 256)):
        v = x[i : i + 256]
        old = ts.tile.atomic_add(flag[0], 1, order="acq_rel")
        if old == 0:
            y[i : i + 256] = v * 2.0


def held_over_a_fence(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 256)):
        v = x[i : i + 256]
        ts.tile.fence("release")
        y[i : i + 256] = v * 2.0


def held_over_a_loop(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 256)):
        v = x[i : i + 256]
        for k in ts.tile.range(4):
            ts.tile.atomic_store(flag[k], 1, order="seq_cst")
        y[i : i + 256] = v * 2.0


def product_before(
    a: ts.Tensor["M", "K", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
    b: ts.Tensor["K", "N", ts.bf16],
    f: ts.Tensor["m", ts.i32],
):
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.mma(a[m : m + BM, 0:BK], b[0:BK, n : n + BN], ts.tile.zeros((BM, BN), ts.f32))
        ts.tile.atomic_store(f[0], 1, order="release")
        c[m : m + BM, n : n + BN] = acc


def product_after(a: ts.Tensor[256, 64, ts.bf16], c: ts.Tensor[256, 256, ts.f32], b: ts.Tensor[64, 256, ts.bf16]):
    for m, n in ts.tile.grid((256, BM), (256, BN)):
        left, right = a[m : m + BM, 0:BK], b[0:BK, n : n + BN]
        ts.tile.fence("release")
        c[m : m + BM, n : n + BN] = ts.tile.mma(left, right, ts.tile.zeros((BM, BN), ts.f32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "kernel",
    [held_over_a_store, held_over_an_update, held_over_a_fence, held_over_a_loop, product_before, product_after],
)
def test_what_is_loaded_before_a_release_is_not_loaded_after_it(kernel: Any, target: str) -> None:
    func = function(kernel, target)
    loads, late = sides(func, 0)
    assert loads
    assert not late
    assert sides(func, 1)[0] == 0, "the store comes after"


def waits(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 256)):
        seen = ts.tile.atomic_load(flag[0], order="acquire")
        if seen == 1:
            y[i : i + 256] = x[i : i + 256] * 2.0


def waits_by_a_fence(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 256)):
        seen = ts.tile.atomic_load(flag[0])
        ts.tile.fence("acquire")
        y[i : i + 256] = x[i : i + 256] * ts.tile.cast(seen, ts.f32)


def waits_in_a_product(
    a: ts.Tensor["M", "K", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
    b: ts.Tensor["K", "N", ts.bf16],
    f: ts.Tensor["m", ts.i32],
):
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            ts.tile.atomic_load(f[k], order="acquire")
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [waits, waits_by_a_fence, waits_in_a_product])
def test_what_is_loaded_after_an_acquire_is_not_loaded_before_it(kernel: Any, target: str) -> None:
    early, loads = sides(function(kernel, target), 0)
    assert loads
    assert not early


def finishes(
    a: ts.Tensor["M", "K", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
    b: ts.Tensor["K", "N", ts.bf16],
    f: ts.Tensor["m", ts.i32],
):
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc
        ts.tile.atomic_add(f[0], 1, order="release")


@pytest.mark.parametrize("knobs", [{}, {"split_k": 2}, {"cluster": 2}, {"stream_k": 1}], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_stored_before_a_release_is_not_stored_after_it(target: str, knobs: dict[str, int]) -> None:
    if knobs and target != "sm_90a":
        pytest.skip("a knob of Hopper")
    stores, late = sides(function(finishes, target, **knobs), 1)
    assert stores
    assert not late


def test_no_copy_engine_stores_what_is_released() -> None:
    """Threads see what they stored; a bulk store would have to be waited for, and fenced from its own proxy."""
    assert not [op for op in function(finishes, "sm_90a").walk() if isinstance(op, BulkStoreOp | RolesOp)]


def streamed(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 4096)):
        y[i : i + 4096] = x[i : i + 4096]
        ts.tile.fence("release")
        ts.tile.atomic_store(flag[0], 1)


def test_stores_past_the_caches_are_not_for_kernels_that_release() -> None:
    text = ts.compile(ts.kernel(streamed), target="x86-64-v3", dump=["asm"]).dumps["asm"]
    assert isinstance(text, str)
    assert "vmovnt" not in text


def everything(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], flag: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 256)):
        y[i : i + 256] = x[i : i + 256]
        ts.tile.atomic_store(flag[0], 1, order="release")
        y[i : i + 256] = x[i : i + 256]
        ts.tile.atomic_load(flag[0], order="acquire")
        y[i : i + 256] = x[i : i + 256]
        old = ts.tile.atomic_add(flag[0], 1, order="acq_rel")
        y[i : i + 256] = x[i : i + 256] * ts.tile.cast(old, ts.f32)
        ts.tile.atomic_store(flag[1], 1, order="seq_cst")
        y[i : i + 256] = x[i : i + 256]
        ts.tile.atomic_load(flag[1], order="seq_cst")
        y[i : i + 256] = x[i : i + 256]
        ts.tile.fence("acquire")
        y[i : i + 256] = x[i : i + 256]
        ts.tile.fence("release")
        y[i : i + 256] = x[i : i + 256]
        ts.tile.fence("seq_cst")
        y[i : i + 256] = x[i : i + 256]


def test_threads_wait_for_each_other_around_orders() -> None:
    """Between an access of the tile and a release stands a barrier, and so it does behind an acquire."""
    func = function(everything, "sm_80")
    events = [(name, op) for name, op in accesses(func)]
    around: list[tuple[bool, bool]] = []
    for place, (name, op) in enumerate(events):
        if name == "order":
            before = _barrier_between(func, events[place - 1][1], op)
            after = _barrier_between(func, op, events[place + 1][1])
            around.append((before, after))
    release, acquire, both = (True, False), (False, True), (True, True)
    needed = [release, acquire, both, release, both, acquire, release, both]
    missing = [
        place
        for place, (wanted, found) in enumerate(zip(needed, around, strict=True))
        if any(w and not f for w, f in zip(wanted, found, strict=True))
    ]
    assert not missing


def _barrier_between(func: FuncOp, first: Operation, last: Operation) -> bool:
    ops = list(func.walk())
    return any(isinstance(op, BarrierOp) for op in ops[ops.index(first) : ops.index(last)])
