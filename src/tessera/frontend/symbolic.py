"""What is known at compile time about integer scalars in the IR: affine forms and static values.

Both follow the arithmetic of the language: integers wrap at the width of their type.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Any

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of, reads_only
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.structure import DimOp
from tessera.ir.types import dtype_of, is_scalar
from tessera.numerics.dtypes import DType
from tessera.numerics.integers import wrapped


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer scalar as a sum of multiples of base values and a constant, modulo 2 to its width.

    Args:
        bits: the width.
        terms: the coefficient of each base, by its number.
        constant: what is added.
    """

    bits: int
    terms: dict[int, int] = field(default_factory=dict[int, int])
    constant: int = 0

    def key(self) -> Hashable:
        """Return what identifies the sum."""
        return self.bits, frozenset(self.terms.items()), self.constant

    def times(self, factor: int) -> Affine:
        """Return the multiple of the sum."""
        return self._of({base: count * factor for base, count in self.terms.items()}, self.constant * factor)

    def plus(self, other: Affine) -> Affine:
        """Return the sum of both."""
        terms = dict(self.terms)
        for base, count in other.terms.items():
            terms[base] = terms.get(base, 0) + count
        return self._of(terms, self.constant + other.constant)

    def _of(self, terms: dict[int, int], constant: int) -> Affine:
        size = 1 << self.bits
        kept = {base: count % size for base, count in terms.items() if count % size}
        return Affine(self.bits, kept, constant % size)


class Symbols:
    """Computes affine forms and static values, each value once, however often an expression repeats it.

    Args:
        dim_size: gives the size of a dimension and records that it was relied on.
    """

    def __init__(self, dim_size: Callable[[DimOp], int]) -> None:
        self._dim_size = dim_size
        self._affine: dict[SSAValue, Affine] = {}
        self._static: dict[SSAValue, bool] = {}
        self._bases: dict[Hashable, int] = {}
        self._examples: list[SSAValue] = []
        self._moments: dict[Operation, Hashable] = {}

    def difference(self, upper: SSAValue, lower: SSAValue) -> int | None:
        """Return `upper - lower` of two scalars of one integer type when it is known, else None.

        The difference is the one that the subtraction gives, which wraps: `s + 8` is 8 beyond `s` for every `s`.
        """
        rest = self.affine(upper).plus(self.affine(lower).times(-1))
        bases = {base: self._examples[base] for base in rest.terms}
        if not all(map(self.is_static, bases.values())):
            return None
        total = rest.constant + sum(count * self._evaluate(bases[base], {}) for base, count in rest.terms.items())
        return wrapped(total, rest.bits, signed=True)

    def static_value(self, value: SSAValue) -> int | None:
        """Return the integer that `value` is once dimensions are fixed, or None when it depends on more."""
        return self._evaluate(value, {}) if self.is_static(value) else None

    def affine(self, value: SSAValue) -> Affine:
        """Return an integer scalar as a sum; two computations of the same value have the same bases."""
        for part in _in_order(value, self._affine, _parts):
            self._affine[part] = self._sum(part)
        return self._affine[value]

    def _sum(self, value: SSAValue) -> Affine:
        bits, owner = _integer(value).bits, value.owner
        known = constant_value(value)
        if known is not None:
            return Affine(bits, constant=int(known) % (1 << bits))
        parts = [self._affine[arg] for arg in _parts(value)]
        if isinstance(owner, LoadOp) and owner.mask is None and owner.fill is None:
            places = tuple(part.key() for part in parts)
            return self._base(("load", owner.tensor, self._moment(owner), *places), value)
        if isinstance(owner, CastOp) and parts:
            if parts[0].bits == bits:
                return parts[0]
            source = _integer(owner.source)
            return self._base(("cast", source.kind, bits, parts[0].key()), value)
        if not isinstance(owner, ElementwiseOp) or not parts:
            return self._base(value, value)
        fn = owner.fn.data
        if fn == "neg":
            return parts[0].times(-1)
        if fn in ("add", "sub"):
            return parts[0].plus(parts[1].times(1 if fn == "add" else -1))
        if fn == "mul" and not parts[0].terms:
            return parts[1].times(parts[0].constant)
        if fn == "mul" and not parts[1].terms:
            return parts[0].times(parts[1].constant)
        return self._base((fn, str(value.type), *(part.key() for part in parts)), value)

    def _moment(self, load: LoadOp) -> Hashable:
        """Return what loads of a block have in common between which nothing is written."""
        if load not in self._moments:
            before = load.prev_op
            while before is not None and before not in self._moments and _writes_nothing(before):
                before = before.prev_op
            self._moments[load] = load.parent if before is None else self._moments.get(before, before)
        return self._moments[load]

    def _base(self, key: Hashable, value: SSAValue) -> Affine:
        number = self._bases.setdefault(key, len(self._bases))
        if number == len(self._examples):
            self._examples.append(value)
        return Affine(_integer(value).bits, {number: 1})

    def is_static(self, value: SSAValue) -> bool:
        """Return whether an integer scalar depends on constants and dimensions only."""
        for part in _in_order(value, self._static, _operands):
            known = constant_value(part) is not None or isinstance(part.owner, DimOp)
            operands = _operands(part)
            self._static[part] = known or (bool(operands) and all(self._static[arg] for arg in operands))
        return self._static[value]

    def _evaluate(self, value: SSAValue, found: dict[SSAValue, int]) -> int:
        for part in _in_order(value, found, _operands):
            known, owner = constant_value(part), part.owner
            if known is not None:
                found[part] = int(known)
            elif isinstance(owner, DimOp):
                found[part] = self._dim_size(owner)
            else:
                args = [found[arg] for arg in _operands(part)]
                dtype = _integer(part)
                result = _FUNCTIONS[owner.fn.data](*args) if isinstance(owner, ElementwiseOp) else args[0]
                found[part] = wrapped(result, dtype.bits, dtype.kind == "int")
        return found[value]


def _in_order(
    value: SSAValue, known: dict[SSAValue, Any], parts: Callable[[SSAValue], list[SSAValue]]
) -> list[SSAValue]:
    """Return `value` and what it is computed from, operands first, without those in `known`."""
    order: dict[SSAValue, None] = {}
    stack = [(value, False)]
    while stack:
        current, is_done = stack.pop()
        if current in known or current in order:
            continue
        if is_done:
            order[current] = None
        else:
            stack.append((current, True))
            stack += [(part, False) for part in parts(current)]
    return list(order)


def _writes_nothing(op: Operation) -> bool:
    return effect_of(op) <= Effect.RANDOM or reads_only(op)


def _is_integer(value: SSAValue) -> bool:
    return is_scalar(value.type) and (isinstance(value.type, IndexType) or dtype_of(value.type).is_int)


def _integer(value: SSAValue) -> DType:
    return dtype_of(value.type)


def _parts(value: SSAValue) -> list[SSAValue]:
    """Return the integers that an op computes an integer scalar from: its operands, or the places of a load."""
    owner = value.owner
    parts = list(owner.operands) if isinstance(owner, ElementwiseOp | CastOp) else []
    parts = list(owner.offsets) if isinstance(owner, LoadOp) else parts
    return parts if all(map(_is_integer, (value, *parts))) else []


def _operands(value: SSAValue) -> list[SSAValue]:
    """Return the operands of an op that computes an integer scalar by a cast or one of `_FUNCTIONS`, else none."""
    owner = value.owner
    if isinstance(owner, LoadOp) or (isinstance(owner, ElementwiseOp) and owner.fn.data not in _FUNCTIONS):
        return []
    return _parts(value)


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
