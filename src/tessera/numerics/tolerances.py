"""How far a result may be from the exact one, by dtype and kind of operation.

A bound has three parts (`Tolerance`): an error relative to the result, an error relative to a *magnitude* that goes
with the operation, and an absolute one for results too small for the dtype. The magnitude is

* for a function `f(x)`: `|x f'(x)|`, so that the second part is an error of the argument (`exp(x)` computed as
  `exp2(x log2 e)` has one);
* for a sum: the sum of the absolute values of its terms; for a matrix product `|A| |B| + |C|`.

All bounds are stated in the unit roundoff `u = 2**-(mantissa + 1)`: one rounding to nearest is off by at most `u`
relative to the result.

Sources: Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapters 2 to 4; the errors of the vector
functions as measured in `backends/llvm/vecmath.py`; CUDA C++ Programming Guide, "Intrinsic Functions".
"""

from __future__ import annotations

from tessera.data import dataclass
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import FUNCTIONS


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The bound `|got - exact| <= relative * |exact| + scaled * magnitude + absolute`.

    Args:
        relative: part of the exact result.
        scaled: part of the operation's magnitude.
        absolute: constant part.
    """

    relative: float = 0.0
    scaled: float = 0.0
    absolute: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether only the exact result will do."""
        return self == EXACT

    def plus(self, other: Tolerance) -> Tolerance:
        """Return the bound of one operation after another."""
        return Tolerance(self.relative + other.relative, self.scaled + other.scaled, self.absolute + other.absolute)


EXACT = Tolerance()
"""Moves, comparisons, selections, minimum and maximum, integers, and conversions that say how they round."""


def unit_roundoff(dtype: DType) -> float:
    """Return the largest relative error of rounding to nearest in `dtype`."""
    return 2.0 ** -(dtype.mantissa + 1)


def smallest_normal(dtype: DType) -> float:
    """Return the smallest positive number that `dtype` holds with all its mantissa bits."""
    exponent_bits = dtype.bits - 1 - dtype.mantissa
    return 2.0 ** (2 - 2 ** (exponent_bits - 1))


def smallest_subnormal(dtype: DType) -> float:
    """Return the distance between neighbouring numbers near zero."""
    return smallest_normal(dtype) * 2.0**-dtype.mantissa


def of_rounding(dtype: DType, times: float = 1.0) -> Tolerance:
    """Return the bound of `times` roundings to `dtype`: `+ - * sqrt fma` have one, `/` too where it is not `fast`."""
    if not dtype.is_float:
        return EXACT
    # Half of it would do, but f64 has no number for that.
    return Tolerance(relative=times * unit_roundoff(dtype), absolute=times * smallest_subnormal(dtype))


_DIVISION_ULP = (2.5, 0.0)
"""Of a product with a reciprocal by div.full.f32; a division that is not `fast` rounds correctly."""


def of_function(name: str, dtype: DType) -> Tolerance:
    """Return the bound of `div`, or of a transcendental function, on arguments of `dtype`.

    Args:
        name: its name.
        dtype: the dtype of argument and result. Narrow floats are computed in f32 and rounded once more.
    """
    compute = dtype if dtype.bits >= 32 else dtypes.f32
    result_ulp, argument_ulp = FUNCTIONS[name].ulp or _DIVISION_ULP
    ulp = 2 * unit_roundoff(compute)
    # `fast` may flush what f32 holds without full precision.
    within = Tolerance(result_ulp * ulp, argument_ulp * ulp, smallest_normal(compute))
    return within if compute == dtype else within.plus(of_rounding(dtype))


def of_sum(dtype: DType, terms: int) -> Tolerance:
    """Return the bound of a sum of `terms` numbers in `dtype`, in any order of addition."""
    if not dtype.is_float:
        return EXACT
    u = unit_roundoff(dtype)
    return Tolerance(relative=u, scaled=max(terms - 1, 0) * u, absolute=smallest_subnormal(dtype))


def of_matmul(operand: DType, accumulator: DType, depth: int, steps: int = 1) -> Tolerance:
    """Return the bound of `C + A @ B`.

    Args:
        operand: dtype that operands are multiplied in (`tf32` for f32 operands computed as such).
        accumulator: dtype of the sum.
        depth: length of the sum.
        steps: products it is done in, each of which rounds to the accumulator's dtype.

    Tensor cores may add products of one step with a few bits less than f32 has and truncate instead of rounding:
    every addition counts two unit roundoffs.
    """
    if not accumulator.is_float:
        return EXACT
    sums = of_sum(accumulator, 2 * (depth + steps) + 1)
    # A rounding of each operand on the way, where they are not exact in the type that is multiplied in.
    operands = Tolerance(scaled=2.5 * unit_roundoff(operand)) if operand.name == "tf32" else EXACT
    return sums.plus(operands)
