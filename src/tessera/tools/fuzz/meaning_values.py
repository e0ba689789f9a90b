"""What an expression means: numbers, how far an implementation may be from them, and where nothing is promised.

Integers and bools are exact. A float is a number in float64, with a bound on the distance of what any implementation
may compute: 0 where the result is determined to the bit. An element is unknown where implementations may disagree by
more than a bound can say: a comparison within the error, an integer division by zero, an overflow that a rounding
decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tessera.tools.fuzz.types import bits, is_float

Array = npt.NDArray[Any]

NUMPY: Final[dict[str, Any]] = {
    **{f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"u{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    "bool": np.dtype(bool),
}
"""NumPy's types of exact values; floats are held in float64."""


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format.

    Args:
        mantissa: explicit mantissa bits.
        least: exponent of the smallest normal number.
        largest: largest finite number.
        overflow: what lies beyond: `inf`, `nan` or `max`.
    """

    mantissa: int
    least: int
    largest: float
    overflow: str = "inf"

    @property
    def unit(self) -> float:
        """The largest relative error of rounding to nearest."""
        return 2.0 ** -(self.mantissa + 1)

    @property
    def normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.least

    @property
    def tiny(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.least - self.mantissa)


FORMATS: Final = {
    "f64": Format(52, -1022, 1.7976931348623157e308),
    "f32": Format(23, -126, float(np.finfo(np.float32).max)),
    "f16": Format(10, -14, 65504.0),
    "bf16": Format(7, -126, 2.0**128 - 2.0**120),
    "tf32": Format(10, -126, 2.0**128 - 2.0**117),
    "fp8_e4m3": Format(3, -6, 448.0, "nan"),
    "fp8_e5m2": Format(2, -14, 57344.0),
    "fp6_e2m3": Format(3, 0, 7.5, "max"),
    "fp6_e3m2": Format(2, -2, 28.0, "max"),
    "fp4_e2m1": Format(1, 0, 6.0, "max"),
}


class Undetermined(Exception):
    """The program's meaning is not determined, so that nothing can be compared: an unknown decides what is run."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What a value is a sum of, for those who add to it in another order.

    Args:
        depth: numbers in a sum.
        size: sum of their magnitudes.
        step: what all of them are multiples of.
    """

    depth: int
    size: Array
    step: Array

    def reordered(self, other: Val, form: Format) -> Array:
        """Return the bound on what adding another number first changes: infinity where that may overflow."""
        size, step = self.size + np.abs(other.data), np.minimum(self.step, possible_steps(other))
        exact = size + other.errors() <= step * 2.0 ** (form.mantissa + 1)
        bound = np.where(size <= form.largest / 2, (2 * self.depth + 6) * 2 * form.unit * size, np.inf)
        return np.where(exact | ~np.isfinite(other.data), 0.0, bound)


@dataclass(frozen=True, slots=True, eq=False)
class Val:
    """The value of an expression.

    Args:
        dtype: its dtype.
        data: the numbers, in float64 for floats.
        err: bound on the distance of an implementation's floats; None where all are determined.
        known: where something is promised; None where everywhere.
        sums: what a matrix product is a sum of.
        terms: magnitudes of what a sum or difference of two was made of, where an exponential may take them apart.
        signed: where the sign of a zero is promised, too; None where nowhere.
    """

    dtype: str
    data: Array
    err: Array | None = None
    known: Array | None = None
    sums: Sums | None = None
    terms: Array | None = None
    signed: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the data."""
        return self.data.shape

    def errors(self) -> Array:
        """Return the bounds, 0 where there is none."""
        return np.zeros(self.data.shape) if self.err is None else self.err

    def mask(self) -> Array:
        """Return where the value is known."""
        return np.ones(self.data.shape, np.bool_) if self.known is None else self.known

    def moved(self, change: Callable[[Array], Array]) -> Val:
        """Return the value with its data, errors and mask rearranged alike."""
        err = None if self.err is None else change(self.err)
        known = None if self.known is None else change(self.known)
        terms = None if self.terms is None else change(self.terms)
        return Val(self.dtype, change(self.data), err, known, terms=terms)

    def only(self, what: str) -> Array:
        """Return the data of a value that has to be known everywhere.

        Raises:
            Undetermined: it is not.
        """
        if self.known is not None and not self.known.all():
            raise Undetermined(what)
        return self.data


def nearest(x: Array, dtype: str) -> Array:
    """Round float64 numbers to a format, ties to even, once."""
    if dtype == "f64":
        return x
    if dtype == "f32":
        return x.astype(np.float32).astype(np.float64)
    if dtype == "f16":
        return x.astype(np.float16).astype(np.float64)
    form = FORMATS[dtype]
    finite = np.isfinite(x)
    safe = np.where(finite, x, 0.0)
    exponent = np.maximum(np.frexp(safe)[1] - 1, form.least) - form.mantissa
    rounded = np.ldexp(np.rint(np.ldexp(safe, -exponent)), exponent)
    beyond = np.abs(rounded) > form.largest
    if beyond.any():
        rounded = np.where(beyond, _beyond(np.sign(safe), form), rounded)
    if not finite.all():
        outside = x if form.overflow == "inf" else np.where(np.isnan(x), x, _beyond(np.sign(x), form))
        rounded = np.where(finite, rounded, outside)
    return rounded


def _beyond(sign: Array, form: Format) -> Array:
    if form.overflow == "nan":
        return np.full_like(sign, np.nan)
    limit = np.inf if form.overflow == "inf" else form.largest
    return np.copysign(limit, sign)


def either(a: Array | None, b: Array | None) -> Array | None:
    """Return where both of two optional masks hold."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def rounded(dtype: str, x: Array, err: Array | None = None, known: Array | None = None) -> Val:
    """Return a float64 result (off by `err`) as a value of a float dtype, which an implementation rounds to.

    A result whose error does not reach the next rounding boundary is determined in spite of it.
    """
    data = nearest(x, dtype)
    form = FORMATS[dtype]
    if form.overflow == "max":  # what a format without NaN makes of one is not said
        bad = ~np.isfinite(x)
        if bad.any():
            known = either(known, ~bad)
            data = np.where(bad, 0.0, data)
    if err is None:
        return Val(dtype, data, None, known)
    if dtype == "f64":  # `x` is rounded already, and what is off before that may be rounded the other way
        wide = np.where(err > 0, err + 2 * form.unit * np.abs(x), err)
        low, high = x - wide, x + wide
    else:
        low, high = nearest(x - err, dtype), nearest(x + err, dtype)
    spread = np.maximum(high - data, data - low)
    same = (low == high) | (np.isnan(x) & (err == 0)) | (np.isinf(x) & (err == 0))
    spread = np.where(same, 0.0, spread)
    # Where the interval leaves the format (or is NaN), anything may come out.
    lost = ~same & ~(np.isfinite(low) & np.isfinite(high) & np.isfinite(data))
    if form.overflow == "max":
        lost |= ~same & (np.abs(x) + err > form.largest)
    if lost.any():
        known = either(known, ~lost)
        spread = np.where(lost, 0.0, spread)
    return Val(dtype, data, spread if spread.any() else None, known)


def every(x: Array, axis: int) -> Array:
    """Return where all elements along a dimension are true."""
    return np.asarray(np.all(x, axis=axis))


def exact_steps(x: Array) -> Array:
    """Return the largest power of two that divides each number; infinity for 0, 0 for what is not finite."""
    with np.errstate(all="ignore"):
        fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
        whole = (fraction * 2.0**53).astype(np.int64)
        step = np.ldexp((whole & -whole).astype(np.float64), exponent - 53)
    return np.where(x == 0, np.inf, np.where(np.isfinite(x), step, 0.0))


def possible_steps(x: Val) -> Array:
    """Return a power of two that divides all numbers that an implementation may have in place of each.

    A number that is off by any amount may end with any digit of its format; but a zero that may be a subnormal number
    instead changes no sum by more than that.
    """
    steps = exact_steps(x.data)
    if x.err is None:
        return steps
    form, least = FORMATS[x.dtype], np.maximum(np.abs(x.data) - x.err, 0.0)
    exponent = np.where(least > 0, np.maximum(np.frexp(least)[1] - 1, form.least), form.least)
    ends_anyhow = (x.err > 0) & ((x.data != 0) | (x.err > 4 * form.normal))
    return np.where(ends_anyhow, np.minimum(steps, np.ldexp(1.0, exponent - form.mantissa)), steps)


def significant(x: Array) -> Array:
    """Return how many significant bits each number has."""
    with np.errstate(all="ignore"):
        size = np.frexp(np.abs(x) / exact_steps(x))[1]
    return np.where((x == 0) | ~np.isfinite(x), 0, size)


def stored(dtype: str, array: Array) -> Val:
    """Return the value of an array whose elements are of a dtype."""
    return Val(dtype, array.astype(np.float64) if is_float(dtype) else array)


def take_low_bits(value: int, dtype: str) -> int:
    """Return the integer of a dtype with the low bits of another one."""
    low = value & (2 ** bits(dtype) - 1)
    return low - 2 ** bits(dtype) if dtype[0] == "i" and low >> (bits(dtype) - 1) else low


def constant(value: bool | int | float, dtype: str) -> Val:
    """Return a number of the source as a scalar of a dtype."""
    if is_float(dtype):
        return Val(dtype, nearest(np.asarray(float(value)), dtype))
    if dtype == "bool":
        return Val(dtype, np.asarray(bool(value)))
    return Val(dtype, np.asarray(take_low_bits(int(value), dtype), NUMPY[dtype]))
