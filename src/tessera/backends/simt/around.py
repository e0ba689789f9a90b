"""Loads of boxes that begin behind aligned places: the accesses around them, each made once for all loads of a place.

A stencil loads `x[t - 3 : t + 253]`, `x[t - 2 : t + 254]` and so on. A thread finds eight elements of each in the last
four before `x[t]` and the eight from there on, which two accesses move for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.backends.simt.emitter import SimtEmitter
from tessera.ir.effects import acts
from tessera.ir.layouts import LinearLayout
from tessera.ir.target.arithmetic import ElementwiseOp, constant_value

DEPTH = 8
"""Steps of index arithmetic in which two loads are compared."""
NEAR = 256
"""Ops between two loads that are looked at for one that writes."""

Load = Callable[[Sequence[int], int], list[str]]
"""Loads so many neighbours from an element of a thread on."""


def load_around(load: Load, at: Sequence[int], axis: int, count: int, behind: int) -> list[str]:
    """Load neighbours that begin a number of elements behind an aligned access: its end, and the beginning of the next.

    Each of both is inside as a whole, or outside, as the tensor ends with an access. Halves of accesses do where they
    hold what is wanted, so that they are the same for all distances of a half.

    Args:
        load: loads aligned neighbours.
        at: the register part of the first element.
        axis: the fragment axis of neighbours.
        count: of an access.
        behind: how far behind one the first element lies.
    """
    before, after = (count // 2 if part <= count // 2 else count for part in (count - behind, behind))
    starts = list(at), list(at)
    starts[0][axis] += count - behind - before
    starts[1][axis] += count - behind
    return [*load(starts[0], before)[before - (count - behind) :], *load(starts[1], after)[:behind]]


def shared_load(emitter: SimtEmitter, op: Any, layout: LinearLayout, axis: int, load: Load) -> Load:
    """Return what loads as `load` does, but finds what an earlier op of the block has loaded of the same place.

    Args:
        emitter: the emitter, which remembers loads.
        op: a load, neither masked nor filled.
        layout: of its fragment.
        axis: the fragment axis of neighbours.
        load: loads neighbours of this op.
    """
    unit = op.axis_list[axis]
    root, apart = _apart(op.offsets[unit])
    others = tuple(_number(value) for place, value in enumerate(op.offsets) if place != unit)
    bounds = tuple(_number(op.sizes[place]) for place in op.checked_list)
    strides = tuple(map(_number, op.strides))
    box = (op.pointer, others, _number(root), strides, bounds, op.axis_list, op.checked_list, layout, op.tile)

    def shared(at: Sequence[int], count: int) -> list[str]:
        place = tuple(step + apart if along == axis else step for along, step in enumerate(at))
        key = (*box, place, count)
        found = emitter.loaded.get(key)
        if found is None or not _is_unchanged(found[0], op):
            found = emitter.loaded[key] = op, load(at, count)
        return found[1]

    return shared


def _apart(offset: SSAValue) -> tuple[SSAValue, int]:
    """Return what a constant is added to, and the constant."""
    owner = offset.owner
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "add":
        constant = constant_value(owner.args[1])
        if isinstance(constant, int):
            return owner.args[0], constant
    return offset, 0


def _number(value: SSAValue, depth: int = DEPTH) -> Any:
    """Return what is equal for values that are computed alike."""
    constant = constant_value(value)
    if constant is not None:
        return constant
    owner = value.owner
    if depth and isinstance(owner, ElementwiseOp):
        return (owner.fn.data, *(_number(arg, depth - 1) for arg in owner.args))
    return value


def _is_unchanged(earlier: Operation, later: Operation) -> bool:
    """Return whether nothing is written between two ops of a block."""
    op = later.prev_op
    for _ in range(NEAR):
        if op is None or op is earlier:
            return op is earlier
        if op.regions or acts(op):
            return False
        op = op.prev_op
    return False
