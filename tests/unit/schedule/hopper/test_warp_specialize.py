"""Which kernels the schedule splits into roles, why it does not split the others, and what it makes of them."""

from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.interp import interpret
from tessera.ir import decisions
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import AllocBarriersOp, BarrierExpectOp, BulkCopyOp, RolesOp
from tessera.ir.tile.shared import AllocSharedOp, CpAsyncOp, SharedTransposeOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import SharedType
from tessera.schedule.hopper.stores import BulkStoresPass
from tessera.schedule.hopper.warp_specialize import WarpSpecializePass
from tessera.schedule.knobs import Knobs
from tessera.schedule.products import grown_parts
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper.kernels import (
    attention,
    gemm,
    gemm_scaled,
    gemm_transposed,
    has_roles,
    note,
    random,
    scheduled,
    specialized,
)

SIZES = {"M": 128, "N": 128, "K": 256, "H": 2, "S": 256, "L": 2}
OP = Any


def products(dtype: ts.DType, bm: int = 64, bn: int = 64, bk: int = 64) -> Any:
    def kernel(a: ts.Tensor["M", "K", dtype], b: ts.Tensor["N", "K", dtype], c: ts.Tensor["M", "N", ts.f32]) -> None:
        for m, n in ts.tile.grid((M, bm), (N, bn)):
            acc = ts.tile.zeros((bm, bn), ts.f32)
            for k in ts.tile.range(0, K, bk):
                acc = ts.tile.mma(a[m : m + bm, k : k + bk], b[n : n + bn, k : k + bk].T, acc)
            c[m : m + bm, n : n + bn] = acc

    return kernel


def transposed_a(
    a: ts.Tensor["K", "M", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[k : k + 64, m : m + 64].T, b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def fp8_along_n(
    a: ts.Tensor["M", "K", ts.fp8_e4m3], b: ts.Tensor["K", "N", ts.fp8_e4m3], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 128)):
        acc = ts.tile.zeros((64, 128), ts.f32)
        for k in ts.tile.range(0, K, 128):
            acc = ts.tile.mma(a[m : m + 64, k : k + 128], b[k : k + 128, n : n + 128], acc)
        c[m : m + 64, n : n + 128] = acc


def two_loops(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def from_the_end(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(m, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


@pytest.mark.parametrize(("function", "expected"), [(gemm, None), (attention, 2), (from_the_end, 1)])
def test_tiles_are_taken_from_the_last_one_where_later_ones_take_more_steps(function, expected) -> None:
    (grid,) = [op for op in specialized(function, SIZES).walk() if isinstance(op, GridOp)]
    assert decisions.UNEVEN.of(grid) == expected


@pytest.mark.parametrize(
    ("size", "cost", "parts"),
    [
        (48, 0, (32, 16)),
        (48, 24, (64,)),
        (40, 24, (64,)),
        (80, 24, (64, 16)),
        (88, 24, (64, 32)),
        (112, 24, (128,)),
        (168, 24, (128, 64)),
        (208, 24, (128, 64, 16)),
        (232, 24, (256,)),
        (64, 24, (64,)),
    ],
)
def test_tiles_grow_to_sizes_of_fewer_parts_where_those_cost_less(size, cost, parts) -> None:
    assert grown_parts(size, 16, cost) == parts


@pytest.mark.parametrize(("pitch", "expected"), [(256, (24, 240)), (257, (56, 224))])
def test_a_producer_has_more_registers_where_tiles_are_stored_from_them(pitch, expected) -> None:
    module, target = aligned(products(ts.bf16, 128, 128), SIZES, {"c": (pitch, 1)}), target_named("sm_90a")
    for step in (WarpSpecializePass, BulkStoresPass):
        step(target, Knobs()).apply(module)
    (roles,) = [op for op in module.walk() if isinstance(op, RolesOp)]
    assert (roles.producer_registers.data, roles.consumer_registers.data) == expected


@pytest.mark.parametrize(
    ("function", "sizes", "strides", "expected"),
    [
        (attention, {"S": 256}, {"K": (64 * 257, 65, 1)}, (0b10, 0b10)),
        (attention, {"S": 256}, {name: (64 * 257, 65, 1) for name in "QV"}, (0b101, 0b10 << 8)),
        (attention, {"S": 256}, {"Q": (64 * 257, 65, 1)}, (None, None)),
        (attention, {"S": 256}, {"out": (64 * 257, 65, 1)}, (None, None)),
        (gemm, {}, {"a": (129, 1)}, (0b1, 0b10)),
        (gemm, {}, {"a": (129, 1), "b": (129, 1)}, (0b11, 0b10 | 0b01 << 8)),
        (gemm, {}, {"a": (258, 2)}, (None, None)),
    ],
)
def test_what_lies_wrong_for_roles_is_told(function, sizes, strides, expected) -> None:
    module = aligned(function, SIZES | sizes, strides)
    WarpSpecializePass(target_named("sm_90a"), Knobs()).apply(module)
    (grid,) = [op for op in module.walk() if isinstance(op, GridOp)]
    assert (decisions.MISPLACED.of(grid), decisions.REREADS.of(grid)) == expected


def no_loop(a: ts.Tensor["M", 64, ts.bf16], b: ts.Tensor[64, "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        c[m : m + 64, n : n + 64] = ts.tile.mma(a[m : m + 64, :], b[:, n : n + 64], accumulator=ts.f32)


def both_in_registers(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64] * 2, b[k : k + 64, n : n + 64] * 2, acc)
        c[m : m + 64, n : n + 64] = acc


def gathered(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for _ in ts.tile.range(0, K, 64):
            ones = ts.tile.full((64, 64), 1, ts.bf16)
            acc = ts.tile.mma(ones, ones, acc)
        c[m : m + 64, n : n + 64] = acc


def in_place(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "K", ts.bf16]) -> None:
    for m in ts.tile.grid((M, 64)):
        for k in ts.tile.range(0, K, 64):
            tile = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, 0:64], accumulator=ts.f32)
            a[m : m + 64, k : k + 64] = ts.tile.cast(tile, ts.bf16)


def ragged(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    lengths: ts.Tensor["L", ts.i64],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, lengths[0], 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def counted(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    lengths: ts.Tensor["L", ts.i64],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, lengths[0], 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc
        lengths[1] = 1


def listed(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    blocks: ts.Tensor["L", ts.i32],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for i in ts.tile.range(blocks[0]):
            k = blocks[i + 1].to(ts.i64) * 64
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def with_scale(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    scale: ts.Tensor["L", ts.f32],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        factor = scale[0] * 2 + scale[1]
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc * factor


def attention_in_place(
    Q: ts.Tensor["H", "S", 64, ts.bf16],
    K: ts.Tensor["H", "S", 64, ts.bf16],
    V: ts.Tensor["H", "S", 64, ts.bf16],
) -> None:
    for h, m in ts.tile.grid((H, 1), (S, 64)):
        q = Q[h, m : m + 64, :]
        acc = ts.tile.zeros((64, 64), ts.f32)
        for n in ts.tile.range(0, S, 64):
            p = ts.tile.cast(ts.tile.mma(q, K[h, n : n + 64, :].T), ts.bf16)
            acc = ts.tile.mma(p, V[h, n : n + 64, :], acc)
        Q[h, m : m + 64, :] = acc


def eight_columns(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 8)):
        acc = ts.tile.zeros((64, 8), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 8], acc)
        c[m : m + 64, n : n + 8] = acc


def ops(module: ModuleOp, kind: type[OP]) -> list[OP]:
    return [op for op in module.walk() if isinstance(op, kind)]


@pytest.mark.parametrize(
    ("kernel", "copies"),
    [
        pytest.param(gemm, 2, id="bf16"),
        pytest.param(gemm_transposed, 2, id="b transposed"),
        pytest.param(transposed_a, 2, id="a transposed"),
        pytest.param(gemm_scaled, 2, id="a from registers"),
        pytest.param(both_in_registers, 2, id="both computed"),
        pytest.param(attention, 3, id="attention"),
        pytest.param(products(ts.f16), 2, id="f16"),
        pytest.param(products(ts.fp8_e4m3, bk=128), 2, id="e4m3"),
        pytest.param(products(ts.fp8_e5m2, bk=128), 2, id="e5m2"),
        pytest.param(products(ts.bf16, 128, 256), 2, id="128x256"),
        pytest.param(products(ts.bf16, 32, 64), 2, id="32 rows, 64 columns"),
        pytest.param(products(ts.bf16, 64, 16), 2, id="16 columns"),
        pytest.param(products(ts.bf16, bk=32), 2, id="K of 32"),
        pytest.param(products(ts.bf16, bk=16), 2, id="K of 16"),
        pytest.param(products(ts.fp8_e4m3, bk=64), 2, id="fp8 K of 64"),
        pytest.param(with_scale, 2, id="scalar loads"),
        pytest.param(ragged, 2, id="ragged"),
    ],
)
def test_what_qualifies(kernel: Any, copies: int) -> None:
    module = specialized(kernel, SIZES)
    assert note(module) == ""
    (split,) = ops(module, RolesOp)
    assert len(ops(module, BulkCopyOp)) == copies
    assert len(ops(split.producer, BulkCopyOp)) == copies
    assert all("tessera_schedule.warpgroup" in op.attributes for op in ops(module, MmaOp))
    assert {op.result.type.swizzle.data for op in ops(module, AllocSharedOp)} == {"panels"}
    assert not any(isinstance(op, MmaOp | LoadOp) for op in split.producer.walk())


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        pytest.param(products(ts.f32), "no warpgroup instruction for f32 x f32 -> f32", id="f32"),
        pytest.param(products(ts.bf16, 32, 32), "a product of 32x32x64: rows in 64s", id="32 rows and columns"),
        pytest.param(eight_columns, "has rows of 16 bytes along its contiguous", id="8 columns"),
        pytest.param(fp8_along_n, "8-bit operands are read along K; b", id="fp8 along N"),
        pytest.param(two_loops, "does not have exactly one outermost loop", id="two loops"),
        pytest.param(no_loop, "does not have exactly one outermost loop", id="no loop"),
        pytest.param(gathered, "no operand of a product is loaded", id="gathered"),
        pytest.param(products(ts.bf16, 512, 64), "larger than a box of the copy engine", id="512 rows"),
        pytest.param(products(ts.bf16, 256, 256), "leave no registers", id="256x256"),
        pytest.param(in_place, "stored to by the same launch", id="in place"),
        pytest.param(counted, "not known before the roles part", id="lengths that are stored"),
    ],
)
def test_what_does_not_qualify_and_why(kernel: Any, reason: str) -> None:
    module = specialized(kernel, SIZES)
    assert not has_roles(module)
    assert note(module).startswith("one role: ")
    assert reason in note(module)
    assert not ops(module, BulkCopyOp)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"M": 128, "N": 128, "K": 100}, "stride 0 of a is not known to be a multiple of 16 bytes"),
        ({"M": 128, "N": 4, "K": 128}, "stride 0 of b"),
        ({}, "stride 0 of a"),
    ],
)
def test_strides_that_the_copy_engine_cannot_take(sizes: dict[str, int], reason: str) -> None:
    assert reason in note(specialized(gemm, sizes))


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_75"])
def test_other_gpus_stay_as_they_are(target: str) -> None:
    module = specialized(gemm, SIZES, target=target)
    assert str(module) == str(aligned(gemm, SIZES))


def test_a_kernel_without_products_is_not_noted() -> None:
    def double(x: ts.Tensor["N", ts.f32]) -> None:
        for n in ts.tile.grid((N, 64)):
            x[n : n + 64] = x[n : n + 64] * 2

    assert note(specialized(double, {"N": 64})) == ""


@pytest.mark.parametrize("stages", [None, 2, 3, 4, 8])
def test_the_depth_asked_for(stages: int | None) -> None:
    module = specialized(gemm, SIZES, stages=stages)
    depth = stages or 8
    assert {op.result.type.shape[0] for op in ops(module, AllocSharedOp)} == {depth}
    assert {op.result.type.count.data for op in ops(module, AllocBarriersOp)} == {depth}
    noted = [op.attributes.get("tessera_schedule.stages") for op in ops(module, scf.ForOp)]
    assert [attr.data for attr in noted if attr is not None] == [depth]


def test_a_depth_that_cannot_be() -> None:
    assert "one stage was asked for" in note(specialized(gemm, SIZES, stages=1))
    assert "200 stages of 16384 bytes do not fit" in note(specialized(gemm, SIZES, stages=200))


@pytest.mark.parametrize(("rows", "asked", "warps"), [(64, None, 4), (128, None, 8), (128, 4, 4), (256, None, 8)])
def test_each_warpgroup_takes_64_rows(rows: int, asked: int | None, warps: int) -> None:
    module = specialized(products(ts.bf16, rows, 64), SIZES, num_warps=asked)
    (grid,) = ops(module, GridOp)
    assert grid.attributes["tessera_schedule.num_warps"].data == warps
    (split,) = ops(module, RolesOp)
    producer, consumer = split.producer_registers.data, split.consumer_registers.data
    assert producer % 8 == consumer % 8 == 0
    assert 128 * producer + 32 * warps * consumer <= 65536


@pytest.mark.parametrize("warps", [1, 2, 16])
def test_warps_that_do_not_fit(warps: int) -> None:
    assert f"{warps} warps do not split [64] rows" in note(specialized(gemm, SIZES, num_warps=warps))


def test_bytes_expected_are_those_copied() -> None:
    for kernel in (gemm, gemm_transposed, gemm_scaled, attention, products(ts.fp8_e4m3, bk=128)):
        module = specialized(kernel, SIZES)
        for expected in ops(module, BarrierExpectOp):
            copies = [op for op in ops(module, BulkCopyOp) if op.barriers is expected.barriers]
            buffers = [op.buffer.type for op in copies]
            assert all(isinstance(type_, SharedType) for type_ in buffers)
            assert expected.bytes.data == sum(prod(type_.shape) * type_.dtype.bytes for type_ in buffers)


def test_a_transposed_operand_is_copied_as_it_is_stored() -> None:
    for kernel in (gemm_transposed, transposed_a):
        module = specialized(kernel, SIZES)
        (split,) = ops(module, RolesOp)
        assert not any(isinstance(op, SharedTransposeOp) for op in split.producer.walk())
        assert sum(isinstance(op, SharedTransposeOp) for op in split.consumer.walk()) == 1


def test_later_passes_stage_only_what_is_left() -> None:
    module = scheduled(attention_in_place, SIZES, pipeline=0)
    assert len(ops(module, BulkCopyOp)) == 2
    (copy,) = ops(module, CpAsyncOp)  # the queries, once
    assert copy.buffer.type.swizzle.data == "panels", "a warpgroup instruction reads it"
    (grid,) = ops(module, GridOp)
    assert grid.attributes["tessera_schedule.num_warps"].data == 4


@pytest.mark.parametrize(("name", "bk"), [("f16", 64), ("bf16", 64), ("fp8_e4m3", 128), ("fp8_e5m2", 128)])
def test_every_dtype_means_the_same(name: str, bk: int) -> None:
    numpy = {
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "fp8_e4m3": ml_dtypes.float8_e4m3fn,
        "fp8_e5m2": ml_dtypes.float8_e5m2,
    }[name]
    m, n, k = 70, 50, 208
    module = specialized(products(getattr(ts, name), bk=bk), {"M": m, "N": n, "K": k})
    assert has_roles(module)
    a, b, c = random(m, k, dtype=numpy), random(n, k, dtype=numpy), np.full((m, n), np.nan, np.float32)
    interpret(module, [a, b, c])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-4, atol=1e-3)


def test_a_transposed_left_operand_means_the_same() -> None:
    a, b, c = random(136, 72), random(136, 64), np.full((72, 64), np.nan, np.float32)
    interpret(specialized(transposed_a, {"M": 72, "N": 64, "K": 136}), [a, b, c])
    np.testing.assert_allclose(c, a.astype(np.float64).T @ b.astype(np.float64), rtol=1e-4, atol=1e-3)


def test_an_operand_from_registers_means_the_same() -> None:
    a, b, c = random(70, 136), random(136, 72), np.full((70, 72), np.nan, np.float32)
    interpret(scheduled(gemm_scaled, {"M": 70, "N": 72, "K": 136}), [a, b, c])
    np.testing.assert_allclose(c, 2 * a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-3)


def test_scalars_that_are_loaded_belong_to_the_consumers() -> None:
    a, b, c = random(64, 136), random(136, 72), np.full((64, 72), np.nan, np.float32)
    scale = np.array([1.5, 0.25], np.float32)
    interpret(scheduled(with_scale, {"M": 64, "N": 72, "K": 136, "L": 2}), [a, b, scale, c])
    np.testing.assert_allclose(c, 3.25 * (a.astype(np.float64) @ b.astype(np.float64)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("schedule", [specialized, scheduled])
def test_places_from_memory_are_read_by_the_producer(schedule: Any) -> None:
    module = schedule(listed, {"M": 72, "N": 64, "K": 320, "L": 6})
    (split,) = ops(module, RolesOp)
    assert len(ops(split.producer, LoadOp)) > 0
    a, b, c = random(72, 320), random(320, 64), np.full((72, 64), np.nan, np.float32)
    for blocks in ([4, 3, 0, 4, 2, 9], [0, 1, 1, 1, 1, 1]):
        interpret(module, [a, b, np.array(blocks, np.int32), c])
        taken = np.concatenate([np.arange(64 * i, 64 * i + 64) for i in blocks[1 : blocks[0] + 1]] or [[]]).astype(int)
        expected = a[:, taken].astype(np.float64) @ b[taken].astype(np.float64)
        np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-3)
