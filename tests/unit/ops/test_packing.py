"""Copies of operands that bulk copies cannot fetch: when a plan makes them, what they hold, in which order all runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.driver.settings import settings
from tessera.ops.linalg import scratch
from tessera.ops.linalg.packing import Copy, copies, distinct
from tessera.ops.linalg.plan import plan, tuning_space
from tessera.ops.linalg.prepare import EMPTY, Operands, kernel_for, prepare, sized
from tessera.ops.linalg.problem import Forced, Options
from tessera.ops.linalg.scratch import Copies, copy_kernel
from tessera.platforms.nvidia import NvidiaPlatform
from tessera.runtime import cuda
from tessera.runtime.device import CPU, Device
from tessera.target.registry import target_named
from tests.unit.ops.support import BOUND, error, random

gemm = op.linalg.gemm
HOPPER = target_named("sm_90a")


def problem(m: int, n: int, k: int, dtype: ts.DType = ts.bf16, **options: Any) -> Any:
    return sized(m, n, k, dtype, dtype, Options(**options))


# What the plan decides.


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_operands_with_odd_rows_are_copied_for_warpgroup_products(trans):
    # Contiguous rows are of K or M elements in a, of N or K elements in b; only 4096 is a multiple of 8.
    got = gemm.plan(4096, 4095, 4093, trans_a=trans[0], trans_b=trans[1], target="sm_90a")
    assert got.path == "wgmma"
    assert (got.pack_a, got.pack_b) == ("" if trans[0] else "k", "k" if trans[1] else "other")
    lines = [] if trans[0] else [(4096, 4093)]
    lines.append((4095, 4093) if trans[1] else (4093, 4095))
    assert got.scratch_bytes == sum(rows * -(-columns * 2 // 128) * 128 for rows, columns in lines)
    assert f"{got.scratch_bytes} bytes of scratch memory" in " ".join(got.notes)
    assert "packs" in str(got)


def test_operands_that_bulk_copies_fetch_are_never_copied():
    for shape in ((4096, 4096, 4096), (16, 4096, 4096), (1000, 776, 336)):
        for pack in (None, False, True):
            got = gemm.plan(*shape, target="sm_90a", pack=pack)
            assert (got.path, got.pack_a, got.pack_b, got.scratch_bytes) == ("wgmma", "", "", 0)
            assert ("without effect, bulk copies fetch" in got.notes[-1]) == (pack is True)


def test_what_is_forced_is_followed():
    without = gemm.plan(1000, 777, 333, target="sm_90a", pack=False)
    assert (without.path, without.pack_a, without.pack_b) == ("mma", "", "")
    small = gemm.plan(64, 64, 63, target="sm_90a")
    assert (small.path, small.scratch_bytes) == ("mma", 0)
    assert "no copies of operands" in small.notes[-1]
    assert gemm.plan(64, 64, 63, target="sm_90a", pack=True).path == "wgmma"
    blocks = gemm.plan(1000, 777, 333, target="sm_90a", block=(128, 128, 64), stages=3)
    assert (blocks.block_n, blocks.stages, blocks.pack_a) == (128, 3, "k")


def test_a_kind_of_instruction_decides_about_copies():
    assert gemm.plan(64, 64, 63, target="sm_90a", mma_kind="wgmma").pack_a == "k"
    got = gemm.plan(4095, 4095, 4095, target="sm_90a", mma_kind="mma_sync", pack=True)
    assert (got.path, got.pack_a) == ("mma", "")
    assert "without effect, mma_kind is 'mma_sync'" in got.notes[-1]
    with pytest.raises(ts.CallError) as caught:
        gemm.plan(64, 64, 63, target="sm_90a", mma_kind="wgmma", pack=False)
    assert caught.value.code == "unsupported-mma-kind"
    assert "pack=False" in caught.value.help


def test_targets_and_dtypes_without_warpgroup_products_copy_nothing():
    for target, dtype in (
        ("sm_80", ts.bf16),
        ("sm_120a", ts.bf16),
        ("x86-64-v3", ts.f32),
        ("sm_90a", ts.f64),
    ):
        for pack in (None, True):
            got = plan(problem(999, 777, 333, dtype), target_named(target), Forced(pack=pack))
            assert (got.pack_a, got.pack_b, got.scratch_bytes) == ("", "", 0)
            assert ("without effect" in "".join(got.notes)) == (pack is True)


def test_bytes_are_copied_to_where_k_is_contiguous():
    got = gemm.plan(4096, 4096, 4096, ts.fp8_e4m3, target="sm_90a")
    assert (got.path, got.pack_a, got.pack_b) == ("wgmma", "", "k")
    odd = gemm.plan(4096, 4096, 4095, ts.i8, trans_a=True, trans_b=True, target="sm_90a")
    assert (odd.pack_a, odd.pack_b) == ("k", "k")


def test_strided_and_shifted_operands_are_copied():
    base = problem(4096, 4096, 4096)
    strided = plan(replace(base, a_major="strided"), HOPPER)
    assert (strided.path, strided.pack_a, strided.pack_b) == ("wgmma", "k", "")
    shifted = plan(replace(base, b_aligned=False), HOPPER)
    assert (shifted.path, shifted.pack_a, shifted.pack_b) == ("wgmma", "", "other")


def test_the_tuning_space_is_that_of_the_copies():
    space = tuning_space(problem(4095, 4095, 4095), HOPPER)
    assert {64, 128, 256} <= set(space["BN"])


def test_one_array_that_is_both_operands_is_copied_once():
    base = replace(problem(1001, 1001, 1001), same=True)
    assert len(distinct(base, "k", "other")) == 1  # a (M, K) along K, b (K, N) along N: the same lines
    assert len(distinct(base, "k", "k")) == 2
    assert plan(base, HOPPER).scratch_bytes == 1001 * 2048
    assert plan(replace(base, same=False), HOPPER).scratch_bytes == 2 * 1001 * 2048


def test_a_product_without_terms_copies_nothing():
    assert gemm.plan(77, 77, 0, target="sm_90a", pack=True).scratch_bytes == 0


def test_what_repeats_or_begins_elsewhere_counts_as_misaligned():
    a, b = random(16, 64, dtype=ts.bf16), random(64, 32, dtype=ts.bf16)
    memory = np.zeros(16 * 64 + 8, a.dtype)
    start = -memory.ctypes.data % 16 // 2
    for offset, expected in ((0, True), (1, False), (8, True)):
        view = memory[start + offset :][: 15 * 64].reshape(15, 64)
        assert prepare(Operands(view, b), Options(), False).problem.a_aligned == expected
    repeated = np.broadcast_to(a[:1], (16, 64))
    assert not prepare(Operands(repeated, b), Options(), False).problem.a_aligned
    batch = np.broadcast_to(a, (3, 16, 64))
    assert prepare(Operands(batch, b), Options(), True).problem.a_aligned


def test_pack_has_three_values():
    with pytest.raises(ts.CallError) as caught:
        gemm(random(4, 4), random(4, 4), pack="always")
    assert caught.value.code == "bad-argument"


def test_on_the_cpu_it_is_without_effect():
    a, b = random(37, 77), random(77, 45)
    assert error(gemm(a, b, pack=True), a.astype(np.float64) @ b) < BOUND["f32"]
    explained = gemm.explain()["plan"]
    assert (explained["pack_a"], explained["scratch_bytes"]) == ("", 0)
    assert "pack=True: without effect" in explained["notes"][-1]


def test_the_product_of_copies_compiles_to_bulk_copies_and_does_not_spill():
    for dtype, options in ((ts.bf16, {}), (ts.f16, dict(trans_a=True, trans_b=True)), (ts.fp8_e4m3, {})):
        made = gemm.compile(2047, 4097, 1023, dtype, target="sm_90a", **options)
        assert {"wgmma", "tma"} <= set(made.reflection["instructions"])
        assert all(kernel["spill_store_bytes"] == 0 for kernel in made.reflection["kernels"].values())


# What copies hold.


def stored(shape: tuple[int, ...], how: str, dtype: ts.DType) -> Any:
    """Return random bits in rows, in columns, or with steps in both dimensions."""
    rng = np.random.default_rng(sum(shape))
    if how == "steps":
        wide = tuple(2 * size for size in shape)
        bits = rng.integers(0, 256, (*wide, dtype.bytes), np.uint8).view(f"u{dtype.bytes}")[..., 0]
        return bits[tuple(slice(1, None, 2) for _ in shape)]
    bits = rng.integers(0, 256, (*shape, dtype.bytes), np.uint8).view(f"u{dtype.bytes}")[..., 0]
    if how == "columns":
        return np.ascontiguousarray(bits.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.ascontiguousarray(bits)


def poisoned(copy: Copy) -> Any:
    return np.full(copy.lines, 0xA5, np.uint8).astype(copy.dtype.numpy())


def as_operand(lines: Any, copy: Copy) -> Any:
    return np.lib.stride_tricks.as_strided(lines, copy.shape, [s * copy.dtype.bytes for s in copy.strides])


UNSIGNED = (ts.u8, ts.u16, ts.u32, ts.u64)


@pytest.mark.parametrize("interpret", [False, True], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
@pytest.mark.parametrize("shape", [(70, 77), (1, 129), (3, 65, 5)], ids=str)
def test_a_copy_holds_the_operand_and_zeros(dtype, shape, interpret, monkeypatch):
    monkeypatch.setattr(settings(), "interpret", interpret)
    for how in ("rows", "columns", "steps"):
        for axis in (0, 1):
            x, copy = stored(shape, how, dtype), Copy(shape, axis, dtype)
            lines = poisoned(copy)
            copy_kernel((copy,))(x, lines)
            np.testing.assert_array_equal(as_operand(lines, copy), x)
            assert not lines[..., shape[-2:][axis] :].any()
            assert copy.strides[-2:][axis] == 1


@pytest.mark.parametrize("dtype", [ts.bf16, ts.i8, ts.f32], ids=str)
@pytest.mark.parametrize(("axis", "source"), [(1, (4095, 1)), (0, (1, 4095)), (0, (4095, 1))])
def test_lines_are_written_16_bytes_at_a_time(dtype, axis, source):
    copy = Copy((4095, 4095), axis, dtype)
    dims = dict(RA=4095, CA=4095, PA=copy.lines[-1])
    strides = dict(a=source, x=(copy.lines[-1], 1))
    made = copy_kernel((copy,)).compile(target="sm_90a", dump=("ptx",), dims=dims, strides=strides)
    text = made.dumps["ptx"]
    assert "st.global.v4.b32" in text
    assert "st.global.b" not in text
    assert ("st.shared" in text) == (source.index(1) != axis)  # only another order is turned in shared memory
    (facts,) = made.reflection["kernels"].values()
    assert facts["spill_store_bytes"] == 0
    assert facts["overlaps"]


def test_two_copies_in_one_launch():
    for batched in (False, True):
        x = stored((3, 40, 77) if batched else (40, 77), "rows", ts.u16)
        y = stored((130, 90), "columns", ts.u16)
        for axes in ((0, 0), (0, 1), (1, 0), (1, 1)):
            made = (Copy(x.shape, axes[0], ts.u16), Copy(y.shape, axes[1], ts.u16))
            lines = [poisoned(copy) for copy in made]
            copy_kernel(made)(x, y, *lines)
            for got, copy, exact in zip(lines, made, (x, y), strict=True):
                np.testing.assert_array_equal(as_operand(got, copy), exact)


def test_copies_lie_as_bulk_copies_want():
    base = problem(130, 70, 77)
    for trans_a, trans_b in ((False, False), (True, True)):
        a, b = copies(replace(base, trans_a=trans_a, trans_b=trans_b), "k", "other")
        assert a.shape == ((77, 130) if trans_a else (130, 77))
        assert a.strides == ((1, 128) if trans_a else (128, 1))
        assert b.shape == ((70, 77) if trans_b else (77, 70))
        assert b.strides == ((1, 128) if trans_b else (128, 1))
        assert a.bytes % 128 == b.bytes % 128 == 0


# In which order a call runs.


class Recorder:
    """Stands in for the driver and for kernels."""

    def __init__(self, monkeypatch: Any) -> None:
        self.log: list[tuple[Any, ...]] = []
        monkeypatch.setattr(cuda, "cuda_device", lambda index: f"gpu {index}")
        monkeypatch.setattr(cuda, "allocate", self.allocate)
        monkeypatch.setattr(cuda, "free", lambda *args: self.log.append(("free", *args[1:])))
        monkeypatch.setattr(scratch.arrays, "over_scratch", lambda _like, at, view, *_: (at, view.strides))
        monkeypatch.setattr(scratch, "stream_source", lambda _values, _device: lambda _values: 7)

    def allocate(self, _device: Any, size: int, stream: int) -> int:
        self.log.append(("allocate", size, stream))
        return 0x1000

    def kernel(self, name: str, fails: Any = None) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            self.log.append((name, *args, *named.items()))
            if fails is not None:
                raise fails
            return "result"

        return run


def made_for(recorder: Recorder, pack_a: Any, pack_b: Any, same: bool = False) -> Copies:
    base = replace(problem(64, 64, 64), same=same)
    schedule = replace(plan(base, HOPPER), pack_a=pack_a, pack_b=pack_b)
    found = Copies.of(base, schedule, Device("cuda", 0))
    assert found is not None
    found._kernel = recorder.kernel("copy")
    return found


SIZE = 64 * 128


def test_memory_is_taken_and_given_back_in_the_order_of_the_stream(monkeypatch):
    record = Recorder(monkeypatch)
    run = record.kernel("product")
    assert made_for(record, "k", "other").run(run, "a", "b", ("out",), None) == "result"
    first, second = (0x1000, (64, 1)), (0x1000 + SIZE, (64, 1))
    assert record.log == [
        ("allocate", 2 * SIZE, 7),
        ("copy", "a", "b", first, second, ("stream", 7)),
        ("product", first, second, "out", ("stream", 7)),
        ("free", 0x1000, 7),
    ]


def test_only_what_has_to_be_is_copied(monkeypatch):
    for pack, same, copied, operands in (
        (("k", ""), False, ("a",), ("copy", "b")),
        (("", "other"), False, ("b",), ("a", "copy")),
        (("k", "other"), True, ("a",), ("copy", "copy")),
    ):
        record = Recorder(monkeypatch)
        made_for(record, *pack, same=same).run(record.kernel("product"), "a", "b", (), 5)
        place = (0x1000, (64, 1))
        given = [place if name == "copy" else name for name in operands]
        assert record.log[0] == ("allocate", SIZE, 5)
        assert record.log[1] == ("copy", *copied, place, ("stream", 5))
        assert record.log[2] == ("product", *given, ("stream", 5))


def test_memory_is_given_back_after_an_error(monkeypatch):
    record = Recorder(monkeypatch)
    with pytest.raises(ts.CallError):
        made_for(record, "k", "").run(record.kernel("product", ts.CallError("no")), "a", "b", (), None)
    assert record.log[-1] == ("free", 0x1000, 7)


def test_too_little_memory_is_a_typed_error(monkeypatch):
    record = Recorder(monkeypatch)

    def full(*_args: Any) -> int:
        raise ts.errors.DeviceError("cuda:0 has no 8192 bytes left", code="out-of-memory")

    monkeypatch.setattr(cuda, "allocate", full)
    with pytest.raises(ts.errors.DeviceError, match="which copies of operands need") as caught:
        made_for(record, "k", "").run(record.kernel("product"), "a", "b", (), None)
    assert caught.value.code == "out-of-memory"
    assert "pack=False" in caught.value.help
    assert record.log == []


class HostMemory:
    """Stands in for the driver's allocator: poisoned memory of the host, so that all else is what runs on a GPU."""

    def __init__(self, monkeypatch: Any) -> None:
        self.held: dict[int, Any] = {}
        monkeypatch.setattr(scratch, "stream_memory", lambda _device: NvidiaPlatform())
        monkeypatch.setattr(cuda, "cuda_device", lambda _index: None)
        monkeypatch.setattr(cuda, "allocate", self.allocate)
        monkeypatch.setattr(cuda, "free", lambda _device, pointer, _stream: self.held.pop(pointer))

    def allocate(self, _device: Any, size: int, _stream: int) -> int:
        memory = np.full(size + 128, 0xA5, np.uint8)
        pointer = memory.ctypes.data + -memory.ctypes.data % 128
        self.held[pointer] = memory
        return pointer


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("orders", [("k", ""), ("", "other"), ("k", "k"), ("other", "k"), ("other", "other")])
def test_the_product_reads_the_copies(trans, orders, monkeypatch):
    memory = HostMemory(monkeypatch)
    m, n, k = 37, 45, 77
    a, b = random(*((k, m) if trans[0] else (m, k))), random(*((n, k) if trans[1] else (k, n)))
    base = sized(m, n, k, ts.f32, ts.f32, Options(trans_a=trans[0], trans_b=trans[1]))
    schedule = replace(plan(base, target_named("cpu")), pack_a=orders[0], pack_b=orders[1])
    made = Copies.of(base, schedule, CPU)
    assert made is not None
    exact = (a.T if trans[0] else a).astype(np.float64) @ (b.T if trans[1] else b)
    for _ in range(2):
        out = np.full((m, n), np.nan, np.float32)
        got = made.run(kernel_for(base, schedule, EMPTY), a, b, (out,), None)
        assert got is out
        assert error(out, exact) < BOUND["f32"]
    assert not memory.held


def test_a_batch_and_one_matrix_are_copied_and_multiplied(monkeypatch):
    HostMemory(monkeypatch)
    a, b = random(3, 37, 77), random(77, 45)
    base = replace(sized(37, 45, 77, ts.f32, ts.f32, Options()), batch=3, a_batched=True)
    schedule = replace(plan(base, target_named("cpu")), pack_a="other", pack_b="other")
    made = Copies.of(base, schedule, CPU)
    assert made is not None
    out = np.full((3, 37, 45), np.nan, np.float32)
    made.run(kernel_for(base, schedule, EMPTY), a, b, (out,), None)
    assert error(out, a.astype(np.float64) @ b) < BOUND["f32"]
