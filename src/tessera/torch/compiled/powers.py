"""Powers of f32 numbers on CPUs, by logarithms in f64: kernels' own lose the bits of large exponents under `fast`."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from tessera.numerics.dtypes import f32, f64
from tessera.runtime.device import CPU
from tessera.torch.compiled.convert import Converter, F, is_value

_MOST_FACTORS = 4


def power(c: Converter, f: F, x: Any, y: Any) -> Any:
    """Return `x` to the power of `y`, correctly rounded but for few.

    Args:
        c: the converter.
        f: applies functions.
        x: f32, or a number.
        y: f32, or a number; one of both is no number.
    """
    if not is_value(x):
        return _of_number(c, f, float(x), y)
    y = y if is_value(y) else float(y)
    size = _narrow(c, f("exp2", f("mul", f("log2", f("abs", _wide(c, x))), _wide(c, y))))
    return _signed(f, x, y, size) if is_value(y) else _signed_by_number(f, x, y, size)


def is_exact(c: Converter) -> bool:
    """Return whether a kernel's own power loses no bits: that of GPUs is computed in f64."""
    return c.device.type != CPU.kind


def root(c: Converter, size: Any, exponent: float) -> Any:
    """Return what is not less than 0, f32 or f64, to a power that is not 0; small whole ones are products."""
    if float(exponent).is_integer() and 1 <= exponent <= _MOST_FACTORS:
        return reduce(lambda found, one: c.w.apply("mul", found, one), [size] * int(exponent))
    if c.w_dtype(size) == f64 or is_exact(c):
        return c.w.apply("pow", size, exponent)
    return _narrow(c, c.w.apply("exp2", c.w.apply("mul", c.w.apply("log2", _wide(c, size)), exponent)))


def _wide(c: Converter, value: Any) -> Any:
    return c.w.cast(value, f64) if is_value(value) else float(value)


def _narrow(c: Converter, value: Any) -> Any:
    return c.w.cast(value, f32)


def _of_number(c: Converter, f: F, x: float, y: Any) -> Any:
    if x <= 0 or x == 1 or not math.isfinite(x):
        return power(c, f, c.w.broadcast_to(c.w.full(x, f32), c.dims(y)), y)
    return _narrow(c, f("exp2", f("mul", _wide(c, y), math.log2(x))))


def _signed_by_number(f: F, x: Any, y: float, size: Any) -> Any:
    if math.isnan(y):
        return f("select", f("eq", x, 1.0), 1.0, size)
    if math.isinf(y):
        return f("select", f("eq", f("abs", x), 1.0), 1.0, size)
    if y.is_integer():
        return f("copysign", size, x) if y % 2 == 1 else size
    return f("select", _is_below(f, x), math.nan, size)


def _is_below(f: F, x: Any) -> Any:
    """Return whether numbers are finite and less than 0: they have whole powers only."""
    return f("and", f("lt", x, 0.0), f("gt", x, -math.inf))


def _signed(f: F, x: Any, y: Any, size: Any) -> Any:
    """Return a power, given that of `abs(x)`, with the sign and the special cases of C's `pow`."""
    half = f("mul", y, 0.5)
    whole = f("eq", f("floor", y), y)
    odd = f("and", whole, f("ne", f("floor", half), half))
    found = f("select", odd, f("copysign", size, x), size)
    found = f("select", f("and", _is_below(f, x), f("not", whole)), math.nan, found)
    endless = f("and", f("eq", f("abs", x), 1.0), f("eq", f("abs", y), math.inf))
    return f("select", f("or", f("or", f("eq", y, 0.0), f("eq", x, 1.0)), endless), 1.0, found)
