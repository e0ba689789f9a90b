"""Whether a scalar grows or shrinks with the arguments of a block, as the end of a loop does with a program's place."""

from __future__ import annotations

from xdsl.ir import Block, SSAValue

from tessera.ir.loops import depends_on
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value

GROWS, SHRINKS = frozenset({1}), frozenset({-1})
UNKNOWN = GROWS | SHRINKS

_SIGNS = {"add": (1, 1), "sub": (1, -1), "minimum": (1, 1), "maximum": (1, 1)}


def directions(value: SSAValue, block: Block) -> frozenset[int]:
    """Return which ways a scalar may go as a block's arguments grow: 1 up, -1 down, nothing where it stays.

    Args:
        value: an integer, or a conversion of one that keeps its number.
        block: whose arguments are meant.
    """
    owner = value.owner
    if isinstance(owner, Block):
        return GROWS if owner is block else frozenset()
    if isinstance(owner, CastOp):
        return directions(owner.source, block)
    if isinstance(owner, ElementwiseOp) and (signs := _signs(owner)) is not None:
        parts = zip(owner.args, signs, strict=True)
        return frozenset(way * sign for arg, sign in parts for way in directions(arg, block))
    return UNKNOWN if depends_on(value, block) else frozenset()


def _signs(op: ElementwiseOp) -> tuple[int, ...] | None:
    """Return whether a result follows each argument (1) or goes the other way (-1), None where that is not known."""
    factor = constant_value(op.args[-1])
    if op.fn.data == "mul" and factor is not None:
        return (1 if factor >= 0 else -1, 1)
    if op.fn.data == "floordiv" and factor is not None and factor > 0:
        return (1, 1)
    return _SIGNS.get(op.fn.data)
