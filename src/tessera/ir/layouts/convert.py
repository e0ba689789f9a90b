"""What it takes to bring a tile from one distributed layout to another, and to reduce it along an axis."""

from __future__ import annotations

from typing import Literal

from tessera.data import dataclass
from tessera.ir.layouts.f2 import Span, kernel
from tessera.ir.layouts.linear import BLOCK, LANE, REGISTER, WARP, LayoutError, LinearLayout

ConversionKind = Literal["identity", "registers", "lanes", "shared"]


def _check_comparable(src: LinearLayout, dst: LinearLayout) -> None:
    """Raise unless both layouts spread the same tile over the same threads."""
    if (src.out_sizes, src.out_dims) != (dst.out_sizes, dst.out_dims):
        raise LayoutError(f"layouts of different tiles: {src.out_sizes} and {dst.out_sizes}")
    for dim in (LANE, WARP, BLOCK):
        if src.in_size(dim) != dst.in_size(dim):
            raise LayoutError(f"layouts over different threads: {src.in_size(dim)} and {dst.in_size(dim)} {dim}s")
    held = Span(src.columns())
    if any(column not in held for column in dst.columns()):
        raise LayoutError("the source layout lacks elements that the destination holds")


def conversion_kind(src: LinearLayout, dst: LinearLayout) -> ConversionKind:
    """Return the cheapest way to bring a tile from `src` to `dst`.

    Returns:
        "identity": nothing to do.
        "registers": each thread renumbers or copies its registers, see `register_map`.
        "lanes": each warp has what it needs and shuffles it, see `lane_map`.
        "shared": the tile goes through shared memory.

    Raises:
        LayoutError: the layouts are of different tiles or threads, `src` does not hold all elements that
            `dst` wants, or elements would have to move between thread blocks.
    """
    _check_comparable(src, dst)
    registers = Span(src.columns(REGISTER))
    # A renumbering is the same for all threads only if every thread starts from the same element in both
    # layouts.
    if src.columns(LANE, WARP, BLOCK) == dst.columns(LANE, WARP, BLOCK) and all(
        column in registers for column in dst.columns(REGISTER)
    ):
        return "identity" if src.columns(REGISTER) == dst.columns(REGISTER) else "registers"
    within_warp = Span(src.columns(REGISTER, LANE))
    if all(vector in within_warp for vector in _needs(src, dst, (REGISTER, LANE), (WARP, BLOCK))):
        return "lanes"
    within_block = Span(src.columns(REGISTER, LANE, WARP))
    if all(vector in within_block for vector in _needs(src, dst, (REGISTER, LANE, WARP), (BLOCK,))):
        return "shared"
    raise LayoutError("the conversion moves elements between thread blocks")


def _needs(src: LinearLayout, dst: LinearLayout, inner: tuple[str, ...], outer: tuple[str, ...]) -> tuple[int, ...]:
    """Return the directions that one unit spanning `inner` must hold itself to build its part of `dst`."""
    shifts = (a ^ b for a, b in zip(src.columns(*outer), dst.columns(*outer), strict=True))
    return (*dst.columns(*inner), *shifts)


def register_map(src: LinearLayout, dst: LinearLayout) -> tuple[int, ...]:
    """Return, for every register of `dst`, the register of `src` with the same element of the same thread.

    Raises:
        LayoutError: the conversion is not of kind "identity" or "registers".
    """
    if conversion_kind(src, dst) not in ("identity", "registers"):
        raise LayoutError("the conversion is more than a renumbering of registers")
    span = Span(src.columns(REGISTER))
    steps = [span.solve(column) or 0 for column in dst.columns(REGISTER)]
    found = [0]
    for step in steps:
        found += [register ^ step for register in found]
    return tuple(found)


def lane_map(src: LinearLayout, dst: LinearLayout) -> LinearLayout:
    """Return where in its own warp each thread finds each register of `dst`.

    The map goes from (register, lane, warp) of `dst` to (register, lane) of `src`. A destination lane that
    changes the source register costs a selection; solutions in which it does not are preferred.

    Raises:
        LayoutError: the conversion needs shared memory.
    """
    if conversion_kind(src, dst) == "shared":
        raise LayoutError("the conversion moves elements between warps")
    registers, lanes = src.columns(REGISTER), src.columns(LANE)
    by_register, by_lane = Span((*registers, *lanes)), Span((*lanes, *registers))
    low_lanes = (1 << len(lanes)) - 1

    def stay(column: int) -> tuple[int, int]:
        mask = by_register.solve(column) or 0
        return mask & (1 << len(registers)) - 1, mask >> len(registers)

    def move(column: int) -> tuple[int, int]:
        mask = by_lane.solve(column) or 0
        return mask >> len(lanes), mask & low_lanes

    shifts = [a ^ b for a, b in zip(src.columns(WARP), dst.columns(WARP), strict=True)]
    return LinearLayout.make(
        {
            REGISTER: [stay(column) for column in dst.columns(REGISTER)],
            # A lane that already holds its element stays where it is, even where other lanes hold copies.
            LANE: [
                (0, 1 << bit) if bit < len(lanes) and lanes[bit] == column else move(column)
                for bit, column in enumerate(dst.columns(LANE))
            ],
            WARP: [move(shift) for shift in shifts],
        },
        (src.registers, src.lanes),
        (REGISTER, LANE),
    )


@dataclass(frozen=True)
class Reduction:
    """How a distributed tile is reduced along an axis: in registers, then across lanes, then across warps.

    Attributes:
        result: layout of the result, the reduced axis removed, every register of a thread distinct.
        groups: for every register of the result, the registers of the tile to combine.
        shuffles: `(register mask, lane mask)` steps, in order: combine register r with register r ^ register
            mask of lane ^ lane mask. Register numbers are those of the result.
        warps: `(register mask, lane mask, warp mask)` steps that remain; they go through shared memory.
    """

    result: LinearLayout
    groups: tuple[tuple[int, ...], ...]
    shuffles: tuple[tuple[int, int], ...]
    warps: tuple[tuple[int, int, int], ...]


def reduction(layout: LinearLayout, axis: int) -> Reduction:
    """Plan the reduction of a tile along `axis`; copies that the layout already holds are not counted twice.

    Raises:
        LayoutError: the reduction crosses thread blocks, or one thread holds an element twice (see
            `unique_registers`).
    """
    if layout.unique_registers().registers != layout.registers:
        raise LayoutError("a thread holds an element twice: reduce layout.unique_registers()")
    dropped = layout.drop_axis(axis)
    result = dropped.unique_registers()
    groups: list[list[int]] = [[] for _ in range(result.registers)]
    span = Span(result.columns(REGISTER))
    for register in range(layout.registers):
        at = dropped.flatten(dropped.apply(register=register))
        groups[span.solve(at) or 0].append(register)

    # Two inputs of the result agree iff they differ by a kernel vector; those in the layout's own kernel are
    # copies.
    bits = [len(layout.in_bases(dim)) for dim in (REGISTER, LANE, WARP)]
    copies = Span(kernel(layout.columns(REGISTER, LANE, WARP, BLOCK)))
    shuffles: list[tuple[int, int]] = []
    warps: list[tuple[int, int, int]] = []
    for vector in kernel(dropped.columns(REGISTER, LANE, WARP, BLOCK)):
        if not copies.add(vector):
            continue
        register = vector & (1 << bits[0]) - 1
        lane = vector >> bits[0] & (1 << bits[1]) - 1
        warp = vector >> bits[0] + bits[1] & (1 << bits[2]) - 1
        if vector >> sum(bits):
            raise LayoutError(f"the reduction along axis {axis} crosses thread blocks")
        step = span.solve(dropped.flatten(dropped.apply(register=register))) or 0
        if warp:
            warps.append((step, lane, warp))
        elif lane:
            shuffles.append((step, lane))
    return Reduction(result, tuple(map(tuple, groups)), tuple(shuffles), tuple(warps))


def partner(layout: LinearLayout, axis: int, bits: int) -> tuple[int, int, int]:
    """Return `(register, lane, warp)` masks: elements whose index along `axis` differs in `bits` stand so far apart.

    Registers are taken before lanes, and lanes before warps, where copies leave a choice.

    Raises:
        LayoutError: the partner stands in another thread block, or the layout has no such element.
    """
    span = Span(layout.columns(REGISTER, LANE, WARP))
    found = span.solve(layout.flatten([bits if a == axis else 0 for a in range(layout.rank)]))
    if found is None:
        raise LayoutError(f"no thread of the block holds the element {bits} places along axis {axis}")
    registers, lanes = (len(layout.in_bases(dim)) for dim in (REGISTER, LANE))
    return found & (1 << registers) - 1, found >> registers & (1 << lanes) - 1, found >> registers + lanes
