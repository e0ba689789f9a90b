"""What is known at compile time about integer scalars in the IR: affine forms and static values."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.tile.structure import DimOp
from tessera.ir.types import dtype_of, is_scalar

Affine = tuple[dict[SSAValue, int], int]
"""Coefficient of each base value, and a constant."""


def affine(value: SSAValue) -> Affine:
    """Return `value` as a sum of integer multiples of base values and a constant."""
    known = constant_value(value)
    if known is not None:
        return {}, int(known)
    owner = value.owner
    if isinstance(owner, CastOp) and _is_wide_integer(owner.source) and _is_wide_integer(value):
        return affine(owner.source)
    if isinstance(owner, ElementwiseOp):
        combined = _combine(owner)
        if combined is not None:
            return combined
    return {value: 1}, 0


def _is_wide_integer(value: SSAValue) -> bool:
    return is_scalar(value.type) and dtype_of(value.type).is_int and dtype_of(value.type).bits == 64


def _combine(op: ElementwiseOp) -> Affine | None:
    fn = op.fn.data
    if fn == "neg":
        return _scaled(affine(op.args[0]), -1)
    if fn not in ("add", "sub", "mul"):
        return None
    left, right = affine(op.args[0]), affine(op.args[1])
    if fn == "mul":
        if not left[0]:
            return _scaled(right, left[1])
        return None if right[0] else _scaled(left, right[1])
    return difference(left, _scaled(right, -1)) if fn == "add" else difference(left, right)


def _scaled(form: Affine, factor: int) -> Affine:
    return {base: count * factor for base, count in form[0].items() if factor}, form[1] * factor


def difference(left: Affine, right: Affine) -> Affine:
    """Return `left - right`."""
    terms = dict(left[0])
    for base, count in right[0].items():
        terms[base] = terms.get(base, 0) - count
        if not terms[base]:
            del terms[base]
    return terms, left[1] - right[1]


def static_value(value: SSAValue, dim_size: Callable[[DimOp], int]) -> int | None:
    """Return the integer that `value` is once dimensions are fixed, or None when it depends on more.

    Args:
        value: an integer scalar.
        dim_size: gives the size of a dimension and records that it was relied on. Asked only when the whole
            value turns out to be static.
    """
    return _evaluate(value, dim_size) if _is_static(value) else None


def _is_static(value: SSAValue) -> bool:
    owner = value.owner
    if constant_value(value) is not None or isinstance(owner, DimOp):
        return True
    if isinstance(owner, CastOp):
        return dtype_of(value.type).is_int and is_scalar(owner.source.type) and _is_static(owner.source)
    return (
        isinstance(owner, ElementwiseOp)
        and owner.fn.data in _FUNCTIONS
        and is_scalar(value.type)
        and dtype_of(value.type).is_int
        and all(_is_static(arg) for arg in owner.args)
    )


def _floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def _mod(a: int, b: int) -> int:
    return a % b if b else 0


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": _floordiv,
    "mod": _mod,
    "maximum": max,
    "minimum": min,
    "neg": int.__neg__,
    "shl": int.__lshift__,
    "shr": int.__rshift__,
}


def _evaluate(value: SSAValue, dim_size: Callable[[DimOp], int]) -> int:
    known = constant_value(value)
    if known is not None:
        return int(known)
    owner = value.owner
    if isinstance(owner, DimOp):
        return dim_size(owner)
    if isinstance(owner, CastOp):
        return _evaluate(owner.source, dim_size)
    assert isinstance(owner, ElementwiseOp)
    return _FUNCTIONS[owner.fn.data](*(_evaluate(arg, dim_size) for arg in owner.args))
