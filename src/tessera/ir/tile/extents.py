"""From scalars of TIR-H to what the host computes before a launch (`target/extents.py`)."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, SSAValue

from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp
from tessera.ir.tile.structure import DimOp, KernelOp, StrideOp
from tessera.ir.types import dtype_of, is_scalar
from tessera.numerics.dtypes import DType, i64
from tessera.target.extents import Extent

_WIDEST = 64
"""Bits."""


class NotOnHost(Exception):
    """A scalar that the host cannot compute.

    Args:
        value: the first of its parts that depends on more than sizes, strides, scalar arguments and constants.
    """

    def __init__(self, value: SSAValue) -> None:
        super().__init__()
        self.value = value


def host_extent(value: SSAValue) -> Extent:
    """Return how the host computes an integer or bool from a call's sizes, strides and scalars, as the device would.

    Raises:
        NotOnHost: it depends on anything else.
    """
    owner = value.owner
    if isinstance(owner, ConstantOp) and is_scalar(value.type):
        return ["const", int(owner.python_value)]
    if isinstance(owner, DimOp) and isinstance(owner.tensor, BlockArgument):
        return ["size", owner.tensor.index, owner.axis.data]
    if isinstance(owner, StrideOp) and isinstance(owner.tensor, BlockArgument):
        return ["stride", owner.tensor.index, owner.axis.data]
    if isinstance(owner, CastOp) and is_scalar(value.type):
        return _cast(owner)
    if isinstance(owner, ElementwiseOp) and owner.fn.data in _FUNCTIONS and is_scalar(value.type):
        return _function(owner)
    if not isinstance(value, BlockArgument) or not _is_integer_argument(value):
        raise NotOnHost(value)
    dtype, extent = _dtype(value), ["scalar", value.index]
    return _cut(extent, dtype) if dtype.kind == "uint" and dtype.bits == _WIDEST else extent


def _is_integer_argument(value: BlockArgument) -> bool:
    """Return whether a value is an argument of the kernel, an integer or bool."""
    is_argument = isinstance(value.owner.parent_op(), KernelOp) and is_scalar(value.type)
    return is_argument and not _dtype(value).is_float


def _dtype(value: SSAValue) -> DType:
    return i64 if isinstance(value.type, IndexType) else dtype_of(value.type)


def _cast(op: CastOp) -> Extent:
    source, target = _dtype(op.source), _dtype(op.result)
    if source.is_float or target.is_float:
        raise NotOnHost(op.result)
    found = host_extent(op.source)
    if target.kind == "bool" and source.kind != "bool":
        return _differ(found, ["const", 0])
    holds_all = target.bits > source.bits and (target.kind == "int" or source.kind != "int")
    return found if holds_all or (target.bits, target.kind) == (source.bits, source.kind) else _cut(found, target)


def _function(op: ElementwiseOp) -> Extent:
    source, fn = _dtype(op.args[-1]), op.fn.data
    if (
        source.is_float
        or (fn in _OF_BOOLS and source.kind != "bool")
        or (fn not in _OF_BOOLS and source.kind == "bool")
    ):
        raise NotOnHost(op.result)
    found = _FUNCTIONS[fn](*map(host_extent, op.args))
    return found if fn in _NEVER_FAR else _cut(found, _dtype(op.result))


def _cut(extent: Extent, dtype: DType) -> Extent:
    """Return what a dtype holds of a result; i64 needs nothing, as the host refuses what 64 bits do not hold."""
    if dtype.kind == "bool" or (dtype.kind == "int" and dtype.bits == _WIDEST):
        return extent
    return ["unsigned" if dtype.kind == "uint" else "signed", extent, ["const", dtype.bits]]


def _not(a: Extent) -> Extent:
    return ["eq", a, ["const", 0]]


def _differ(a: Extent, b: Extent) -> Extent:
    return _not(["eq", a, b])


def _greater(a: Extent, b: Extent) -> Extent:
    return ["lt", b, a]


def _at_least(a: Extent, b: Extent) -> Extent:
    return ["le", b, a]


def _negative(a: Extent) -> Extent:
    return ["sub", ["const", 0], a]


_NEVER_FAR = ("mod", "minimum", "maximum")
"""Functions whose results the dtype of their operands holds."""


def _plain(fn: str) -> Callable[..., Extent]:
    def both(a: Extent, b: Extent) -> Extent:
        return [fn, a, b]

    return both


_OF_BOOLS: dict[str, Callable[..., Extent]] = {
    "and": _plain("minimum"),
    "or": _plain("maximum"),
    "xor": _differ,
    "not": _not,
}
_FUNCTIONS: dict[str, Callable[..., Extent]] = {
    **_OF_BOOLS,
    **{fn: _plain(fn) for fn in ("add", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "eq", "lt", "le")},
    "neg": _negative,
    "ne": _differ,
    "gt": _greater,
    "ge": _at_least,
}
