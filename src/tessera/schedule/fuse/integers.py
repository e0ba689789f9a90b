"""Integers of known ranges: comparisons and sums that are decided, and 32 bits where they are enough.

PyTorch computes places in 64 bits, and lets those below 0 count from the end.

%i = tessera_graph.iota 0 -> <["56"], i64>                       %i = tessera_graph.iota 0 -> <["56"], i32>
%j = tessera_graph.map "minimum"(add(%i, 1), 55) : i64     →     %j = tessera_graph.map "minimum"(add(%i, 1), 55) : i32
%k = tessera_graph.map "select"(lt(%j, 0), add(%j, 56), %j)      %t = tessera_graph.take %x at %j
%t = tessera_graph.take %x at %k
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, inf, isnan, prod
from typing import cast

from xdsl.ir import Operation, SSAValue

from tessera.ir.graph.points import CastOp, FullOp, IotaOp, MapOp, SizeOp
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.sums import ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import array_type, dims_of
from tessera.ir.graph.views import BroadcastOp, ConcatOp, ReshapeOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import DType, boolean, i32, i64
from tessera.schedule.fuse.selection import Selector
from tessera.target.dims import Dim

Range = tuple[float, float]
"""The least and the largest number that an element may be; of floats, unless it is NaN."""
_ROUNDED = 1e-6
"""How far an f32 may be off by a rounding, relative to it."""
_NARROW: Range = (-(2**31), 2**31 - 1)


def shorten_integers(graph: GraphOp) -> None:
    """Decide comparisons of integers that follow from places, and compute in 32 bits what has room there."""
    if not any(isinstance(op, IotaOp) for op in graph.body.block.ops):
        return
    shortener = _Shortener()
    for op in list(graph.body.block.ops):
        shortener.visit(op)


class _Ranges:
    """Finds the ranges of values."""

    def __init__(self) -> None:
        self._known: dict[SSAValue, Range] = {}

    def of(self, value: SSAValue) -> Range:
        """Return the range of a value; those of what it follows from have been asked for before."""
        if value not in self._known:
            self._known[value] = self._found(value)
        return self._known[value]

    def _found(self, value: SSAValue) -> Range:
        op, whole = value.owner, _range_of_dtype(array_type(value).dtype)
        match op:
            case FullOp():
                return (op.number, op.number) if not isnan(op.number) else whole
            case SizeOp():
                return (op.dim.scale, op.dim.scale) if op.dim.is_static else (0, inf)
            case IotaOp():
                return _below(dims_of(value)[op.axis.data])
            case BroadcastOp() | ReshapeOp() | TransposeOp() | SliceOp():
                return self.of(op.source)
            case ConcatOp():
                return _union(*map(self.of, op.sources))
            case CastOp():
                return self._cast(op, whole)
            case MapOp():
                return self._map(op, whole)
            case ReduceOp() if op.fn.data == "sum" and not array_type(op.source).dtype.is_float:
                return self._sum(op, whole)
            case _:
                return whole

    def _sum(self, op: ReduceOp, whole: Range) -> Range:
        dims = [dims_of(op.source)[axis] for axis in op.reduced]
        if not all(dim.is_static for dim in dims):
            return whole
        found = _products(self.of(op.source), (count := prod(dim.scale for dim in dims), count))
        return found if _is_in(found, whole) else whole

    def _map(self, op: MapOp, whole: Range) -> Range:
        fn, dtype = op.fn.data, array_type(op.result).dtype
        found = _applied(fn, [self.of(arg) for arg in op.args])
        if found is None or any(map(isnan, found)) or (dtype.is_float and fn in _OF_INTEGERS):
            return whole
        if dtype.is_float:
            return found if fn in _EXACT else _rounded(found, dtype)
        return found if _is_in(found, whole) else whole  # it may wrap around

    def _cast(self, op: CastOp, whole: Range) -> Range:
        source, found = array_type(op.source).dtype, self.of(op.source)
        dtype = array_type(op.result).dtype
        if dtype.is_float:
            return _rounded(found, dtype)
        if source.is_float:
            return _union((0, 0), (max(_whole(found[0]), whole[0]), min(_whole(found[1]), whole[1])))  # NaN gives 0
        return found if _is_in(found, whole) else whole


class _Shortener:
    """Rewrites one op after the other."""

    def __init__(self) -> None:
        self._ranges = _Ranges()

    def visit(self, op: Operation) -> None:
        """Replace an op by a simpler one, or let it read narrower integers."""
        for result in op.results:
            self._ranges.of(result)
        match op:
            case MapOp():
                self._visit_map(op)
            case CastOp():
                self._visit_cast(op)
            case ReduceOp():
                self._visit_sum(op)
            case TakeOp():
                for number in range(1, len(op.operands)):
                    op.operands[number] = self._narrowed(op.operands[number], op)
            case _:
                pass

    def _visit_map(self, op: MapOp) -> None:
        found = self._same(op)
        if found is not None:
            op.result.replace_all_uses_with(found)
            return
        values = op.args[1:] if op.fn.data == "select" else op.args
        if not all(map(self._has_room, values)):
            return
        dtype = array_type(op.result).dtype
        if dtype not in (i64, boolean) or (dtype == i64 and not self._has_room(op.result)):
            return
        if op.fn.data not in (*_OF_ONE, *_OF_TWO, *_COMPARED, "select"):
            return
        narrow = [self._narrowed(arg, op) if arg in values else arg for arg in op.args]
        selector = Selector(op, ())
        new = selector.add(MapOp(op.fn.data, narrow))
        op.result.replace_all_uses_with(new if dtype == boolean else selector.add(CastOp(new, i64)))

    def _visit_cast(self, op: CastOp) -> None:
        source, dtype = array_type(op.source).dtype, array_type(op.result).dtype
        if self._has_room(op.source):
            op.operands[0] = self._narrowed(op.source, op)
        elif source.is_float and dtype == i64 and self._has_room(op.result):
            selector = Selector(op, ())
            op.result.replace_all_uses_with(selector.add(CastOp(selector.add(CastOp(op.source, i32)), i64)))

    def _visit_sum(self, op: ReduceOp) -> None:
        """Replace a sum of integers that is known: how many labels of a batch count, as none is left out."""
        dtype, (low, high) = array_type(op.result).dtype, self._ranges.of(op.result)
        if not dtype.is_float and low == high:
            op.result.replace_all_uses_with(Selector(op, ()).full(low, dtype, dims_of(op.result)))

    def _same(self, op: MapOp) -> SSAValue | None:
        """Return what a map gives that is known without it, None where it is not."""
        if array_type(op.args[-1]).dtype.is_float and op.fn.data != "select":
            return None
        ranges = [self._ranges.of(arg) for arg in op.args]
        match op.fn.data, ranges:
            case "select", [(low, high), *_] if low == high:
                return op.args[1] if low else op.args[2]
            case "maximum", [(low, _), (_, high)] if low >= high:
                return op.args[0]
            case "minimum", [(_, high), (low, _)] if high <= low:
                return op.args[0]
            case "mod", [(low, high), (least, _)] if 0 <= low and high < least:
                return op.args[0]
            case fn, [a, b] if fn in _COMPARED and array_type(op.result).dtype == boolean:
                decided = _COMPARED[fn](a, b)
                dims = dims_of(op.result)
                return None if decided is None else Selector(op, ()).full(decided, boolean, dims)
            case _:
                return None

    def _has_room(self, value: SSAValue) -> bool:
        return array_type(value).dtype == i64 and _is_in(self._ranges.of(value), _NARROW)

    def _narrowed(self, value: SSAValue, reader: Operation) -> SSAValue:
        """Return integers in 32 bits, where they have room there."""
        if not self._has_room(value):
            return value
        op, selector = value.owner, Selector(reader, ())
        match op:
            case CastOp() if array_type(op.source).dtype == i32:
                return op.source
            case IotaOp():
                return selector.add(IotaOp(dims_of(value), op.axis.data, i32))
            case FullOp():
                return selector.add(FullOp(op.number, i32))
            case BroadcastOp():
                return selector.add(BroadcastOp(self._narrowed(op.source, reader), dims_of(value), op.places))
            case ReshapeOp():
                return selector.add(ReshapeOp(self._narrowed(op.source, reader), dims_of(value)))
            case _:
                return selector.add(CastOp(value, i32))


def _range_of_dtype(dtype: DType) -> Range:
    if dtype == boolean:
        return 0, 1
    if dtype.is_float:
        return -inf, inf
    signed = dtype.kind == "int"
    return (-(2 ** (dtype.bits - 1)) if signed else 0), 2 ** (dtype.bits - signed) - 1


def _below(dim: Dim) -> Range:
    return 0, max(dim.scale - 1, 0) if dim.is_static else inf


def _is_in(found: Range, whole: Range) -> bool:
    return whole[0] <= found[0] and found[1] <= whole[1]


def _union(*ranges: Range) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _rounded(found: Range, dtype: DType) -> Range:
    """Return the range of numbers once they are rounded to floats, of which those of few bits keep their signs only."""
    low, high = found
    if dtype.bits < 32:
        return 0 if low >= 0 else -inf, 0 if high <= 0 else inf
    return _off(low, -1), _off(high, 1)


def _off(bound: float, sign: int) -> float:
    return float(bound) + sign * _ROUNDED * abs(float(bound))


def _whole(bound: float, fn: Callable[[float], int] = int) -> float:
    return bound if bound in (-inf, inf) else fn(bound)


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _products(a: Range, b: Range) -> Range:
    found = [_times(one, other) for one in a for other in b]
    return min(found), max(found)


def _quotients(a: Range, b: Range) -> Range:
    """Return the range of quotients that are rounded down, by one positive number."""
    if b[0] != b[1] or b[0] <= 0:
        return -inf, inf
    low, high = (one if one in (-inf, inf) else cast(int, one) // cast(int, b[0]) for one in a)
    return low, high


def _rests(a: Range, b: Range) -> Range:
    if b[0] <= 0:
        return -inf, inf
    return a if 0 <= a[0] and a[1] < b[0] else (0, b[1] - 1)


_OF_ONE: dict[str, Callable[[Range], Range]] = {
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (max(a[0], -a[1], 0), max(-a[0], a[1])),
    "floor": lambda a: (_whole(a[0], floor), _whole(a[1], floor)),
    "ceil": lambda a: (_whole(a[0], ceil), _whole(a[1], ceil)),
    "round": lambda a: (_whole(a[0], round), _whole(a[1], round)),
    "trunc": lambda a: (_whole(a[0], int), _whole(a[1], int)),
}
_OF_TWO: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "rounded_mul": _products,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "floordiv": _quotients,
    "mod": _rests,
}
"""Ranges of functions of integers and floats, before anything wraps around or is rounded."""


def _applied(fn: str, ranges: Sequence[Range]) -> Range | None:
    """Return the range of a function of values in ranges, None for functions that have no rule."""
    match fn, ranges:
        case "select", [_, a, b]:
            return _union(a, b)
        case _, [a] if fn in _OF_ONE:
            return _OF_ONE[fn](a)
        case _, [a, b] if fn in _OF_TWO:
            return _OF_TWO[fn](a, b)
        case _:
            return None


_EXACT = ("neg", "abs", "maximum", "minimum", "select", "floor", "ceil", "round", "trunc")
_OF_INTEGERS = ("floordiv", "mod")


def _less(a: Range, b: Range) -> bool | None:
    return True if a[1] < b[0] else False if a[0] >= b[1] else None


def _equal(a: Range, b: Range) -> bool | None:
    if a[1] < b[0] or b[1] < a[0]:
        return False
    return True if a[0] == a[1] == b[0] == b[1] else None


def _not(decided: bool | None) -> bool | None:
    return None if decided is None else not decided


_COMPARED: dict[str, Callable[[Range, Range], bool | None]] = {
    "lt": _less,
    "ge": lambda a, b: _not(_less(a, b)),
    "gt": lambda a, b: _less(b, a),
    "le": lambda a, b: _not(_less(b, a)),
    "eq": _equal,
    "ne": lambda a, b: _not(_equal(a, b)),
    "and": lambda a, b: False if (0, 0) in (a, b) else True if a == b == (1, 1) else None,
    "or": lambda a, b: True if (1, 1) in (a, b) else False if a == b == (0, 0) else None,
}
"""Whether what a function gives is decided, for truth values and comparisons of integers."""
