"""Sizes of PyTorch's traced tensors as Tessera's."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from functools import reduce
from typing import Any

from tessera.target.dims import Dim

MOST = 4096
"""The largest numerator and denominator of a part of a size."""
NAMED = "of_"
"""What names of parts of sizes begin with."""


class Unknown(Exception):
    """A size, a dtype or an argument that Graph IR has no words for: the op runs as ATen."""


class Elsewhere(Unknown):
    """An op reads memory by where PyTorch would have put it: the whole graph runs as PyTorch traced it."""


def dim_of(size: Any) -> Dim:
    """Return a size: an integer, or an expression in symbols; what is no sum, product or quotient has a name."""
    if isinstance(size, int):
        return Dim((), int(size))
    return dim_of_expression(size.node.expr)


def fixed(size: Any) -> int:
    """Return a number that all calls have to have from now on: kernels are made for it.

    Raises:
        Unknown: only the graph's run tells it.
    """
    if not isinstance(size, int) and size.node.hint is None:
        raise Unknown("a number that is known when the graph runs")
    return int(size)


def dim_of_expression(expr: Any) -> Dim:
    """Return PyTorch's expression of a size.

    Raises:
        Unknown: it is no integer.
    """
    if expr.is_Integer:
        return Dim((), int(expr))
    if expr.is_Symbol:
        return Dim((str(expr),))
    if _is_named(expr):
        return Dim((_name_of(expr),))
    if type(expr).__name__ in ("TruncToInt", "FloorToInt"):
        ratio, rest = _part(expr.args[0])
        return dim_of_expression(rest) * ratio.numerator // ratio.denominator
    parts = [dim_of_expression(part) for part in expr.args]
    if expr.is_Add:
        return reduce(lambda a, b: a + b, parts)
    if expr.is_Mul:
        return reduce(lambda a, b: a * b, parts)
    if expr.is_Pow:
        return reduce(lambda a, b: a * b, [parts[0]] * int(expr.args[1]))
    if parts[1].is_static and parts[1].scale < 0:
        return (parts[0] * -1) // -parts[1].scale
    return parts[0] // parts[1]


def named_in(expr: Any) -> dict[str, Any]:
    """Return the parts of an expression that `dim_of` gives names, by the name."""
    if _is_named(expr):
        return {_name_of(expr): expr}
    return {name: part for one in expr.args for name, part in named_in(one).items()}


def _is_named(expr: Any) -> bool:
    """Return whether an expression is of a function that sizes of Graph IR have not, such as a remainder."""
    if not expr.is_integer or expr.is_Integer or expr.is_Symbol or expr.is_Add or expr.is_Mul:
        return False
    name = type(expr).__name__
    if expr.is_Pow:
        return not (expr.args[1].is_Integer and 0 < int(expr.args[1]) < 8)
    if name in ("FloorDiv", "CleanDiv"):
        return expr.args[1].is_Integer and int(expr.args[1]) == 0
    if name not in ("TruncToInt", "FloorToInt"):
        return True
    ratio, rest = _part(expr.args[0])
    return not rest.is_integer or not 0 < ratio.numerator <= MOST or ratio.denominator > MOST


def _name_of(expr: Any) -> str:
    """Return a name that is the same in every process."""
    return f"{NAMED}{hashlib.sha256(str(expr).encode()).hexdigest()[:12]}"


def _part(expr: Any) -> tuple[Fraction, Any]:
    """Return a number and what it is multiplied with: quotients by numbers are products."""
    name = type(expr).__name__
    if name == "ToFloat":
        return _part(expr.args[0])
    if name in ("IntTrueDiv", "FloatTrueDiv") and expr.args[1].is_Number and expr.args[1] != 0:
        ratio, rest = _part(expr.args[0])
        return ratio / Fraction(float(expr.args[1])), rest
    factor, rest = expr.as_coeff_Mul()
    if factor == 1:
        return Fraction(1), rest
    ratio, rest = _part(rest)
    return ratio * Fraction(float(factor)), rest


def dims_of(tensor: Any) -> tuple[Dim, ...]:
    """Return the sizes of a tensor; complex numbers are pairs along one more dimension.

    Raises:
        Unknown: as `dim_of`.
    """
    found = tuple(map(dim_of, tensor.shape))
    return (*found, Dim((), 2)) if tensor.is_complex() else found
