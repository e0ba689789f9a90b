"""Arithmetic of integers that kernels and the code around them share."""

from __future__ import annotations

from operator import index
from typing import Any, SupportsIndex, cast

from tessera.errors import TypeMismatchError


def cdiv(a: Any, b: Any) -> Any:
    """Return `a / b` rounded up: how many blocks of `b` cover `a`.

    Works on Python integers anywhere, and inside kernels on scalars and integer tiles too, where `a + b - 1` wraps as
    additions do.

    Args:
        a: integer.
        b: positive integer.

    Returns:
        Integer; inside kernels a scalar or tile of the promoted dtype where an operand is one.

    Raises:
        TypeMismatchError: `dtype-mismatch` for what is no integer, `bad-argument` for a constant `b` below 1.
    """
    whole = [_integer(value) for value in (a, b)]
    if whole[1] < 1:
        raise TypeMismatchError(
            "cdiv: the divisor is below 1", code="bad-argument", help="give the size of a block, at least 1"
        )
    return -(-whole[0] // whole[1])


def wrapped(value: int, bits: int, signed: bool) -> int:
    """Return what an integer type of so many bits holds of `value`."""
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _integer(value: object) -> int:
    try:
        return index(cast(SupportsIndex, value))
    except TypeError:
        raise TypeMismatchError(
            f"cdiv: {type(value).__name__} is not an integer",
            code="dtype-mismatch",
            help="give integers; math.ceil(a / b) divides floats",
        ) from None
