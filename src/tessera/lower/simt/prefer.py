"""Loads in the layout of their only use, so that they need no trip through shared memory.

Default layouts come first (`placement`); this looks back from placed arithmetic to what was loaded for it. Threads that
have the same row of a tile each load what there is of it once: `x * scale[:, None]` needs no barrier.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tessera.ir import decisions
from tessera.ir.layouts import LinearLayout
from tessera.ir.tile.elementwise import BitcastOp, CastOp, ElementwiseOp, RoundTf32Op
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.shared import SharedLoadOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.lower.simt.context import tile_shape
from tessera.lower.simt.placement import Placements
from tessera.lower.simt.shape import collapse, keeps_places, reshaped

_ELEMENTWISE = (ElementwiseOp, CastOp, BitcastOp, RoundTf32Op)

LEAST_RUN = 4
"""Bytes of neighbours that a thread reads at a time where a tile is loaded as what follows wants it."""
MOST_REGISTERS = 16
"""Registers that a tile loaded one iteration ahead may take in a thread."""


def prefer_consumers(placements: Placements, body: Iterable[Operation]) -> None:
    """Load a tile in the layout its only consumers have, where a thread still reads 4 bytes at a time."""
    for top in body:
        for op in ops_in(top):
            if isinstance(op, LoadOp) and isinstance(op.result.type, TileType):
                _prefer(placements, op)
                _prefer_places(placements, op)
            if isinstance(op, SharedLoadOp) and len(shape_of(op.result.type)) == 1:
                _prefer_places(placements, op)
            if isinstance(op, SharedLoadOp) and len(shape_of(op.result.type)) == 2:
                _prefer(placements, op)
            if isinstance(op, scf.ForOp):
                _prefer_carried(placements, op)


def _prefer(placements: Placements, op: LoadOp | SharedLoadOp) -> None:
    found = _only_use(placements, op.result)
    if found is None:
        return
    chain, layout = found
    own = placements.found[op.result]
    last = len(layout.out_sizes) - 1
    element_bytes = dtype_of(element_of(op.result.type)).bytes
    same_shape = layout.out_sizes == own.layout.out_sizes
    if same_shape and layout.contiguous_per_thread(last) * element_bytes >= LEAST_RUN:
        for value in chain:
            placements.place(value, layout, own.strength)


def _only_use(placements: Placements, tile: SSAValue) -> tuple[list[SSAValue], LinearLayout] | None:
    """Find the one layout that a tile is wanted in.

    Returns:
        The tile, with what is computed of it in the same place, and the layout of all that is computed of these
        elsewhere; None if there are several, or another kind of use.
    """
    own = placements.found[tile]
    chain, wanted = {tile: None}, set[LinearLayout]()
    todo = [tile]
    while todo:
        for use in todo.pop().uses:
            user = use.operation
            placed = placements.of(user.results[0]) if isinstance(user, _ELEMENTWISE) else None
            if placed is None:
                return None
            if placed != own:
                wanted.add(placed.layout)
            elif user.results[0] not in chain:
                chain[user.results[0]] = None
                todo.append(user.results[0])
    return (list(chain), wanted.pop()) if len(wanted) == 1 else None


def _prefer_places(placements: Placements, op: LoadOp | SharedLoadOp) -> None:
    """Load what there is one of for a row, such as its place or a factor, where the threads are that have the row.

    So are weights of a program's only row, of which a thread then loads as many as before.
    """
    wanted = _wanted_of_rows(placements, op.result)
    if wanted is not None and len(wanted) == 1:
        (layout,) = wanted
        run = layout.contiguous_per_thread(len(layout.out_sizes) - 1) * dtype_of(element_of(op.result.type)).bytes
        as_many = layout.registers <= placements.found[op.result].layout.registers and run >= LEAST_RUN
        if as_many or layout.registers <= MOST_REGISTERS:
            _move_places(placements, op.result, layout)


def _wanted_of_rows(placements: Placements, value: SSAValue) -> set[LinearLayout] | None:
    """Return the layouts in which places or factors, and what is computed of them, are wanted; None for another use."""
    found: dict[SSAValue, set[LinearLayout]] = {}
    work = [value]
    while work:
        each, layouts, waiting = work[-1], set[LinearLayout](), list[SSAValue]()
        for use in each.uses:
            later = _computed_alike(placements, each, use.operation)
            if later is not None and later not in found:
                waiting.append(later)
                continue
            is_reshaped = tile_shape(each) != tile_shape(value)
            wanted = _wanted_by(placements, each, use.operation, None if later is None else found[later], is_reshaped)
            if wanted is None:
                return None
            layouts |= wanted
        if waiting:
            work += waiting
        else:
            found[each] = layouts
            work.pop()
    return found[value]


def _computed_alike(placements: Placements, value: SSAValue, user: Operation) -> SSAValue | None:
    """Return what a use makes of places or factors that goes with them; None for another use."""
    if isinstance(user, _ELEMENTWISE):
        return user.result if placements.of(user.result) == placements.of(value) else None
    return user.result if isinstance(user, BroadcastOp | ReshapeOp) else None


def _wanted_by(
    placements: Placements, value: SSAValue, user: Operation, after: set[LinearLayout] | None, is_reshaped: bool
) -> set[LinearLayout] | None:
    """Return the layouts in which a use wants places or factors, given those in which what goes with them is wanted."""
    if isinstance(user, GatherOp | ScatterOp):
        elements = user.result if isinstance(user, GatherOp) else user.value
        return None if value is elements else {placements.layout_or_default(elements)}
    is_repeated = placements.of(value) is None or is_reshaped
    if after is None and isinstance(user, _ELEMENTWISE) and is_repeated:
        placed = placements.of(user.result)
        return None if placed is None else {placed.layout}
    return _before(user, after) if isinstance(user, BroadcastOp | ReshapeOp) else after


def _before(op: BroadcastOp | ReshapeOp, after: set[LinearLayout] | None) -> set[LinearLayout] | None:
    """Return the layouts of what is given another shape or repeated, from those of the result."""
    before, shape = tile_shape(op.source), tile_shape(op.result)
    if after is None or (isinstance(op, ReshapeOp) and not keeps_places(before, shape)):
        return None
    if isinstance(op, ReshapeOp):
        return {reshaped(layout, before) for layout in after}
    axes = [axis for axis, (a, b) in enumerate(zip(before, shape, strict=True)) if a != b]
    return {collapse(layout, axes) for layout in after}


def _move_places(placements: Placements, value: SSAValue, layout: LinearLayout) -> None:
    """Change where places or factors are, and with them what is computed of them."""
    work, moved = {value: layout}, set[SSAValue]()
    while work:
        each, layout = work.popitem()
        if each in moved:
            continue
        moved.add(each)
        for use in each.uses:
            later = _computed_alike(placements, each, use.operation)
            if later is None or isinstance(use.operation, BroadcastOp):
                continue
            is_reshape = isinstance(use.operation, ReshapeOp)
            work[later] = reshaped(layout, tile_shape(later)) if is_reshape else layout
        placements.place(each, layout, placements.found[each].strength)


def _prefer_carried(placements: Placements, loop: scf.ForOp) -> None:
    """Place a tile that a loop loads one iteration ahead as its uses want it (`schedule.hopper.load_ahead`)."""
    end = loop.body.block.last_op
    assert end is not None
    for place, argument in enumerate(loop.body.block.args[1:]):
        values = [loop.iter_args[place], end.operands[place]]
        ahead = all(isinstance(value.owner, LoadOp) and decisions.AHEAD.on(value.owner) for value in values)
        if not ahead or argument not in placements.found:
            continue
        wanted = _wanted(placements, argument)
        if wanted is None or len(wanted) != 1:
            continue
        (layout,) = wanted
        if layout.registers <= MOST_REGISTERS:
            for value in (*values, argument, loop.results[place]):
                _move(placements, value, layout)


def _move(placements: Placements, value: SSAValue, layout: LinearLayout) -> None:
    """Change where a tile is, and with it the tiles that are only other shapes of it."""
    placements.place(value, layout, placements.found[value].strength)
    for use in value.uses:
        if isinstance(use.operation, ReshapeOp):
            _move(placements, use.operation.result, reshaped(layout, tile_shape(use.operation.result)))


def _wanted(placements: Placements, value: SSAValue) -> set[LinearLayout] | None:
    """Return the layouts that the uses of a tile want it in, None if some use has none."""
    found: set[LinearLayout] = set()
    for use in value.uses:
        user = use.operation
        if not isinstance(user, (*_ELEMENTWISE, BroadcastOp, ReshapeOp)):
            return None
        placed = None if isinstance(user, ReshapeOp) else placements.of(user.result)
        after = {placed.layout} if placed is not None else _wanted(placements, user.result)
        if isinstance(user, BroadcastOp | ReshapeOp):
            after = _before(user, after)
        if after is None:
            return None
        found |= after
    return found
