"""SIMT lowering of warp roles: persistent programs, phase barriers, tensor maps, warpgroup products."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.backends.nvidia import compile_nvidia
from tessera.backends.nvidia.mnemonics import warpgroup_mnemonic
from tessera.backends.nvidia.roles import part_bytes
from tessera.driver.pipeline import schedule_passes
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout, bank_conflicts
from tessera.ir.target import arithmetic
from tessera.ir.target import roles as target
from tessera.ir.target.memory import BarrierOp, BufferLoadOp, BufferStoreOp, LdmatrixOp
from tessera.ir.target.structure import FuncOp, ProgramCountOp, ProgramIdOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.warpgroup import TensorCoreStartOp
from tessera.lower.simt import lower_to_simt
from tessera.schedule.knobs import Knobs
from tessera.target.artifact import MOST_MAPPED
from tessera.target.fragments import wgmma_instruction
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper import test_rounding as tf32
from tests.unit.schedule.hopper.kernels import (
    attention,
    gemm,
    gemm_scaled,
    gemm_stored_transposed,
    gemm_transposed,
)

SIZES = {"M": 128, "N": 128, "K": 128, "H": 2, "S": 128}
HOPPER = target_named("sm_90a")


def lowered(function: Any) -> FuncOp:
    module = aligned(function, SIZES)
    for step in schedule_passes(HOPPER, Knobs()):
        step.apply(module)
    (func,) = [op for op in lower_to_simt(module, HOPPER).ops if isinstance(op, FuncOp)]
    func.verify()
    return func


def ops(root: Any, kind: type[Any]) -> list[Any]:
    return [op for op in root.walk() if isinstance(op, kind)]


def test_each_role_walks_its_programs_tiles_and_carries_its_place_in_the_rings() -> None:
    func = lowered(gemm)
    (split,) = ops(func, target.RolesOp)
    assert len(ops(func, ProgramIdOp)) == len(ops(func, ProgramCountOp)) == 1
    for region in (split.producer, split.consumer):
        (tiles,) = [op for op in region.block.ops if isinstance(op, scf.ForOp)]
        assert tiles.lb.owner is ops(func, ProgramIdOp)[0]
        assert tiles.step.owner is ops(func, ProgramCountOp)[0]
        (inner,) = [op for op in tiles.body.block.ops if isinstance(op, scf.ForOp)]
        places = [list(inner.iter_args).index(place) for place in tiles.body.block.args[1:]]
        end = tiles.body.block.last_op
        assert end is not None
        assert list(end.operands) == [inner.results[place] for place in places]


def value_of(value: Any, known: dict[Any, int]) -> int:
    """Compute index arithmetic from the values known."""
    if value in known:
        return known[value]
    op = value.owner
    if isinstance(op, arithmetic.ConstantOp):
        return int(op.python_value)
    if isinstance(op, arithmetic.CastOp):
        return value_of(op.source, known)
    args = [value_of(arg, known) for arg in op.args]
    functions = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "lt": int.__lt__, "le": int.__le__}
    functions |= {"floordiv": int.__floordiv__, "mod": int.__mod__, "maximum": max, "minimum": min}
    functions |= {"select": lambda which, a, b: a if which else b}
    return int(functions[op.fn.data](*args))


def _tile_of(branch: scf.IfOp) -> Any:
    """Return the number of the tile that a branch does: the first value it makes of the number of the turn."""
    turn = branch.cond.owner.args[0]
    return next(op.result for op in branch.true_region.block.ops if turn in op.operands)


@pytest.mark.parametrize("programs", [1, 3, 4, 132])
def test_uneven_tiles_are_taken_there_and_back(programs: int) -> None:
    heads, blocks = 3, 5
    func = lowered(attention)  # causal, so that later rows have longer loops
    (split,) = ops(func, target.RolesOp)
    sizes = {
        arg: {0: heads, 1: 64 * blocks}[record.axis]
        for record, arg in zip(func.parameters, func.body.block.args, strict=True)
        if record.kind == "size"
    }
    for region in (split.producer, split.consumer):
        (loop,) = [op for op in region.block.ops if isinstance(op, scf.ForOp)]
        (branch,) = [op for op in loop.body.block.ops if isinstance(op, scf.IfOp)]
        taken: list[list[int]] = []
        for program in range(programs):
            known = {ops(func, ProgramIdOp)[0].result: program, ops(func, ProgramCountOp)[0].result: programs}
            known |= sizes
            bounds = [value_of(v, known) for v in (loop.lb, loop.ub, loop.step)]
            place, mine = value_of(loop.iter_args[-1], known), []
            for at in range(*bounds):
                here = {**known, loop.body.block.args[0]: at, loop.body.block.args[-1]: place}
                if value_of(branch.cond, here):
                    mine.append(value_of(branch.cond.owner.args[0], here))
                    assert value_of(_tile_of(branch), here) == heads * blocks - 1 - mine[-1], "the longest first"
                place = value_of(loop.body.block.last_op.operands[-1], here)
            taken.append(mine)
        assert sorted(tile for mine in taken for tile in mine) == list(range(heads * blocks))
        assert all(mine[1] == 2 * programs - 1 - mine[0] for mine in taken if len(mine) > 1)


@pytest.mark.parametrize(("programs", "by_length"), [(1, False), (11, False), (12, True), (13, True), (40, True)])
def test_tiles_of_a_round_are_of_one_length_where_enough_programs_share_a_head(programs: int, by_length: bool) -> None:
    heads, blocks = 3, 5
    func = lowered(attention)
    (split,) = ops(func, target.RolesOp)
    known = {
        arg: {0: heads, 1: 64 * blocks}[record.axis]
        for record, arg in zip(func.parameters, func.body.block.args, strict=True)
        if record.kind == "size"
    }
    known |= {ops(func, ProgramIdOp)[0].result: 0, ops(func, ProgramCountOp)[0].result: programs}
    (loop,) = [op for op in split.producer.block.ops if isinstance(op, scf.ForOp)]
    (branch,) = [op for op in loop.body.block.ops if isinstance(op, scf.IfOp)]
    queries = next(op for op in branch.true_region.block.ops if isinstance(op, target.BulkCopyOp))
    found = []
    for number in range(heads * blocks):
        here = known | {loop.body.block.args[0]: number, loop.body.block.args[-1]: 0}
        _, place, head = (value_of(one, here) for one in queries.coordinates)
        found.append((place // 64, head))
    assert sorted(found) == [(block, head) for block in range(blocks) for head in range(heads)]
    lengths = [block for block, _ in found]
    assert (lengths == sorted(lengths, reverse=True)) == by_length
    if not by_length:
        assert [head for _, head in found] == sorted((head for _, head in found), reverse=True)


def test_copies_are_of_the_producer_and_products_of_the_consumers() -> None:
    (split,) = ops(lowered(gemm), target.RolesOp)
    assert len([op for op in split.producer.walk() if isinstance(op, target.BulkCopyOp)]) == 2
    assert not [op for op in split.producer.walk() if isinstance(op, TensorCoreOp)]
    assert not [op for op in split.consumer.walk() if isinstance(op, target.BulkCopyOp)]


@pytest.mark.parametrize("function", [gemm, gemm_transposed])
def test_maps_start_with_the_contiguous_dimension(function: Any) -> None:
    maps = [p for p in lowered(function).parameters if p.kind == "tensor_map"]
    assert [p.order for p in maps] == [(1, 0)] * 3
    assert [p.box[0] for p in maps] == [64, 64, 32], "64 elements of 16 bits, or 32 of 32 bits, are a panel"


@pytest.mark.parametrize("function", [gemm, gemm_transposed, gemm_scaled, attention])
def test_products_are_of_warpgroups_and_assemble_without_spills(function: Any) -> None:
    func = lowered(function)
    products = [*ops(func, TensorCoreOp), *ops(func, TensorCoreStartOp)]
    names = {op.instruction.data for op in products}
    assert names == {"wgmma_m64n64k16_bf16_bf16_f32"}
    module = func.parent_op()
    code = compile_nvidia(module, HOPPER)  # pyright: ignore[reportArgumentType]
    counts, (facts,) = code.reflection["instructions"], code.reflection["kernels"].values()
    assert counts["wgmma"] == 4 * len(products)
    assert counts["tma"] > 0
    assert facts["persistent"]
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert facts["threads"] == 256
    assert "setmaxnreg.inc.sync.aligned.u32 240" in code.dumps["ptx"]


@pytest.mark.parametrize(
    ("a", "b", "n", "expected"),
    [
        ("bf16", "bf16", 256, "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"),
        ("fp8_e4m3", "fp8_e5m2", 64, "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e5m2"),
        ("i8", "u8", 128, "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.u8"),
        ("i8", "i8", 24, "wgmma.mma_async.sync.aligned.m64n24k32.s32.s8.s8"),
        ("i8", "i8", 40, None),
        ("tf32", "tf32", 256, "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32"),
        ("tf32", "bf16", 64, None),
        ("f16", "bf16", 64, None),
        ("bf16", "bf16", 264, None),
        ("f32", "f32", 64, None),
    ],
)
def test_the_warpgroup_instruction_of_dtypes_and_columns(a: str, b: str, n: int, expected: str | None) -> None:
    found = wgmma_instruction(a, b, "i32" if "8" in a and "fp8" not in a else "f32", n)
    assert (warpgroup_mnemonic(found) if found else None) == expected


def test_each_warp_stores_the_rows_it_computed_and_waits_for_no_other() -> None:
    func = lowered(gemm)
    stores = ops(func, target.BulkStoreOp)
    assert [(op.rows.data, op.box_sizes, op.row_axis.data) for op in stores] == [(16, (32, 16), 1)] * 2
    assert len(ops(func, target.WarpBarrierOp)) == 2 * len(stores)
    (split,) = ops(func, target.RolesOp)
    assert not [op for op in split.consumer.walk() if isinstance(op, BarrierOp)]
    assert isinstance(split.consumer.block.last_op, target.BulkWaitOp)


def test_a_tile_stored_along_the_other_axis_is_stored_by_one_thread() -> None:
    func = lowered(gemm_stored_transposed)
    (store,) = ops(func, target.BulkStoreOp)
    assert [store.rows.data, store.box_sizes] == [0, (32, 64)]
    assert not ops(func, target.WarpBarrierOp)


def rows(layout: LinearLayout, dim: str) -> list[int]:
    """Return the steps along rows of a layout's basis vectors, without those that stay in a row."""
    return [row for row, _ in layout.in_bases(dim) if row]


@pytest.mark.parametrize("kernel", [tf32.nn, tf32.tt, tf32.tn], ids=lambda kernel: kernel.__name__)
def test_lanes_read_a_left_operand_of_tf32_from_all_banks(kernel: Any) -> None:
    func = lowered(kernel)
    (product,) = ops(func, TensorCoreOp)
    left, sums = product.a.type.linear, product.acc.type.linear
    # The instruction multiplies row i of its operand into row i of its sums, wherever these are in the tile.
    for dim in (REGISTER, LANE, WARP):
        assert rows(left, dim) == rows(sums, dim)
    assert sorted(row for dim in (REGISTER, LANE, WARP) for row in rows(left, dim)) == [
        1 << bit for bit in range(left.out_sizes[0].bit_length() - 1)
    ]
    (load,) = [op for op in ops(func, BufferLoadOp) if op.result.type.linear.size == left.size]
    stored = load.buffer.type
    assert bank_conflicts(load.result.type.linear, stored.shared_layout(), stored.dtype.bytes) == 0


def test_operands_that_are_turned_in_shared_memory_meet_no_conflicts() -> None:
    func = lowered(tf32.tn)
    (load,) = [op for op in ops(func, LdmatrixOp)]
    (store,) = [op for op in ops(func, BufferStoreOp) if op.value.type.linear.size == load.result.type.linear.size][:1]
    for value, buffer in ((load.result, load.buffer), (store.value, store.buffer)):
        shared = buffer.type.shared_layout()
        assert bank_conflicts(value.type.linear, shared, 4) == 0


def gemm_from(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
    at: int,
    near: ts.u32,
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m + at : m + at + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m + near : m + near + 64, n : n + 64] = acc


def test_coordinates_of_the_copy_engine_are_bounded_where_they_may_not_fit_32_bits() -> None:
    func = lowered(gemm_from)

    def bounded(coordinate: Any) -> tuple[str, ...]:
        found: list[str] = []
        while isinstance(coordinate.owner, arithmetic.ElementwiseOp):
            name, limit = coordinate.owner.fn.data, arithmetic.constant_value(coordinate.owner.args[1])
            if name not in ("minimum", "maximum") or abs(limit) != MOST_MAPPED:
                break
            found.append(name)
            coordinate = coordinate.owner.args[0]
        return tuple(found)

    both = ("minimum", "maximum")
    copies = ops(func, target.BulkCopyOp)
    assert sorted([bounded(c) for c in copy.coordinates] for copy in copies) == [[(), ()], [(), both]]
    stores = ops(func, target.BulkStoreOp)
    assert stores
    above = ("minimum",)  # a store never begins before its tensor
    assert all([bounded(c) for c in store.coordinates] == [(), above] for store in stores)


@pytest.mark.parametrize(
    ("box", "axis", "size", "expected"),
    [((64, 16), 1, 2, 2048), ((64, 16), 1, 1, 1024), ((32, 64, 8), 2, 4, 65536), ((32, 8, 1), 1, 1, 256)],
)
def test_parts_of_a_shared_copy_follow_one_another(box, axis, size, expected):
    """A part ends where the next begins: rows of boxes narrower than 128 bytes stand closer together."""
    assert part_bytes(box, axis, size) == expected
