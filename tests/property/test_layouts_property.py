"""The layout algebra against plain enumeration of every register, lane and warp."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tessera.ir.layouts import (
    LayoutError,
    LinearLayout,
    bank_conflicts,
    blocked,
    conversion_kind,
    exchange_layout,
    lane_map,
    reduction,
    register_map,
    row_major,
    shared_addresses,
    vector_width,
    wavefronts,
    xor_swizzle,
)

_DIMS = ("register", "lane", "warp")


@st.composite
def shapes(draw: st.DrawFn, max_bits: int = 6, rank: int | None = None) -> tuple[int, ...]:
    bits = draw(st.lists(st.integers(0, 3), min_size=rank or 1, max_size=rank or 3))
    assume(sum(bits) <= max_bits)
    return tuple(1 << b for b in bits)


@st.composite
def layouts(draw: st.DrawFn, shape: Sequence[int] | None = None, max_bits: int = 3) -> LinearLayout:
    """Any layout: replicated, incomplete, swizzled."""
    shape = draw(shapes()) if shape is None else shape
    vector = st.tuples(*[st.integers(0, size - 1) for size in shape])
    return LinearLayout.make({d: draw(st.lists(vector, max_size=max_bits)) for d in _DIMS}, shape)


@st.composite
def bijections(draw: st.DrawFn, shape: Sequence[int] | None = None) -> LinearLayout:
    """Any bijection: a product of elementary matrices, dealt out to registers, lanes and warps."""
    shape = draw(shapes()) if shape is None else shape
    flat = LinearLayout.make({}, shape)
    bits = flat.out_bits
    columns = list(draw(st.permutations([1 << b for b in range(bits)])))
    for i, j in draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8)):
        if bits and i % bits != j % bits:
            columns[i % bits] ^= columns[j % bits]
    cuts = sorted(draw(st.tuples(st.integers(0, bits), st.integers(0, bits))))
    parts = (columns[: cuts[0]], columns[cuts[0] : cuts[1]], columns[cuts[1] :])
    return LinearLayout.make({d: [flat.unflatten(c) for c in p] for d, p in zip(_DIMS, parts, strict=True)}, shape)


@st.composite
def permuted(draw: st.DrawFn, layout: LinearLayout) -> LinearLayout:
    """The same map with its bits dealt out to registers, lanes and warps in another order."""
    vectors = draw(st.permutations([v for _, vectors in layout.bases for v in vectors]))
    bases: dict[str, list[tuple[int, ...]]] = {}
    at = 0
    for dim, old in layout.bases:
        bases[dim] = list(vectors[at : at + len(old)])
        at += len(old)
    return LinearLayout.make(bases, layout.out_sizes)


def _inputs(layout: LinearLayout) -> Iterator[dict[str, int]]:
    for index in product(*(range(layout.in_size(dim)) for dim in layout.in_dims)):
        yield dict(zip(layout.in_dims, index, strict=True))


def _held(layout: LinearLayout) -> Counter[tuple[int, ...]]:
    return Counter(layout.apply(**at) for at in _inputs(layout))


def _positions(shape: Sequence[int]) -> set[tuple[int, ...]]:
    return set(product(*map(range, shape)))


@given(layouts())
def test_text_round_trip(layout: LinearLayout) -> None:
    assert LinearLayout.parse(str(layout)) == layout
    assert hash(LinearLayout.parse(str(layout))) == hash(layout)


@given(layouts(), st.data())
def test_apply_is_linear(layout: LinearLayout, data: st.DataObject) -> None:
    a, b = ({d: data.draw(st.integers(0, layout.in_size(d) - 1)) for d in _DIMS} for _ in range(2))
    both = {d: a[d] ^ b[d] for d in _DIMS}
    assert layout.apply(**both) == tuple(x ^ y for x, y in zip(layout.apply(**a), layout.apply(**b), strict=True))


@given(layouts())
def test_surjective_and_injective(layout: LinearLayout) -> None:
    held = _held(layout)
    assert layout.is_surjective == (set(held) == _positions(layout.out_sizes))
    assert layout.is_injective == (set(held.values()) == {1})


@given(layouts())
def test_inputs_without_free_bits_hold_everything_once(layout: LinearLayout) -> None:
    masks = layout.free_variable_masks()
    writers = Counter(layout.apply(**at) for at in _inputs(layout) if not any(at[d] & masks[d] for d in masks))
    assert writers == Counter(dict.fromkeys(_held(layout), 1))


@given(layouts())
def test_pseudo_inverse_finds_every_element(layout: LinearLayout) -> None:
    assume(layout.is_surjective)
    back, masks = layout.pseudo_inverse(), layout.free_variable_masks()
    for at in _positions(layout.out_sizes):
        found = dict(zip(layout.in_dims, back.apply(**{f"dim{i}": x for i, x in enumerate(at)}), strict=True))
        assert layout.apply(**found) == at
        assert not any(found[d] & masks[d] for d in masks)


@given(bijections())
def test_inverse(layout: LinearLayout) -> None:
    assert layout.is_injective
    assert layout.is_surjective
    assert layout.inverse().inverse() == layout
    there_and_back = layout.compose(layout.inverse())
    for at in _inputs(layout):
        assert there_and_back.apply(**at) == tuple(at.values())


@given(layouts(max_bits=2), layouts(max_bits=2))
def test_product_places_copies(a: LinearLayout, b: LinearLayout) -> None:
    whole = a * b
    sizes = {d: a.in_size(d) for d in _DIMS}
    low = (*a.out_sizes, *[1] * (whole.rank - a.rank))
    assert whole.out_sizes == tuple(x * y for x, y in zip(low, (*b.out_sizes, *[1] * 3), strict=False))
    for at in _inputs(whole):
        x = a.apply(**{d: at[d] % sizes[d] for d in _DIMS})
        y = b.apply(**{d: at[d] // sizes[d] for d in _DIMS})
        want = [0] * whole.rank
        for i, value in enumerate(x):
            want[i] += value
        for i, value in enumerate(y):
            want[i] += value * low[i]
        assert whole.apply(**at) == tuple(want)


@given(layouts(), st.data())
def test_shape_changes_follow_numpy(layout: LinearLayout, data: st.DataObject) -> None:
    perm = data.draw(st.permutations(range(layout.rank)))
    axis = data.draw(st.integers(0, layout.rank - 1))
    shape = layout.out_sizes
    reshaped = (1, layout.size) if layout.rank == 1 else (shape[0] * shape[1], *shape[2:])
    moved, dropped = layout.transpose(perm), layout.drop_axis(axis)
    expanded, flat = layout.expand_axis(axis), layout.reshape(reshaped)
    for at in _inputs(layout):
        here = layout.apply(**at)
        assert moved.apply(**at) == tuple(here[p] for p in perm)
        assert dropped.apply(**at) == here[:axis] + here[axis + 1 :]
        assert expanded.apply(**at) == (*here[:axis], 0, *here[axis:])
        assert flat.flatten(flat.apply(**at)) == layout.flatten(here)
    assert flat.reshape(shape) == layout
    assert expanded.drop_axis(axis) == layout


@given(layouts())
def test_unique_registers_keep_what_each_thread_holds(layout: LinearLayout) -> None:
    unique = layout.unique_registers()
    for lane, warp in product(range(layout.lanes), range(layout.warps)):
        before = {layout.apply(register=r, lane=lane, warp=warp) for r in range(layout.registers)}
        after = [unique.apply(register=r, lane=lane, warp=warp) for r in range(unique.registers)]
        assert len(after) == len(set(after))
        assert set(after) == before


@given(layouts(), st.data())
def test_registers_in_order_walk_their_axes(layout: LinearLayout, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(layout.rank)))
    ordered = layout.order_registers_by(order)
    assert ordered.same_up_to_registers(layout)
    run = layout.contiguous_per_thread(order[0])
    for lane, warp, first in product(range(layout.lanes), range(layout.warps), range(0, layout.registers, run)):
        start = ordered.apply(register=first, lane=lane, warp=warp)
        assert start[order[0]] % run == 0
        for r in range(run):
            want = list(start)
            want[order[0]] += r
            assert ordered.apply(register=first + r, lane=lane, warp=warp) == tuple(want)
    for r, old in enumerate(register_map(layout, ordered)):
        assert ordered.apply(register=r) == layout.apply(register=old)


@given(layouts())
def test_contiguous_run_is_the_longest(layout: LinearLayout) -> None:
    for axis in range(layout.rank):
        run = 2 * layout.contiguous_per_thread(axis)
        held = {layout.apply(register=r) for r in range(layout.registers)}
        wanted = {tuple(x if a == axis else 0 for a in range(layout.rank)) for x in range(run)}
        starts = {
            layout.apply(lane=x, warp=w)[axis] % run for x, w in product(range(layout.lanes), range(layout.warps))
        }
        assert run > layout.out_sizes[axis] or not wanted <= held or starts != {0}


def _static_registers(src: LinearLayout, dst: LinearLayout) -> bool:
    """Whether one register of `src`, the same for all threads, matches each register of `dst`."""
    threads = list(product(range(src.lanes), range(src.warps)))

    def match(s: int, d: int) -> bool:
        return all(src.apply(register=s, lane=x, warp=w) == dst.apply(register=d, lane=x, warp=w) for x, w in threads)

    return all(any(match(s, d) for s in range(src.registers)) for d in range(dst.registers))


def _held_by_warp(layout: LinearLayout, warp: int) -> set[tuple[int, ...]]:
    return {
        layout.apply(register=r, lane=x, warp=warp) for r, x in product(range(layout.registers), range(layout.lanes))
    }


@given(st.data())
def test_conversion_kind_is_the_cheapest_possible(data: st.DataObject) -> None:
    src = data.draw(layouts(max_bits=2))
    dst = data.draw(permuted(src))
    kind = conversion_kind(src, dst)
    assert (kind in ("identity", "registers")) == _static_registers(src, dst)
    assert (kind == "identity") == (src == dst)
    assert (kind == "shared") == any(not _held_by_warp(dst, w) <= _held_by_warp(src, w) for w in range(src.warps))


@given(st.data())
def test_maps_point_at_the_same_element(data: st.DataObject) -> None:
    src = data.draw(layouts(max_bits=2))
    dst = data.draw(permuted(src))
    kind = conversion_kind(src, dst)
    if kind in ("identity", "registers"):
        moves = register_map(src, dst)
        for r, x, w in product(range(dst.registers), range(dst.lanes), range(dst.warps)):
            assert src.apply(register=moves[r], lane=x, warp=w) == dst.apply(register=r, lane=x, warp=w)
    if kind != "shared":
        moves = lane_map(src, dst)
        for at in _inputs(dst):
            register, lane = moves.apply(**at)
            assert src.apply(register=register, lane=lane, warp=at["warp"]) == dst.apply(**at)


@given(layouts(), st.data())
def test_reduction_counts_every_element_once(layout: LinearLayout, data: st.DataObject) -> None:
    layout = layout.unique_registers()
    axis = data.draw(st.integers(0, layout.rank - 1))
    plan = reduction(layout, axis)
    # Each element weighs a bit of its own, so that a sum tells which elements went in, and how often.
    weight = {at: 1 << 4 * i for i, at in enumerate(sorted(_held(layout)))}
    want: dict[tuple[int, ...], int] = defaultdict(int)
    for at, w in weight.items():
        want[at[:axis] + at[axis + 1 :]] += w
    threads = list(product(range(layout.lanes), range(layout.warps)))
    partial = {
        (g, x, w): sum(weight[layout.apply(register=r, lane=x, warp=w)] for r in group)
        for x, w in threads
        for g, group in enumerate(plan.groups)
    }
    for r_mask, x_mask, w_mask in [(r, x, 0) for r, x in plan.shuffles] + list(plan.warps):
        partial = {
            (r, x, w): value + partial[r ^ r_mask, x ^ x_mask, w ^ w_mask] for (r, x, w), value in partial.items()
        }
    for (r, x, w), value in partial.items():
        assert value == want[plan.result.apply(register=r, lane=x, warp=w)]


@given(shapes(max_bits=9, rank=2), st.sampled_from([1, 2, 4, 8]), st.sampled_from([8, 16]), st.data())
def test_swizzles_are_bijections_that_keep_rows(
    shape: tuple[int, ...], elem_bytes: int, vec_bytes: int, data: st.DataObject
) -> None:
    shape = (shape[0] * 4, shape[1] * 8)
    row_bytes = data.draw(st.sampled_from([None, 32, 64, 128]))
    shared = xor_swizzle(shape, elem_bytes, vec_bytes=vec_bytes, row_bytes=row_bytes)
    assert shared.is_surjective
    assert shared.is_injective
    rows = [shared.apply(offset=i)[0] for i in range(shared.size)]
    panel = min(shape[1], (row_bytes or 1 << 20) // elem_bytes)
    assert rows == [i // panel % shape[0] for i in range(shared.size)]


@st.composite
def register_tiles(draw: st.DrawFn) -> LinearLayout:
    """A layout over 32 lanes of a tile (rows, columns) large enough to hold it without copies."""
    rows, columns = draw(st.sampled_from([(8, 64), (16, 32), (32, 32), (64, 16), (16, 128)]))
    size = (1, draw(st.sampled_from([1, 2, 4, 8])))
    lanes_along = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    order = draw(st.sampled_from([(0, 1), (1, 0)]))
    return blocked((rows, columns), size, (32 // lanes_along, lanes_along), (1, 1), order)


def _offsets(addresses: LinearLayout) -> list[list[int]]:
    """Return where each register of each lane lies; `test_apply_is_linear` says why both add up."""
    of_registers = [addresses.apply(register=register)[0] for register in range(addresses.in_size("register"))]
    of_lanes = [addresses.apply(lane=lane)[0] for lane in range(32)]
    return [[lane ^ register for register in of_registers] for lane in of_lanes]


def _wavefronts(offsets: list[list[int]], registers: Sequence[int], elem_bytes: int) -> tuple[int, int]:
    """Serve one warp-wide access bank by bank; return the wavefronts it takes and the fewest possible."""
    size = len(registers) * elem_bytes
    part = {16: 8, 8: 16}.get(size, 32)
    taken = fewest = 0
    for first in range(0, 32, part):
        words: set[int] = set()
        for lane, register in product(range(first, first + part), registers):
            byte = offsets[lane][register] * elem_bytes
            words.update(range(byte // 4, (byte + elem_bytes - 1) // 4 + 1))
        banks = Counter(word % 32 for word in words)
        taken += max(banks.values())
        fewest += -(-len(words) // 32)
    return taken, fewest


@given(register_tiles(), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_bank_conflicts_by_counting(tile: LinearLayout, elem_bytes: int, swizzled: bool) -> None:
    shape = tile.out_sizes
    shared = xor_swizzle(shape, elem_bytes) if swizzled else row_major(shape)
    widest = vector_width(tile, shared, elem_bytes)
    offsets = _offsets(shared_addresses(tile, shared).order_registers_by((0,)))
    vec = 1
    while vec <= widest:
        for start in range(0, tile.registers, vec):
            taken, fewest = _wavefronts(offsets, range(start, start + vec), elem_bytes)
            assert bank_conflicts(tile, shared, elem_bytes, vec) == taken - fewest
        vec *= 2


@given(st.data(), st.sampled_from([1, 2, 4, 8]))
def test_exchanges_hold_each_element_once(data: st.DataObject, elem_bytes: int) -> None:
    written = data.draw(register_tiles())
    read = data.draw(bijections(written.out_sizes))
    shared = exchange_layout(written, read, elem_bytes)
    assert shared.is_injective
    assert shared.is_surjective
    width = vector_width(written, shared, elem_bytes)
    offsets = _offsets(shared_addresses(written, shared).order_registers_by((0,)))
    starts = range(0, written.registers, width)
    taken = sum(_wavefronts(offsets, range(at, at + width), elem_bytes)[0] for at in starts)
    assert taken <= wavefronts(written, shared, elem_bytes)


@given(layouts(), shapes())
def test_different_tiles_do_not_convert(layout: LinearLayout, shape: tuple[int, ...]) -> None:
    assume(shape != layout.out_sizes)
    other = LinearLayout.make({d: [[0] * len(shape)] * len(layout.in_bases(d)) for d in _DIMS}, shape)
    with pytest.raises(LayoutError, match="different tiles"):
        conversion_kind(layout, other)
