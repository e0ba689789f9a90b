"""How often `ts.tile.range` runs: loops whose counter cannot overflow, and the count of all others.

A loop counts in 64 bits. Where it starts far from the limit and takes short constant steps, the counter cannot reach
it within years, and the loop counts from bound to bound by its step. Other loops count their iterations, whose number
is computed without overflow, and multiply.
"""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, SSAValue

from tessera.data import dataclass
from tessera.frontend.builder import Builder
from tessera.frontend.convert import apply, cast_to, constant, to_index
from tessera.frontend.values import LoopSpec, Scalar
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.tile.structure import DimOp, GridOp
from tessera.ir.types import dtype_of, element_type, index, is_scalar
from tessera.numerics import dtypes

SHORT_STEP = 1 << 20
FAR = 1 << 62
"""A counter that starts below this takes 2**42 short steps to overflow."""
LARGEST_SIZE = 1 << 48
"""No tensor has a dimension beyond this, and no grid an extent."""
_DEPTH = 8


@dataclass(frozen=True, slots=True, eq=False)
class RangeSpec(LoopSpec):
    """`ts.tile.range(...)`, before a `for` runs over it: the bounds of the IR's loop, and what its counter stands for.

    Args:
        lower: where the counter starts.
        upper: where it ends.
        step: how far it goes at a time.
        origin: the first value of the loop's variable where the counter counts iterations.
        stride: the step of the loop's variable there.
    """

    lower: SSAValue
    upper: SSAValue
    step: SSAValue
    origin: SSAValue | None = None
    stride: SSAValue | None = None

    def variable(self, b: Builder, counter: SSAValue) -> Scalar:
        """Return the loop's variable."""
        if self.origin is None:
            first, last = magnitude(b, self.lower), magnitude(b, self.upper)
            if first is not None:
                b.magnitudes[counter] = max(first, FAR // 2 if last is None else last)
            return Scalar(counter)
        scaled = apply(b, "mul", Scalar(counter), Scalar(cast(SSAValue, self.stride)))
        return cast(Scalar, apply(b, "add", Scalar(self.origin), scaled))


def counted(b: Builder, lower: Any, upper: Any, step: Any) -> RangeSpec:
    """Return how a loop from `lower` to below `upper` runs; it runs no iteration where the step is not positive."""
    what = "range: a bound"
    first, last, stride = (to_index(b, value, what, far=True) for value in (lower, upper, step))
    length = constant_value(stride)
    if length == 1:
        return RangeSpec(first, last, stride)
    start = magnitude(b, first)
    if length is not None and length <= SHORT_STEP and start is not None and start <= FAR:
        return RangeSpec(first, last, stride)
    return RangeSpec(b.index(0), _count(b, first, last, stride), b.index(1), first, stride)


def _count(b: Builder, first: SSAValue, last: SSAValue, stride: SSAValue) -> SSAValue:
    """Return the number of iterations: the distance is below 2**64, so it is computed in u64."""
    wide = element_type(dtypes.u64)
    low, high, step = (Scalar(cast_to(b, value, wide)) for value in (first, last, stride))
    distance = apply(b, "sub", apply(b, "sub", high, low), 1)
    count = apply(b, "add", apply(b, "floordiv", distance, step), 1)
    largest = Scalar(constant(b, 2**63 - 1, wide))
    runs = apply(b, "and", apply(b, "lt", Scalar(first), Scalar(last)), apply(b, "gt", Scalar(stride), 0))
    none = Scalar(constant(b, 0, wide))
    return cast_to(b, apply(b, "select", runs, apply(b, "minimum", count, largest), none).ssa, index)


def magnitude(b: Builder, value: SSAValue, depth: int = _DEPTH) -> int | None:
    """Return what the magnitude of an integer scalar does not exceed where that is known, else None."""
    known = constant_value(value)
    if known is not None:
        return abs(int(known))
    if not is_scalar(value.type) or not depth:
        return None
    dtype = dtype_of(value.type)
    if not isinstance(value.type, IndexType) and dtype.bits < 64:
        return 1 << dtype.bits if dtype.is_int else None
    owner = value.owner
    if isinstance(value, BlockArgument):
        return LARGEST_SIZE if isinstance(value.block.parent_op(), GridOp) else b.magnitudes.get(value)
    if isinstance(owner, DimOp):
        return LARGEST_SIZE
    if isinstance(owner, CastOp):
        return magnitude(b, owner.source, depth - 1)
    return _of_function(b, owner, depth) if isinstance(owner, ElementwiseOp) else None


def _of_function(b: Builder, owner: ElementwiseOp, depth: int) -> int | None:
    fn = owner.fn.data
    parts = [magnitude(b, arg, depth - 1) for arg in (owner.args[1:] if fn == "select" else owner.args)]
    sizes = [part for part in parts if part is not None]
    if len(sizes) != len(parts):
        return None
    bounds = {
        "add": sum(sizes),
        "sub": sum(sizes),
        "mul": sizes[0] * sizes[-1],
        "floordiv": sizes[0],
        "mod": sizes[-1],
        "neg": sizes[0],
        "abs": sizes[0],
        "maximum": max(sizes),
        "minimum": max(sizes),
        "select": max(sizes),
    }
    found = bounds.get(fn)
    # Beyond 64 bits the value has wrapped.
    return found if found is not None and found < 1 << 63 else None
