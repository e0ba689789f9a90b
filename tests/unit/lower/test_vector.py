"""The vector model's lowering: what is fused, what is stored, and where bounds are tested."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE
from tessera.errors import LanguageError, ResourceError
from tessera.ir.target.arithmetic import ElementwiseOp, ReduceRegistersOp, TransposeChunksOp, constant_value
from tessera.ir.target.memory import (
    AllocOp,
    BufferLoadOp,
    BufferStoreOp,
    GatherOp,
    LoadOp,
    ScatterOp,
    StoreOp,
)
from tessera.ir.target.product import ProductOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.types import FragmentType, PointerType
from tessera.ir.text import parse_module, text_of
from tessera.ir.tile import tile_dialect
from tessera.lower.vector import lower_to_vector
from tessera.lower.vector.rules import RULES
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned, scheduled

AVX512 = target_named("x86-64-v4")
BF16 = replace(AVX512, features=AVX512.features | {"avx512bf16"})


def lowered(function: Any, sizes: Mapping[str, int] | None = None, target: str | TargetRecord = "x86-64-v4") -> FuncOp:
    module = aligned(function, sizes)
    for step in CANONICALIZE:
        step.apply(module)
    record = target_named(target) if isinstance(target, str) else target
    result = lower_to_vector(scheduled(module, record), record)
    result.verify()
    (func,) = [op for op in result.ops if isinstance(op, FuncOp)]
    return func


def ops(func: FuncOp, kind: type[Operation]) -> list[Any]:
    return [op for op in func.walk() if isinstance(op, kind)]


def add(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 1000)):
        y[i : i + 1000] = x[i : i + 1000] * 2.0 + y[i : i + 1000]


def add_fixed(x: ts.Tensor[4000, ts.f32], y: ts.Tensor[4000, ts.f32]):
    for i in ts.tile.grid((4000, 1000)):
        y[i : i + 1000] = x[i : i + 1000] * 2.0 + y[i : i + 1000]


def test_elementwise_chain_is_one_loop_without_scratch():
    func = lowered(add_fixed)
    assert len(ops(func, scf.ForOp)) == 1
    assert not ops(func, AllocOp)
    assert json.loads(func.grid.data) == [[["const", 4000], 1000]]


def test_rest_of_a_row_is_tested_against_the_boxs_end():
    func = lowered(add_fixed)
    checked = [bool(op.checked_list) for op in ops(func, StoreOp)]
    assert checked == [False, True]  # 62 whole chunks in the loop, then 8 elements


def test_box_that_may_leave_its_tensor_is_lowered_twice():
    func = lowered(add)
    (branch,) = ops(func, scf.IfOp)
    inside = [op.checked_list for op in branch.true_region.walk() if isinstance(op, LoadOp)]
    edge = [op.checked_list for op in branch.false_region.walk() if isinstance(op, LoadOp)]
    assert inside == [(), (), (0,), (0,)]
    assert edge == [(0,)] * 4


def test_chunks_have_the_targets_width():
    def widths(target: str) -> set[tuple[int, ...]]:
        func = lowered(add_fixed, target=target)
        return {op.result.type.shape for op in ops(func, LoadOp) if isinstance(op.result.type, FragmentType)}

    assert widths("x86-64-v4") == {(16,)}
    assert widths("x86-64-v3") == {(8,)}
    assert widths("aarch64") == {(4,)}


def softmax(x: ts.Tensor["m", 512, ts.f32], y: ts.Tensor["m", 512, ts.f32]):
    for i in ts.tile.grid((m, 4)):
        tile = x[i : i + 4, :]
        e = ts.tile.exp(tile - ts.tile.row_max(tile)[:, None])
        y[i : i + 4, :] = e / ts.tile.row_sum(e)[:, None]


def test_costly_tile_used_twice_is_computed_once():
    func = lowered(softmax, {"m": 64})
    loops = [op for op in ops(func, scf.ForOp) if any(isinstance(o, ElementwiseOp) for o in op.body.block.ops)]
    with_exp = [loop for loop in loops if any(fn == "exp" for fn in _own_functions(loop))]
    assert len(with_exp) == 1
    # The loop that sums the exponentials also stores them.
    assert any(isinstance(op, BufferStoreOp) for op in with_exp[0].body.block.ops)


def _own_functions(loop: scf.ForOp) -> list[str]:
    return [op.fn.data for op in loop.body.block.ops if isinstance(op, ElementwiseOp)]


def test_row_values_are_read_once_per_row():
    func = lowered(softmax, {"m": 64})
    for load in ops(func, BufferLoadOp):
        if not isinstance(load.result.type, FragmentType):
            inner = [op for op in load.parent_block().ops if isinstance(op, scf.ForOp)]
            assert inner, "a scalar of the row is read outside the loop over its chunks"


def test_sums_use_four_accumulators():
    func = lowered(softmax, {"m": 64})
    reductions = [op for op in ops(func, scf.ForOp) if len(op.iter_args)]
    assert {len(op.iter_args) for op in reductions} == {4}


def gemm(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 64), (n, 128)):
        acc = ts.tile.zeros((64, 128), ts.f32)
        for step in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 64, step : step + 32], b[step : step + 32, j : j + 128], acc)
        c[i : i + 64, j : j + 128] = acc


def test_mma_packs_operands_straight_from_memory_and_updates_in_place():
    func = lowered(gemm, {"m": 128, "n": 256, "k": 64})
    (product,) = ops(func, ProductOp)
    assert len(ops(func, AllocOp)) == 3  # rows of a, panels of b, accumulator
    assert product.acc.type.shape == (64, 128)
    assert product.b.type.shape == (2, 32, 64)
    assert str(product.a.type.element) == "f32"


def gemm_f32(a: ts.Tensor["m", "k", ts.f32], b: ts.Tensor["k", "n", ts.f32], c: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 64), (n, 128)):
        acc = ts.tile.zeros((64, 128), ts.f32)
        for step in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 64, step : step + 32], b[step : step + 32, j : j + 128], acc)
        c[i : i + 64, j : j + 128] = acc


def test_contiguous_rows_are_multiplied_in_place_and_the_next_panel_is_asked_for():
    (product,) = ops(func := lowered(gemm_f32, {"m": 128, "n": 256, "k": 64}), ProductOp)
    assert isinstance(product.a.type, PointerType)
    assert len(ops(func, AllocOp)) == 3  # room for crowded rows of a, panels of b, accumulator
    assert product.room is not None
    assert isinstance(product.source, SSAValue)
    assert product.source.type.element == product.a.type.element
    assert len(product.ahead) == 4


def test_without_a_loop_nothing_is_asked_for():
    (product,) = ops(lowered(gemm_transposed, {"m": 128, "n": 128}), ProductOp)
    assert product.source is None


def gemm_transposed(a: ts.Tensor["m", 64, ts.f32], b: ts.Tensor["n", 64, ts.f32], c: ts.Tensor["m", "n", ts.f32]):
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        right = ts.tile.transpose(b[j : j + 64, :])
        c[i : i + 64, j : j + 64] = ts.tile.mma(a[i : i + 64, :], right, ts.tile.zeros((64, 64), ts.f32))


def test_transposed_operand_is_transposed_in_registers():
    func = lowered(gemm_transposed, {"m": 128, "n": 128})
    assert ops(func, TransposeChunksOp)
    assert all(load.vector.data == 16 for load in ops(func, LoadOp))


def invariant(a: ts.Tensor["m", 64, ts.f32], b: ts.Tensor["k", 64, ts.f32], c: ts.Tensor["m", 64, ts.f32]):
    for i in ts.tile.grid((m, 64)):
        left = a[i : i + 64, :] * 0.5
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(left, b[step : step + 64, :], acc)
        c[i : i + 64, :] = acc


def test_operand_that_a_loop_does_not_change_is_packed_before_it():
    func = lowered(invariant, {"m": 64, "k": 256})
    (loop,) = [op for op in ops(func, scf.ForOp) if any(isinstance(o, ProductOp) for o in op.body.block.ops)]
    loaded = {op.pointer for op in loop.walk() if isinstance(op, LoadOp)}
    assert len(loaded) == 1  # b only


def attention(
    q: ts.Tensor["s", 64, ts.bf16],
    k: ts.Tensor["s", 64, ts.bf16],
    v: ts.Tensor["s", 64, ts.bf16],
    out: ts.Tensor["s", 64, ts.f32],
):
    """Without a running maximum: what it lowers to is shorter to judge."""
    for i in ts.tile.grid((s, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        total = ts.tile.zeros((64,), ts.f32)
        for j in ts.tile.range(0, s, 64):
            scores = ts.tile.mma(q[i : i + 64, :], k[j : j + 64, :].T)
            p = ts.tile.exp(ts.tile.causal_mask(scores, i, j) - 1.0)
            total += ts.tile.row_sum(p)
            acc = ts.tile.mma(ts.tile.cast(p, ts.bf16), v[j : j + 64, :], acc)
        out[i : i + 64, :] = acc / total[:, None]


def _elements_stored(func: FuncOp, shape: tuple[int, ...]) -> list[str]:
    """Return the element types of the buffers of a shape that chunks are stored to, once each."""
    types = {op.buffer: op.buffer.type for op in ops(func, BufferStoreOp)}
    return sorted(str(type_.element) for type_ in types.values() if type_.shape == shape)


def test_product_that_starts_from_zero_reads_no_zeros():
    scores, values = ops(lowered(attention, {"s": 256}), ProductOp)
    assert scores.fresh is not None
    assert constant_value(scores.fresh) == 1
    (whole,) = ops(lowered(gemm_transposed, {"m": 128, "n": 128}), ProductOp)
    assert whole.fresh is not None
    assert constant_value(whole.fresh) == 1
    (steps,) = ops(lowered(gemm, {"m": 128, "n": 256, "k": 64}), ProductOp)
    for product in (values, steps):  # later iterations add to what the first one has begun
        assert product.fresh is not None
        assert constant_value(product.fresh) is None


def test_operand_is_converted_where_it_is_computed():
    func = lowered(attention, {"s": 256}, BF16)
    # In f32 the first accumulator and scores outside, which are zeros: no exponentials and none of their arguments.
    assert _elements_stored(func, (64, 64)) == ["bf16", "f32", "f32"]
    values = ops(func, ProductOp)[1]
    assert values.a.type.shape == (64, 32)  # read as pairs, from where they are


def test_mask_that_holds_for_a_whole_tile_is_asked_for_once():
    func = lowered(attention, {"s": 256})
    (branch,) = [
        op for op in ops(func, scf.IfOp) if any(isinstance(o, ElementwiseOp) and o.fn.data == "exp" for o in op.walk())
    ]

    def functions(region: Any) -> set[str]:
        return {op.fn.data for op in region.walk() if isinstance(op, ElementwiseOp)}

    assert "select" not in functions(branch.true_region)
    assert "select" in functions(branch.false_region)


def test_mask_of_a_programs_only_tile_is_not():
    def masked(x: ts.Tensor[64, 64, ts.f32], y: ts.Tensor[64, 64, ts.f32]):
        for i in ts.tile.grid((64, 64)):
            y[i : i + 64, :] = ts.tile.where(ts.tile.arange(64) < 60, x[i : i + 64, :], 0.0)

    assert not ops(lowered(masked), scf.IfOp)


def test_lanes_of_many_rows_are_reduced_at_once():
    def sums(x: ts.Tensor["m", 512, ts.f32], y: ts.Tensor["m", ts.f32]):
        for i in ts.tile.grid((m, 32)):
            y[i : i + 32] = ts.tile.row_sum(x[i : i + 32, :])

    func = lowered(sums, {"m": 64})
    assert ops(func, TransposeChunksOp)
    assert not ops(func, ReduceRegistersOp)
    assert not ops(lowered(softmax, {"m": 64}), TransposeChunksOp)  # four rows are too few


def test_buffers_that_are_never_alive_together_share_memory():
    def two(x: ts.Tensor[64, 64, ts.f32], y: ts.Tensor[64, 64, ts.f32]):
        for _i in ts.tile.grid((64, 64)):
            first = ts.tile.exp(x[:, :])
            y[:, :] = first / ts.tile.row_sum(first)[:, None]
            second = ts.tile.exp(y[:, :])
            x[:, :] = second / ts.tile.row_sum(second)[:, None]

    offsets = [op.offset.data for op in ops(lowered(two), AllocOp) if op.result.type.shape == (64, 64)]
    assert len(offsets) == 2
    assert len(set(offsets)) == 1


def test_load_before_an_overlapping_store_is_kept():
    def shift(x: ts.Tensor["n", ts.f32]):
        for _i in ts.tile.grid((1, 1)):
            x[1:17] = x[0:16]

    func = lowered(shift, {"n": 64})
    assert ops(func, AllocOp)  # through scratch: a chunk's store would change what the next one loads


def test_same_place_is_updated_without_a_copy():
    func = lowered(add_fixed)
    assert not ops(func, BufferStoreOp)


def test_index_tile_of_a_rest_is_masked():
    def take(x: ts.Tensor[256, ts.f32], at: ts.Tensor[20, ts.u8], y: ts.Tensor[20, ts.f32]):
        for _i in ts.tile.grid((1, 1)):
            y[:] = x[at[:]]

    masks = [op.mask is not None for op in ops(lowered(take), GatherOp)]
    assert masks == [False, True]


def test_every_op_of_the_language_has_a_rule():
    lowered(add)  # registers the rules
    without = {op.name for op in tile_dialect().operations if op not in RULES}
    # The kernel's frame and the end of a combiner are read by the lowering itself; roles and what they need are what
    # GPU schedules add; sorting is written as exchanges by the schedule.
    frame = {"kernel", "return", "grid", "assume", "combined"}
    added = {
        "roles",
        "role_end",
        "role_group",
        "alloc_barriers",
        "barrier_arrive",
        "barrier_expect",
        "barrier_wait",
        "bulk_copy",
        "bulk_store",
        "bulk_wait",
        "round_tf32",
        "subtile",
        "sort",
        "cluster_rank",
        "cluster_arrive",
        "cluster_wait",
        "cluster_put",
        "misalignment",
        "stride",
        "load_flat",
        "store_flat",
        "gather_at",
        "scatter_at",
        "alloc_links",
        "partial_send",
        "partial_sum",
        "mma_begin",
        "mma_retire",
        "share",
        "leave_sums",
        "collect_sums",
        "mma_start",
        "mma_wait",
        "turn",
    }
    assert without == {f"tessera_tile.{name}" for name in frame | added}


def test_tiles_beyond_all_memory_are_refused():
    def huge(x: ts.Tensor[8192, 8192, ts.f32], y: ts.Tensor[8192, 8192, ts.f32]):
        for _i in ts.tile.grid((1, 1)):
            e = ts.tile.exp(x[:, :])
            y[:, :] = e / ts.tile.row_sum(e)[:, None]

    with pytest.raises(ResourceError) as caught:
        lowered(huge)
    assert caught.value.code == "scratch-limit"
    assert "8192x8192" in caught.value.message


def test_dump_parses_back():
    for kernel, sizes in ((add, {}), (softmax, {"m": 64}), (gemm, {}), (gemm_transposed, {})):
        module = lower_to_vector(scheduled(aligned(kernel, sizes), AVX512), AVX512)
        text = text_of(module)
        assert text_of(parse_module(text)) == text


def test_extent_that_the_host_cannot_compute_is_refused():
    def bad(x: ts.Tensor["n", ts.f32], counts: ts.Tensor[4, ts.i32]):
        for i in ts.tile.grid((counts[0], 16)):
            x[i : i + 16] = ts.tile.zeros((16,), ts.f32)

    with pytest.raises(LanguageError) as caught:
        lowered(bad)
    assert caught.value.code == "grid-extent"


def look_up(x: ts.Tensor["m", 512, ts.f32], at: ts.Tensor["k", ts.i32], y: ts.Tensor["k", 512, ts.f32]):
    for i in ts.tile.grid((k, 32)):
        y[i : i + 32, :] = x[at[i : i + 32], :]


def write_rows(x: ts.Tensor["k", 512, ts.f32], at: ts.Tensor["k", ts.i32], y: ts.Tensor["m", 512, ts.f32]):
    for i in ts.tile.grid((k, 32)):
        y[at[i : i + 32], :] = x[i : i + 32, :]


@pytest.mark.parametrize(("kernel", "kind"), [(look_up, LoadOp), (write_rows, StoreOp)])
def test_rows_at_indices_are_chunks_under_one_test(kernel, kind):
    func = lowered(kernel)
    assert not ops(func, GatherOp)
    assert not ops(func, ScatterOp)
    chunks = [op for op in ops(func, kind) if op.axis_list]
    tested = [op for op in chunks if list(op.checked_list) == [0] and not isinstance(op.offsets[0].owner, scf.ForOp)]
    assert chunks
    for op in chunks:
        assert op.vector.data == 64, "four vectors"
    for op in tested:  # stands in the else of a test that precedes the loop along the row
        branch = op.parent_op().parent_op()
        assert isinstance(branch, scf.IfOp)
        assert op.parent_op() in branch.false_region.block.ops
    assert len(tested) == len(chunks) // 2


def test_a_tile_past_an_end_goes_as_far_as_the_tensor() -> None:
    """Whole vectors are not tested there, the one that the end cuts is; what is read elsewhere keeps its tests."""

    def shifted(x: ts.Tensor["M", "N", ts.f32], z: ts.Tensor["Q", ts.f32], y: ts.Tensor["M", "N", ts.f32]):
        for i, j in ts.tile.grid((M, 8), (N, 128)):
            y[i : i + 8, j : j + 128] = x[i : i + 8, j : j + 128] + z[j : j + 128][None, :]

    func = lowered(shifted)
    (choice,) = [op for op in ops(func, scf.IfOp) if len(op.false_region.blocks) and ops(op, scf.ForOp)]
    past = choice.false_region
    chunks, cut = ([[*op.checked] for op in past.walk() if isinstance(op, kind)] for kind in (StoreOp, LoadOp))
    assert [len(checked) for checked in chunks] == [0, 1]
    assert sorted(len(checked) for checked in cut) == [0, 1, 1, 1]  # z, of another size, is tested in both
    loops = [op for op in past.walk() if isinstance(op, scf.ForOp)]
    assert len(loops) == 2
    assert all(isinstance(loop.ub.owner, ElementwiseOp) for loop in loops)


def test_a_tile_that_may_begin_before_a_tensor_is_tested_throughout() -> None:
    def before(x: ts.Tensor["N", ts.f32], y: ts.Tensor["N", ts.f32]):
        for i in ts.tile.grid((N, 128)):
            at = i - 5
            y[at : at + 128] = x[i : i + 128]

    stores = [op for op in ops(lowered(before), StoreOp) if len([*op.checked])]
    assert stores
    assert not any(isinstance(op.ub.owner, ElementwiseOp) for op in ops(lowered(before), scf.ForOp))
