"""Arithmetic, element by element.

Operands broadcast by NumPy's rules and are promoted to one dtype; Python numbers take the tile's dtype.
Functions that are defined for floats convert integer operands to f32. bf16, f16 and narrower types are
computed in f32 and rounded after each function.
"""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike
from tessera.numerics.dtypes import DType, Policy

__all__ = [
    "abs",
    "acos",
    "asin",
    "atan",
    "atan2",
    "cast",
    "cbrt",
    "ceil",
    "clamp",
    "copysign",
    "cos",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fma",
    "gelu",
    "hypot",
    "isfinite",
    "isinf",
    "isnan",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "maximum",
    "minimum",
    "mulhi",
    "pow",
    "relu",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "where",
]


@tile_function
def cast(x: TileLike, dtype: DType | Policy | str) -> Tile:
    """Convert to another dtype.

    Args:
        x: tile, scalar or number.
        dtype: dtype, or a policy whose `saturate` clamps to the largest finite value instead of overflowing.

    Returns:
        Tile of the shape of `x`.

    Raises:
        LanguageError: `unsupported-policy` for stochastic rounding.

    Numerics:
        Float to float rounds to nearest even. Float to integer truncates, clamps to the integer's range, and
        gives 0 for NaN. Integer to integer keeps the low bits.
    """
    ...


@tile_function
def where(condition: TileLike, a: TileLike, b: TileLike) -> Tile:
    """Return elements of `a` where the condition is true and of `b` elsewhere.

    Args:
        condition: bool tile or scalar.
        a: tile, scalar or number.
        b: tile, scalar or number.

    Returns:
        Tile of the broadcast shape and the promoted dtype of `a` and `b`. By a tile, two Python integers give i32, or
        i64 where one needs it.

    Raises:
        TypeMismatchError: `dtype-mismatch` when the condition is not bool, `shape-mismatch`.
    """
    ...


@tile_function
def maximum(a: TileLike, b: TileLike) -> Tile:
    """Return the larger of two values; NaN when either is NaN.

    Args:
        a: tile, scalar or number.
        b: tile, scalar or number.

    Returns:
        Tile of the broadcast shape and promoted dtype.
    """
    ...


@tile_function
def minimum(a: TileLike, b: TileLike) -> Tile:
    """Return the smaller of two values; NaN when either is NaN.

    Args:
        a: tile, scalar or number.
        b: tile, scalar or number.

    Returns:
        Tile of the broadcast shape and promoted dtype.
    """
    ...


@tile_function
def clamp(x: TileLike, lo: TileLike, hi: TileLike) -> Tile:
    """Return `minimum(maximum(x, lo), hi)`.

    Args:
        x: tile, scalar or number.
        lo: lower bound.
        hi: upper bound.

    Returns:
        Tile of the broadcast shape and promoted dtype.
    """
    ...


@tile_function
def fma(a: TileLike, b: TileLike, c: TileLike) -> Tile:
    """Return `a * b + c` rounded once; formats of 16 bits and fewer compute in f32 and are rounded as usual then.

    Args:
        a: float tile, scalar or number.
        b: float tile, scalar or number.
        c: float tile, scalar or number.

    Returns:
        Tile of the broadcast shape and promoted dtype.
    """
    ...


@tile_function
def pow(a: TileLike, b: TileLike) -> Tile:
    """Return `a` to the power `b`; `a ** b` means the same.

    Args:
        a: tile, scalar or number.
        b: tile, scalar or number. A small constant integer becomes multiplications.

    Returns:
        Tile of the broadcast shape and promoted dtype.

    Raises:
        TypeMismatchError: `dtype-mismatch` for integers to a power that is no constant from 0 to 16.
    """
    ...


@tile_function
def mulhi(a: TileLike, b: TileLike) -> Tile:
    """Return the upper half of the product of two integers.

    Args:
        a: integer tile or scalar.
        b: integer tile or scalar.

    Returns:
        Integer tile.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
    """
    ...


@tile_function
def abs(x: TileLike) -> Tile:
    """Return the absolute value.

    Args:
        x: tile or scalar.

    Returns:
        Tile of the same shape and dtype.
    """
    ...


@tile_function
def floor(x: TileLike) -> Tile:
    """Return the largest integer not above `x`, as a float.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def ceil(x: TileLike) -> Tile:
    """Return the smallest integer not below `x`, as a float.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def rint(x: TileLike) -> Tile:
    """Return the nearest integer as a float, halves to even: `round`, in NumPy's and CUDA's name.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def round(x: TileLike) -> Tile:
    """Return the nearest integer as a float, halves to even.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def trunc(x: TileLike) -> Tile:
    """Return `x` without its fraction, as a float.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def isnan(x: TileLike) -> Tile:
    """Return where `x` is NaN.

    Args:
        x: float tile or scalar.

    Returns:
        Bool tile of the same shape.
    """
    ...


@tile_function
def isinf(x: TileLike) -> Tile:
    """Return where `x` is infinite, of either sign.

    Args:
        x: float tile or scalar.

    Returns:
        Bool tile of the same shape.
    """
    ...


@tile_function
def isfinite(x: TileLike) -> Tile:
    """Return where `x` is neither infinite nor NaN.

    Args:
        x: float tile or scalar.

    Returns:
        Bool tile of the same shape.
    """
    ...


@tile_function
def sign(x: TileLike) -> Tile:
    """Return -1, 0 or 1 for negative numbers, zeros and positive numbers; NaN for NaN.

    Args:
        x: tile or scalar.

    Returns:
        Tile of the same shape and dtype.
    """
    ...


@tile_function
def copysign(x: TileLike, y: TileLike) -> Tile:
    """Return the magnitude of `x` with the sign of `y`, zeros and infinities included.

    Args:
        x: tile, scalar or number.
        y: tile, scalar or number.

    Returns:
        Float tile of the broadcast shape and promoted dtype.
    """
    ...


@tile_function
def sqrt(x: TileLike) -> Tile:
    """Return the square root, correctly rounded; NaN below zero.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def rsqrt(x: TileLike) -> Tile:
    """Return `1 / sqrt(x)`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def cbrt(x: TileLike) -> Tile:
    """Return the cube root, of negative numbers too.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def hypot(x: TileLike, y: TileLike) -> Tile:
    """Return `sqrt(x * x + y * y)` without overflow; infinite if either is, even when the other is NaN.

    Args:
        x: tile, scalar or number.
        y: tile, scalar or number.

    Returns:
        Float tile of the broadcast shape and promoted dtype.
    """
    ...


@tile_function
def exp(x: TileLike) -> Tile:
    """Return e to the power `x`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def exp2(x: TileLike) -> Tile:
    """Return 2 to the power `x`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def expm1(x: TileLike) -> Tile:
    """Return `exp(x) - 1` without cancellation near zero.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def log(x: TileLike) -> Tile:
    """Return the natural logarithm; minus infinity at zero and NaN below.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def log2(x: TileLike) -> Tile:
    """Return the base-2 logarithm; minus infinity at zero and NaN below.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def log10(x: TileLike) -> Tile:
    """Return the base-10 logarithm; minus infinity at zero and NaN below.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def log1p(x: TileLike) -> Tile:
    """Return `log(1 + x)` without cancellation near zero.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def sin(x: TileLike) -> Tile:
    """Return the sine.

    Args:
        x: tile or scalar, in radians.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def cos(x: TileLike) -> Tile:
    """Return the cosine.

    Args:
        x: tile or scalar, in radians.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def tan(x: TileLike) -> Tile:
    """Return the tangent.

    Args:
        x: tile or scalar, in radians.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def asin(x: TileLike) -> Tile:
    """Return the arcus sine, from -pi/2 to pi/2; NaN outside [-1, 1].

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def acos(x: TileLike) -> Tile:
    """Return the arcus cosine, from 0 to pi; NaN outside [-1, 1].

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def atan(x: TileLike) -> Tile:
    """Return the arcus tangent, from -pi/2 to pi/2.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def atan2(y: TileLike, x: TileLike) -> Tile:
    """Return the angle of the point `(x, y)`, from -pi to pi; the sign of a zero tells the side, as in C.

    Args:
        y: tile, scalar or number.
        x: tile, scalar or number.

    Returns:
        Float tile of the broadcast shape and promoted dtype.
    """
    ...


@tile_function
def tanh(x: TileLike) -> Tile:
    """Return the hyperbolic tangent.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def erf(x: TileLike) -> Tile:
    """Return the error function.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def erfc(x: TileLike) -> Tile:
    """Return `1 - erf(x)`, with all digits where that is small.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def lgamma(x: TileLike) -> Tile:
    """Return the logarithm of the gamma function's magnitude; infinite at 0 and negative integers.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.

    Numerics:
        Of negative numbers the error is relative to `lgamma(-x)` and `log(-x)`: the result has zeros there.
    """
    ...


@tile_function
def sigmoid(x: TileLike) -> Tile:
    """Return `1 / (1 + exp(-x))`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def relu(x: TileLike) -> Tile:
    """Return `maximum(x, 0)`.

    Args:
        x: tile or scalar.

    Returns:
        Tile of the same shape and dtype.
    """
    ...


@tile_function
def silu(x: TileLike) -> Tile:
    """Return `x * sigmoid(x)`.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...


@tile_function
def gelu(x: TileLike, approximate: bool = False) -> Tile:
    """Return `x * Φ(x)` for the normal distribution function Φ.

    Floats of up to 32 bits are computed as `max(x, 0) - |x| Q(|x|)`, where the tail `Q` is 2 to a polynomial: negative
    results keep their digits down to -5, which `1 + erf` would cancel, and are within 1e-10 below that. `-inf` gives 0.

    Args:
        x: tile or scalar.
        approximate: compile-time; use `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))` instead of erf, computed as
            `x sigmoid(2 √(2/π) (x + 0.044715 x³))`, which is the same.

    Returns:
        Float tile of the same shape.

    Source:
        Hendrycks and Gimpel, "Gaussian error linear units", 2016.
    """
    ...


@tile_function
def softplus(x: TileLike) -> Tile:
    """Return `log(1 + exp(x))`, without overflow.

    Args:
        x: tile or scalar.

    Returns:
        Float tile of the same shape.
    """
    ...
