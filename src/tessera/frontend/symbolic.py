"""What is known at compile time about integer scalars in the IR: affine forms and static values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.tile.structure import DimOp
from tessera.ir.types import dtype_of, is_scalar

Key = object
"""Equal for values that compute the same: an SSA value, or a function with the keys of its operands."""


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer scalar as a sum of multiples of base values and a constant.

    Args:
        terms: coefficient and an example of each base value, by its key.
        constant: what is added.
    """

    terms: dict[Key, tuple[int, SSAValue]] = field(default_factory=dict[Key, tuple[int, SSAValue]])
    constant: int = 0

    def key(self) -> Key:
        """Return what identifies the sum."""
        return frozenset((key, count) for key, (count, _) in self.terms.items()), self.constant

    def times(self, factor: int) -> Affine:
        """Return the multiple of the sum."""
        terms = {key: (count * factor, base) for key, (count, base) in self.terms.items() if factor}
        return Affine(terms, self.constant * factor)

    def plus(self, other: Affine) -> Affine:
        """Return the sum of both."""
        terms = dict(self.terms)
        for key, (count, base) in other.terms.items():
            total = count + terms.get(key, (0, base))[0]
            terms[key] = total, base
            if not total:
                del terms[key]
        return Affine(terms, self.constant + other.constant)


def affine(value: SSAValue) -> Affine:
    """Return `value` as a sum; two computations of the same value have the same base."""
    known = constant_value(value)
    if known is not None:
        return Affine(constant=int(known))
    owner = value.owner
    if isinstance(owner, CastOp) and _is_wide_integer(owner.source) and _is_wide_integer(value):
        return affine(owner.source)
    if not isinstance(owner, ElementwiseOp) or not _is_wide_integer(value):
        return Affine({value: (1, value)})
    parts = [affine(arg) for arg in owner.args]
    fn = owner.fn.data
    if fn == "neg":
        return parts[0].times(-1)
    if fn in ("add", "sub"):
        return parts[0].plus(parts[1].times(1 if fn == "add" else -1))
    if fn == "mul" and not parts[0].terms:
        return parts[1].times(parts[0].constant)
    if fn == "mul" and not parts[1].terms:
        return parts[0].times(parts[1].constant)
    return Affine({(fn, *(part.key() for part in parts)): (1, value)})


def _is_wide_integer(value: SSAValue) -> bool:
    return is_scalar(value.type) and dtype_of(value.type).is_int and dtype_of(value.type).bits == 64


def difference(upper: SSAValue, lower: SSAValue, dim_size: Callable[[DimOp], int]) -> int | None:
    """Return `upper - lower` when it is known once dimensions are fixed, else None."""
    rest = affine(upper).plus(affine(lower).times(-1))
    if not all(_is_static(base) for _, base in rest.terms.values()):
        return None
    return rest.constant + sum(count * _evaluate(base, dim_size) for count, base in rest.terms.values())


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
