"""Sizes of PyTorch's traced tensors as Tessera's."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Any

from tessera.target.dims import Dim

MOST = 4096
"""The largest numerator and denominator of a part of a size."""


class Unknown(Exception):
    """A size, a dtype or an argument that Graph IR has no words for: the op runs as ATen."""


class Elsewhere(Unknown):
    """An op reads memory by where PyTorch would have put it: the whole graph runs as PyTorch traced it."""


def dim_of(size: Any) -> Dim:
    """Return a size: an integer, or an expression in symbols.

    Raises:
        Unknown: an expression of other functions than sums, products and quotients rounded down.
    """
    if isinstance(size, int):
        return Dim((), int(size))
    return _dim(size.node.expr)


def _dim(expr: Any) -> Dim:
    if expr.is_Integer:
        return Dim((), int(expr))
    if expr.is_Symbol:
        return Dim((str(expr),))
    if type(expr).__name__ in ("TruncToInt", "FloorToInt"):
        return _part(expr.args[0])
    parts = [_dim(part) for part in expr.args]
    if expr.is_Add:
        return reduce(lambda a, b: a + b, parts)
    if expr.is_Mul:
        return reduce(lambda a, b: a * b, parts)
    if expr.is_Pow and expr.args[1].is_Integer and 0 < int(expr.args[1]) < 8:
        return reduce(lambda a, b: a * b, [parts[0]] * int(expr.args[1]))
    if type(expr).__name__ in ("FloorDiv", "CleanDiv") and len(parts) == 2:
        if parts[1].is_static and parts[1].scale < 0:
            return (parts[0] * -1) // -parts[1].scale
        return parts[0] // parts[1]
    raise Unknown(f"the size {expr}")


def _part(expr: Any) -> Dim:
    """Return a size times a number that is a quotient of small ones, rounded down."""
    factor, rest = expr.as_coeff_Mul()
    ratio = Fraction(float(factor))
    if type(rest).__name__ == "ToFloat":
        rest = rest.args[0]
    if not rest.is_integer or not 0 < ratio.numerator <= MOST or ratio.denominator > MOST:
        raise Unknown(f"the size {expr}")
    return _dim(rest) * ratio.numerator // ratio.denominator


def dims_of(tensor: Any) -> tuple[Dim, ...]:
    """Return the sizes of a tensor; complex numbers are pairs along one more dimension.

    Raises:
        Unknown: as `dim_of`.
    """
    found = tuple(map(dim_of, tensor.shape))
    return (*found, Dim((), 2)) if tensor.is_complex() else found
