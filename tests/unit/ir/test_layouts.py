"""Layouts of known machines: blocked tiles, matrix fragments, swizzles, conversions, ldmatrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from tessera.ir.layouts import (
    LayoutError,
    LinearLayout,
    axis_names,
    bank_conflicts,
    blocked,
    conversion_kind,
    exchange_layout,
    fragment_layout,
    fragment_repeats,
    from_fragment,
    identity1d,
    lane_map,
    ldmatrix,
    partner,
    reduction,
    register_map,
    row_major,
    shared_addresses,
    vector_width,
    wavefronts,
    xor_swizzle,
    zeros1d,
)
from tessera.ir.layouts.f2 import Span, kernel, rank
from tessera.target.fragments import MMA_SYNC, Fragment, MmaInstruction, mma_instruction

F16 = mma_instruction("m16n8k16_f16_f16_f32")
TF32 = mma_instruction("m16n8k8_tf32_tf32_f32")
I8 = mma_instruction("m16n8k32_i8_i8_i32")
FP8 = mma_instruction("m16n8k32_fp8_e4m3_fp8_e4m3_f32")


def owners(layout: LinearLayout) -> Counter[tuple[int, ...]]:
    return Counter(
        layout.apply(register=r, lane=x, warp=w)
        for r, x, w in product(range(layout.registers), range(layout.lanes), range(layout.warps))
    )


# Linear algebra over F2


def test_span_solves_with_free_vectors_at_zero() -> None:
    span = Span([0b001, 0b011, 0b010, 0b100])
    assert span.rank == 3
    assert span.solve(0b110) == 0b1011  # the third vector is the sum of the first two, hence unused
    assert span.solve(0b1000) is None
    assert 0b111 in span
    assert 0b1000 not in span


def test_kernel_names_the_dependent_columns() -> None:
    assert kernel([0b01, 0b10, 0b11, 0b00]) == (0b0111, 0b1000)
    assert rank([0b01, 0b10, 0b11, 0b00]) == 2


# The map


def test_apply_combines_bases_with_xor() -> None:
    """The two-by-two block swizzle of the paper's figure: rows flip the column."""
    layout = LinearLayout.make({"register": [(0, 1), (1, 1)]}, (2, 2))
    assert [layout.apply(register=r) for r in range(4)] == [(0, 0), (0, 1), (1, 1), (1, 0)]


def test_dims_come_in_standard_order() -> None:
    a = LinearLayout.make({"warp": [(2,)], "register": [(1,)], "lane": []}, (4,))
    b = LinearLayout.make({"register": [(1,)], "lane": [], "warp": [(2,)]}, (4,))
    assert a == b
    assert a.in_dims == ("register", "lane", "warp")
    assert (a.registers, a.lanes, a.warps, a.blocks) == (2, 1, 2, 1)


def test_text_form() -> None:
    text = '{"register": [[0, 1]], "lane": [[1, 0]]} -> {"dim0": 2, "dim1": 2}'
    assert str(LinearLayout.parse(text)) == text


@pytest.mark.parametrize("text", ["", "{}", "[] -> []", '{"lane": 3} -> {"dim0": 2}', "{} -> {", "1 -> 2"])
def test_text_that_is_no_layout(text: str) -> None:
    with pytest.raises(LayoutError, match="not a layout"):
        LinearLayout.parse(text)


@pytest.mark.parametrize(
    ("bases", "sizes", "message"),
    [
        ({"lane": [(1,)]}, (3,), "powers of two"),
        ({"lane": [(1,)]}, (0,), "powers of two"),
        ({"lane": [(4,)]}, (4,), "outside"),
        ({"lane": [(-1,)]}, (4,), "outside"),
        ({"lane": [(1, 0)]}, (4,), "coordinates"),
    ],
)
def test_malformed_layouts(bases: dict[str, list[tuple[int, ...]]], sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        LinearLayout.make(bases, sizes)


def test_output_names_must_fit() -> None:
    with pytest.raises(LayoutError, match="one to one"):
        LinearLayout.make({}, (2, 2), ("x",))
    with pytest.raises(LayoutError, match="one to one"):
        LinearLayout.make({}, (2, 2), ("x", "x"))


@pytest.mark.parametrize("inputs", [{"lane": 2}, {"lane": -1}, {"thread": 1}])
def test_apply_outside_the_layout(inputs: dict[str, int]) -> None:
    with pytest.raises(LayoutError, match="outside"):
        identity1d(2, "lane").apply(**inputs)


def test_product_of_names() -> None:
    layout = identity1d(4, "register", "dim1") * identity1d(8, "lane", "dim1") * identity1d(4, "lane", "dim0")
    assert layout.out_dims == ("dim1", "dim0")
    assert layout.apply(register=3, lane=0b10_101) == (5 * 4 + 3, 2)


def test_product_with_copies() -> None:
    layout = identity1d(4, "lane") * zeros1d(2, "lane") * identity1d(2, "warp")
    assert [layout.apply(lane=x, warp=1) for x in range(8)] == [(4 + x % 4,) for x in range(8)]
    with pytest.raises(LayoutError, match="power of two"):
        zeros1d(3, "lane")


def test_compose_needs_matching_dims() -> None:
    with pytest.raises(LayoutError, match="do not feed"):
        identity1d(4, "lane", "x").compose(identity1d(4, "y"))
    with pytest.raises(LayoutError, match="do not feed"):
        identity1d(8, "lane", "x").compose(identity1d(4, "x"))
    assert identity1d(4, "lane", "x").compose(identity1d(8, "x")).out_sizes == (8,)


def test_inverse_needs_a_bijection() -> None:
    with pytest.raises(LayoutError, match="pseudo_inverse"):
        (identity1d(4, "lane") * zeros1d(2, "lane")).inverse()
    with pytest.raises(LayoutError, match="not surjective"):
        LinearLayout.make({"lane": [(1,)]}, (4,)).inverse()


def test_sublayout_picks_dims() -> None:
    layout = from_fragment(F16.c, (32, 8), (2, 1))
    assert layout.sublayout(["lane"], [1]) == LinearLayout.make(
        {"lane": [(2,), (4,), (0,), (0,), (0,)]}, (8,), ("dim1",)
    )


def test_bad_axes() -> None:
    layout = LinearLayout.make({}, (4, 8))
    for bad in ((0,), (0, 0), (1, 2)):
        with pytest.raises(LayoutError, match="permute"):
            layout.transpose(bad)
        with pytest.raises(LayoutError, match="order"):
            layout.order_registers_by(bad)
    with pytest.raises(LayoutError, match="reshape"):
        layout.reshape((4, 4))


def test_axis_names() -> None:
    assert axis_names(2) == ("dim0", "dim1")


# Blocked layouts


def test_blocked_row_major() -> None:
    """Sizes (1, 4), lanes (4, 8), warps (2, 1): the element of each thread, written out as strides."""
    layout = blocked((16, 64), (1, 4), (4, 8), (2, 1), (1, 0))
    assert layout.registers == 16 * 64 // (32 * 2)
    for r, x, w in product(range(layout.registers), range(32), range(2)):
        column_part, row_part = r // 4 % 2, r // 8
        row = row_part * 8 + w * 4 + x // 8
        column = column_part * 32 + x % 8 * 4 + r % 4
        assert layout.apply(register=r, lane=x, warp=w) == (row, column)
    assert set(owners(layout).values()) == {1}


def test_blocked_column_major() -> None:
    layout = blocked((64, 16), (4, 1), (8, 4), (1, 2), (0, 1))
    assert layout == blocked((16, 64), (1, 4), (4, 8), (2, 1), (1, 0)).transpose((1, 0))


def test_small_tiles_wrap_around() -> None:
    layout = blocked((2, 16), (1, 4), (4, 8), (4, 1), (1, 0))
    assert owners(layout) == Counter(dict.fromkeys(product(range(2), range(16)), 16))
    assert layout.registers == 4
    assert layout.free_variable_masks() == {"register": 0, "lane": 0b10100, "warp": 0b11}


def test_registers_do_not_repeat_in_a_small_tile() -> None:
    layout = blocked((1, 2), (2, 8), (1, 32), (1, 1), (1, 0))
    assert layout.registers == 2
    assert layout.contiguous_per_thread(1) == 2


def test_blocked_rejects_nonsense() -> None:
    with pytest.raises(LayoutError, match="rank"):
        blocked((4, 4), (1,), (4, 8), (1, 1), (1, 0))
    with pytest.raises(LayoutError, match="order"):
        blocked((4, 4), (1, 1), (4, 8), (1, 1), (1, 1))
    with pytest.raises(LayoutError, match=r"multiple|powers"):
        blocked((4, 12), (1, 4), (4, 8), (1, 1), (1, 0))


# Matrix fragments


@pytest.mark.parametrize("instruction", MMA_SYNC, ids=lambda i: i.name)
def test_fragments_tile_over_warps_and_registers(instruction: MmaInstruction) -> None:
    warps = (2, 2)
    m, n, k = instruction.m, instruction.n, instruction.k
    for fragment, shape in (
        (instruction.a, (4 * m, 2 * k)),
        (instruction.b, (2 * k, 8 * n)),
        (instruction.c, (4 * m, 8 * n)),
    ):
        layout, one = from_fragment(fragment, shape, warps), fragment_layout(fragment)
        rows, columns = fragment_repeats(fragment, shape, warps)
        assert layout.registers == rows * columns * fragment.elements
        assert layout.is_surjective
        for w, i, j in product(range(4), range(rows), range(columns)):
            along = {"m": (w % 2, 2), "n": (w // 2, 2), "k": (0, 1)}
            (at_row, warps_row), (at_column, warps_column) = (along[axis] for axis in fragment.axes)
            corner = (
                (i * warps_row + at_row) * fragment.shape[0],
                (j * warps_column + at_column) * fragment.shape[1],
            )
            for r, x in product(range(fragment.elements), range(0, 32, 5)):
                inner = one.apply(register=r, lane=x)
                register = (i * columns + j) * fragment.elements + r
                got = layout.apply(register=register, lane=x, warp=w)
                assert got == (corner[0] + inner[0], corner[1] + inner[1])


def test_warps_beyond_the_tile_hold_copies() -> None:
    layout = from_fragment(F16.c, (16, 8), (2, 2))
    assert layout.registers == 4
    assert layout.free_variable_masks()["warp"] == 0b11
    assert fragment_repeats(F16.c, (16, 8), (2, 2)) == (1, 1)


def test_tiles_below_the_instruction() -> None:
    with pytest.raises(LayoutError, match="pad"):
        from_fragment(F16.a, (8, 16))


# Registers


def test_contiguity_of_fragments() -> None:
    tile = from_fragment(F16.c, (64, 64), (4, 1))
    assert tile.contiguous_per_thread(1) == 2
    assert tile.contiguous_per_thread(0) == 1
    assert from_fragment(I8.a, (16, 64)).contiguous_per_thread(1) == 4


def test_a_lane_that_flips_the_run_breaks_it() -> None:
    layout = LinearLayout.make({"register": [(1,)], "lane": [(3,)]}, (4,))
    assert layout.is_injective
    assert layout.contiguous_per_thread(0) == 1


def test_order_registers() -> None:
    tile = from_fragment(TF32.a, (16, 16))
    by_column = tile.order_registers_by((1, 0))
    assert [by_column.apply(register=r) for r in range(8)] == [(r // 4 * 8, r % 4 * 4) for r in range(8)]
    assert by_column != tile
    assert by_column.same_up_to_registers(tile)
    assert not by_column.same_up_to_registers(tile.transpose((1, 0)))
    assert not by_column.same_up_to_registers(from_fragment(TF32.a, (16, 16), (2, 1)))
    assert not by_column.same_up_to_registers(by_column.drop_axis(0))


# Conversions


def test_accumulator_becomes_an_operand_within_the_thread() -> None:
    """The step from scores to probabilities of attention: two 16x8 accumulators are one 16x16 A operand."""
    scores, operand = from_fragment(F16.c, (64, 32), (4, 1)), from_fragment(F16.a, (64, 32), (4, 1))
    assert conversion_kind(scores, operand) == "identity"
    by_rows = scores.order_registers_by((1, 0))
    assert conversion_kind(by_rows, operand) == "registers"
    moves = register_map(by_rows, operand)
    assert sorted(moves) == list(range(scores.registers))
    for r, x in product(range(operand.registers), range(32)):
        assert by_rows.apply(register=moves[r], lane=x, warp=2) == operand.apply(register=r, lane=x, warp=2)


@pytest.mark.parametrize("instruction", [TF32, FP8], ids=lambda i: i.name)
def test_other_accumulators_need_shuffles(instruction: MmaInstruction) -> None:
    accumulator = from_fragment(instruction.c, (32, 32), (2, 1))
    operand = from_fragment(instruction.a, (32, 32), (2, 1))
    assert conversion_kind(accumulator, operand) == "lanes"
    moves = lane_map(accumulator, operand)
    assert all(register == 0 or lane < 4 for register, lane in moves.sublayout(["register"]).in_bases("register"))
    for r, x, w in product(range(operand.registers), range(32), range(2)):
        register, lane = moves.apply(register=r, lane=x, warp=w)
        assert accumulator.apply(register=register, lane=lane, warp=w) == operand.apply(register=r, lane=x, warp=w)
    with pytest.raises(LayoutError, match="renumbering"):
        register_map(accumulator, operand)


def test_operands_of_other_warps_go_through_shared_memory() -> None:
    loaded = blocked((64, 64), (1, 8), (4, 8), (4, 1), (1, 0))
    operand = from_fragment(F16.a, (64, 64), (2, 2))
    assert conversion_kind(loaded, operand) == "shared"
    with pytest.raises(LayoutError, match="between warps"):
        lane_map(loaded, operand)


def test_dropping_copies_is_a_register_map() -> None:
    column = from_fragment(F16.c, (64, 64), (4, 1)).drop_axis(1)
    assert (column.registers, column.unique_registers().registers) == (32, 2)
    assert register_map(column, column.unique_registers()) == (0, 2)
    # and back: the broadcast of a row statistic over the tile costs nothing
    assert register_map(column.unique_registers(), column) == tuple(r >> 1 & 1 for r in range(32))


def test_broadcast_operands_match_their_tile() -> None:
    tile = from_fragment(F16.c, (64, 64), (4, 1))
    statistic = tile.drop_axis(1).expand_axis(1)
    assert statistic.out_sizes == (64, 1)
    for r, x in product(range(tile.registers), range(32)):
        assert statistic.apply(register=r, lane=x, warp=3) == (tile.apply(register=r, lane=x, warp=3)[0], 0)


def test_conversions_that_cannot_be() -> None:
    tile = from_fragment(F16.c, (64, 64), (4, 1))
    with pytest.raises(LayoutError, match="different tiles"):
        conversion_kind(tile, from_fragment(F16.c, (64, 32), (4, 1)))
    with pytest.raises(LayoutError, match="different threads"):
        conversion_kind(tile, from_fragment(F16.c, (64, 64), (2, 1)))
    with pytest.raises(LayoutError, match="lacks elements"):
        conversion_kind(LinearLayout.make({"lane": [(0,)]}, (2,)), identity1d(2, "lane"))
    a = identity1d(2, "register") * identity1d(2, "block")
    b = identity1d(2, "block") * identity1d(2, "register")
    with pytest.raises(LayoutError, match="between thread blocks"):
        conversion_kind(a, b)


# Reductions


def test_row_statistic_of_an_accumulator() -> None:
    """Each row lies in the four lanes of a group: two shuffles, no shared memory."""
    tile = from_fragment(F16.c, (64, 64), (4, 1))
    plan = reduction(tile, 1)
    assert plan.result == tile.drop_axis(1).unique_registers()
    assert plan.shuffles == ((0, 1), (0, 2))
    assert plan.warps == ()
    assert plan.groups == tuple(tuple(r for r in range(32) if r >> 1 & 1 == row) for row in range(2))


def test_column_statistic_crosses_warps() -> None:
    plan = reduction(from_fragment(F16.c, (64, 64), (4, 1)), 0)
    assert plan.shuffles == ((0, 4), (0, 8), (0, 16))
    assert plan.warps == ((0, 0, 1), (0, 0, 2))
    assert [len(group) for group in plan.groups] == [2] * 16


def test_copies_are_not_reduced_twice() -> None:
    tile = blocked((1, 16), (1, 1), (1, 32), (4, 1), (1, 0))
    plan = reduction(tile, 1)
    assert plan.shuffles == ((0, 1), (0, 2), (0, 4), (0, 8))
    assert plan.warps == ()


def test_reductions_that_cannot_be_planned() -> None:
    with pytest.raises(LayoutError, match="thread blocks"):
        reduction(identity1d(2, "block"), 0)
    with pytest.raises(LayoutError, match="unique_registers"):
        reduction(zeros1d(2, "register") * identity1d(2, "lane"), 0)


@pytest.mark.parametrize("seed", range(20))
def test_partners_stand_where_their_masks_say(seed: int) -> None:
    """A random invertible map of 3 register, 5 lane and 2 warp bits to 32 x 32 indices, and one with copies."""
    rng = np.random.default_rng(seed)
    while True:
        columns = [int(column) for column in rng.integers(1, 1 << 10, 10)]
        if rank(columns) == 10:
            break
    if seed % 2:
        columns[9] = columns[0]  # warps hold copies of what registers hold
    dims = {"register": columns[:3], "lane": columns[3:8], "warp": columns[8:]}
    layout = LinearLayout.make({dim: [(c >> 5, c & 31) for c in part] for dim, part in dims.items()}, (32, 32))
    reached = {layout.apply(register=r, lane=w % 32, warp=w // 32) for r in range(8) for w in range(128)}
    for axis, bits in product(range(2), (1, 5, 16, 31)):
        step = (bits, 0) if axis == 0 else (0, bits)
        if step not in reached:
            with pytest.raises(LayoutError, match="no thread"):
                partner(layout, axis, bits)
            continue
        register, lane, warp = partner(layout, axis, bits)
        for r, w in product(range(8), range(128)):
            own = layout.apply(register=r, lane=w % 32, warp=w // 32)
            other = layout.apply(register=r ^ register, lane=w % 32 ^ lane, warp=w // 32 ^ warp)
            assert other == (own[0] ^ step[0], own[1] ^ step[1])
        if seed % 2:
            assert not warp & 2, "registers are nearer"


# Shared memory


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("elem_bytes", [1, 2, 4])
def test_swizzles_of_tma(swizzle: int, elem_bytes: int) -> None:
    """TMA XORs address bits 4.. with bits 7..: one, two or three of them for 32, 64 and 128 bytes."""
    shape = (64, 2 * swizzle // elem_bytes)
    shared = xor_swizzle(shape, elem_bytes, row_bytes=swizzle)
    width = swizzle // elem_bytes
    for row, column in product(range(0, 64, 3), range(shape[1])):
        plain = (column // width * 64 * width + row * width + column % width) * elem_bytes
        address = plain ^ (plain >> 7 & swizzle // 16 - 1) << 4
        assert shared.apply(offset=address // elem_bytes) == (row, column)


def test_row_major() -> None:
    assert [row_major((2, 4)).apply(offset=i) for i in range(8)] == list(product(range(2), range(4)))


@pytest.mark.parametrize("row_bytes", [16, 32, 64, 128, 256, 512])
def test_swizzle_serves_columns_of_vectors_without_conflict(row_bytes: int) -> None:
    """Eight lanes that read 16 bytes of eight consecutive rows meet all 32 banks, as ldmatrix does."""
    shape = (64, row_bytes // 2)
    column = blocked(shape, (1, 8), (32, 1), (1, 1), (0, 1))
    assert bank_conflicts(column, xor_swizzle(shape, 2), 2) == 0
    plain = min(8, max(1, row_bytes // 16))
    assert bank_conflicts(column, row_major(shape), 2) == 4 * (plain - 1)


def test_classic_transpose_conflict() -> None:
    """Reading a column of a 32x32 tile of words: 32 wavefronts, against one for a row."""
    shape = (32, 32)
    row, column = (blocked(shape, (1, 1), lanes, (1, 1), (1, 0)) for lanes in ((1, 32), (32, 1)))
    assert bank_conflicts(row, row_major(shape), 4) == 0
    assert bank_conflicts(column, row_major(shape), 4, vec=1) == 31
    assert bank_conflicts(column, xor_swizzle(shape, 4, vec_bytes=4), 4, vec=1) == 0


@pytest.mark.parametrize("elem_bytes", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("shape", "vector"), [((64, 32), 8), ((16, 128), 8), ((32, 1, 64), 1), ((32, 2, 4, 2, 4), 1), ((8, 1, 32, 8), 4)]
)
def test_exchanges_meet_in_no_bank(shape: tuple[int, ...], vector: int, elem_bytes: int) -> None:
    """A tile is written along its first axis and read along its last, each with all lanes at once."""
    axes = list(range(len(shape)))
    sides = [_along(shape, order, vector) for order in (axes, axes[::-1])]
    shared = exchange_layout(sides[0], sides[1], elem_bytes)
    for side in sides:
        assert bank_conflicts(side, shared, elem_bytes) == 0
        assert wavefronts(side, shared, elem_bytes) <= side.registers * max(1, elem_bytes // 4)


def _along(shape: tuple[int, ...], order: list[int], vector: int) -> LinearLayout:
    """Return a layout of four warps whose threads, lanes and warps follow one another along the axes of an order."""
    bits = [(axis, 1 << bit) for axis in order for bit in range(shape[axis].bit_length() - 1)]
    vectors = [tuple(at if a == axis else 0 for a in range(len(shape))) for axis, at in bits]
    held = vector.bit_length() - 1
    registers = [*vectors[:held], *vectors[held + 7 :]]
    return LinearLayout.make(
        {"register": registers, "lane": vectors[held : held + 5], "warp": vectors[held + 5 : held + 7]}, shape
    )


def test_lanes_share_a_word() -> None:
    """A broadcast and two halves of one word cost nothing."""
    shape = (1, 64)
    copies = LinearLayout.make({"lane": [(0, 0)] * 5}, shape)
    halves = blocked(shape, (1, 1), (1, 32), (1, 1), (1, 0))
    assert bank_conflicts(copies, row_major(shape), 4) == 0
    assert bank_conflicts(halves, row_major(shape), 2, vec=1) == 0


def test_vector_width() -> None:
    shape = (64, 64)
    rows = blocked(shape, (1, 8), (4, 8), (4, 1), (1, 0))
    for shared in (row_major(shape), xor_swizzle(shape, 2)):
        assert vector_width(rows, shared, 2) == 8
        assert vector_width(rows, shared, 4) == 4
        assert vector_width(rows, shared, 2, max_bytes=8) == 4
        assert vector_width(from_fragment(F16.c, shape, (4, 1)), shared, 4) == 2
        assert vector_width(blocked(shape, (8, 1), (8, 4), (4, 1), (0, 1)), shared, 2) == 1
    with pytest.raises(LayoutError, match="does not hold"):
        bank_conflicts(from_fragment(F16.c, shape, (4, 1)), row_major(shape), 4, vec=4)


def test_addresses() -> None:
    shape = (64, 64)
    rows, shared = blocked(shape, (1, 8), (4, 8), (4, 1), (1, 0)), xor_swizzle(shape, 2)
    addresses = shared_addresses(rows, shared)
    for r, x, w in product(range(0, rows.registers, 3), range(32), range(4)):
        (offset,) = addresses.apply(register=r, lane=x, warp=w)
        assert shared.apply(offset=offset) == rows.apply(register=r, lane=x, warp=w)


def test_shared_layouts_that_do_not_fit() -> None:
    tile = from_fragment(F16.c, (64, 64), (4, 1))
    with pytest.raises(LayoutError, match="not a shared layout"):
        shared_addresses(tile, row_major((64, 32)))
    with pytest.raises(LayoutError, match="not a shared layout"):
        shared_addresses(tile, tile)
    for bad in (xor_swizzle, lambda shape, size: xor_swizzle(shape, 2, row_bytes=size * 24)):
        with pytest.raises(LayoutError, match="rows of"):
            bad((64, 64), 3)


# ldmatrix

PLAIN = [
    (F16.a, (64, 64), 2),
    (F16.a, (32, 16), 2),
    (TF32.a, (32, 32), 4),
    (I8.a, (32, 64), 1),
]
TRANSPOSED_IN_MEMORY = [
    (F16.b, (64, 64), 2),
    (F16.b, (16, 16), 2),
    (TF32.b, (32, 32), 4),
    (I8.b, (64, 32), 1),
    (FP8.b, (32, 16), 1),
]


def swap(shape: Sequence[int]) -> tuple[int, int]:
    return shape[1], shape[0]


def emulate_ldmatrix(tile: LinearLayout, shared: LinearLayout, elem_bytes: int) -> int:
    """Run the planned instructions as the ISA words them; return how many there are per thread."""
    plan = ldmatrix(tile, shared, elem_bytes)
    assert plan is not None
    row_elems, unit = 16 // elem_bytes, 4 // elem_bytes
    instructions = plan.addresses.registers
    assert instructions * plan.matrices * unit == tile.registers
    for w, i, j, x in product(range(0, tile.warps), range(instructions), range(plan.matrices), range(0, 32, 3)):
        # Lane 8j + r gives the address of row r of matrix j.
        starts = [plan.addresses.apply(register=i, lane=8 * j + r, warp=w)[0] for r in range(8)]
        assert all(start % row_elems == 0 for start in starts)
        rows = [[shared.apply(offset=start + e) for e in range(row_elems)] for start in starts]
        if plan.trans:
            got = [rows[2 * (x % 4) + e][x // 4] for e in range(2)]
        else:
            got = rows[x // 4][x % 4 * unit : x % 4 * unit + unit]
        first = (i * plan.matrices + j) * unit
        assert got == [tile.apply(register=first + e, lane=x, warp=w) for e in range(unit)]
    return instructions


@pytest.mark.parametrize(("fragment", "shape", "elem_bytes"), PLAIN)
@pytest.mark.parametrize("warps", [(1, 1), (2, 1), (1, 2)])
def test_ldmatrix_loads_a(fragment: Fragment, shape: tuple[int, int], elem_bytes: int, warps: tuple[int, int]) -> None:
    tile = from_fragment(fragment, shape, warps)
    for shared in (
        xor_swizzle(shape, elem_bytes),
        row_major(shape),
        xor_swizzle(shape, elem_bytes, row_bytes=32),
    ):
        emulate_ldmatrix(tile, shared, elem_bytes)
    plan = ldmatrix(tile, xor_swizzle(shape, elem_bytes), elem_bytes)
    assert plan is not None
    assert (plan.matrices, plan.trans, plan.extra_wavefronts) == (4, False, 0)


@pytest.mark.parametrize(("fragment", "shape", "elem_bytes"), TRANSPOSED_IN_MEMORY)
@pytest.mark.parametrize("warps", [(1, 1), (2, 1), (1, 2)])
def test_ldmatrix_loads_b_stored_k_major(
    fragment: Fragment, shape: tuple[int, int], elem_bytes: int, warps: tuple[int, int]
) -> None:
    """B stored as (n, k): the rows of memory run along k, as the operand registers do."""
    tile = from_fragment(fragment, shape, warps)
    shared = xor_swizzle(swap(shape), elem_bytes).transpose((1, 0))
    emulate_ldmatrix(tile, shared, elem_bytes)
    plan = ldmatrix(tile, shared, elem_bytes)
    assert plan is not None
    assert not plan.trans
    assert plan.extra_wavefronts == 0


@pytest.mark.parametrize("warps", [(1, 1), (2, 2)])
def test_ldmatrix_transposes_16_bit_operands(warps: tuple[int, int]) -> None:
    shape = (64, 64)
    for fragment, shared in (
        (F16.b, xor_swizzle(shape, 2)),
        (F16.a, xor_swizzle(shape, 2).transpose((1, 0))),
    ):
        tile = from_fragment(fragment, shape, warps)
        emulate_ldmatrix(tile, shared, 2)
        plan = ldmatrix(tile, shared, 2)
        assert plan is not None
        assert plan.trans
        assert plan.extra_wavefronts == 0


def test_ldmatrix_sees_conflicts() -> None:
    """Rows of 128 bytes without a swizzle: the eight rows of a matrix meet in the same banks."""
    plan = ldmatrix(from_fragment(F16.a, (64, 64)), row_major((64, 64)), 2)
    assert plan is not None
    assert plan.extra_wavefronts == 4 * 7


def test_ldmatrix_of_a_single_matrix() -> None:
    tile = from_fragment(mma_instruction("m16n8k8_f16_f16_f32").b, (8, 8))
    assert emulate_ldmatrix(tile, row_major((8, 8)).transpose((1, 0)), 2) == 1
    plan = ldmatrix(tile, row_major((8, 8)).transpose((1, 0)), 2)
    assert plan is not None
    assert plan.matrices == 1
    assert all(plan.addresses.apply(lane=x) == plan.addresses.apply(lane=x % 8) for x in range(32))


@pytest.mark.parametrize(
    ("tile", "shared", "elem_bytes"),
    [
        # 8-bit operands cannot be transposed
        (from_fragment(I8.b, (32, 64)), xor_swizzle((32, 64), 1), 1),
        # the swizzle moves units smaller than a row of the matrix
        (from_fragment(F16.a, (64, 64)), xor_swizzle((64, 64), 2, vec_bytes=8), 2),
        # a blocked layout is none that the instruction writes
        (blocked((64, 64), (1, 8), (4, 8), (1, 1), (1, 0)), row_major((64, 64)), 2),
        # registers not in the order in which the instruction packs them
        (from_fragment(F16.a, (64, 64)).order_registers_by((0, 1)), row_major((64, 64)), 2),
        # f64 fragments
        (fragment_layout(mma_instruction("m8n8k4_f64_f64_f64").a), row_major((8, 4)), 8),
        # fewer registers than one packed word
        (LinearLayout.make({"lane": [(0, 1), (0, 2), (0, 4), (1, 0), (2, 0)]}, (4, 8)), row_major((4, 8)), 2),
        # a wave of 64 lanes
        (blocked((64, 64), (1, 2), (16, 4), (1, 1), (1, 0)), row_major((64, 64)), 2),
    ],
)
def test_ldmatrix_does_not_fit(tile: LinearLayout, shared: LinearLayout, elem_bytes: int) -> None:
    assert ldmatrix(tile, shared, elem_bytes) is None
