"""Recompute the polynomial coefficients in `tessera.numerics.elementary.coefficients` and `tessera.numerics.normal`.

Every set is a weighted minimax fit by the Remez exchange algorithm in 50-digit arithmetic (mpmath): the error
``weight(x) * (target(x) - polynomial(x))`` equi-oscillates over the interval. Coefficients are then
rounded one at a time to the element format, the most sensitive (lowest power) first; those still free are
fitted again after each rounding, so that they absorb part of the rounding errors.

Source: E. Remez (1934); J.-M. Muller et al., Handbook of Floating-Point Arithmetic, 2nd ed., chapter 10.

Run: ``python scripts/fit_vecmath.py > src/tessera.numerics.elementary.coefficients.py``; with names of sets as
arguments (`NORMAL_TAIL` for the second module) those alone.
"""

from __future__ import annotations

import bisect
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from mpmath import mp, mpf

mp.dps = 50
GRID = 600
EXCHANGES = 200

Real = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Fit:
    """`target` is approximated on [low, high] by a polynomial of the given degree."""

    name: str
    elem: str
    doc: str
    target: Real
    weight: Real
    low: mpf
    high: mpf
    degree: int


def round_to(elem: str, value: mpf) -> mpf:
    """The nearest number of the element format (for f32 through float64: harmless for a coefficient)."""
    if elem == "f64":
        return mpf(float(value))
    return mpf(struct.unpack("f", struct.pack("f", float(value)))[0])


def chebyshev_points(low: mpf, high: mpf, count: int) -> list[mpf]:
    """Chebyshev extrema of [low, high], ascending."""
    return [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]


def polynomial(coefficients: list[mpf], x: mpf) -> mpf:
    """Horner's rule, lowest power first."""
    total = mpf(0)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def minimax(points: list[mpf], target: list[mpf], weight: list[mpf], degree: int) -> tuple[list[mpf], mpf]:
    """Remez exchange on a fine grid.

    Returns:
        The coefficients and the largest weighted error.
    """
    size = degree + 2
    chosen = [round(i * (len(points) - 1) / (size - 1)) for i in range(size)]
    coefficients: list[mpf] = []
    error = mpf(0)
    for _ in range(EXCHANGES):
        matrix = mp.matrix(size, size)
        right = mp.matrix(size, 1)
        for row, at in enumerate(chosen):
            for column in range(degree + 1):
                matrix[row, column] = points[at] ** column * weight[at]
            matrix[row, size - 1] = mpf(-1) ** row
            right[row] = target[at] * weight[at]
        solution = mp.lu_solve(matrix, right)
        coefficients = [solution[i] for i in range(size - 1)]
        residual = [w * (t - polynomial(coefficients, x)) for x, t, w in zip(points, target, weight, strict=True)]
        error = max(abs(e) for e in residual)
        if error <= abs(solution[size - 1]) * mpf("1.0005"):
            break
        chosen = exchange(residual, chosen)
    return coefficients, error


def exchange(residual: list[mpf], chosen: list[int]) -> list[int]:
    """Bring the largest residual into the reference in place of a neighbour of equal sign."""
    peak = max(range(len(residual)), key=lambda i: abs(residual[i]))
    positive = residual[peak] > 0
    above = bisect.bisect_left(chosen, peak)
    for near in (above, above - 1):
        if 0 <= near < len(chosen) and (residual[chosen[near]] > 0) == positive:
            return sorted({*chosen, peak} - {chosen[near]})
    # Outside the reference with the other sign: it becomes the new end and the opposite end leaves.
    return [peak, *chosen[:-1]] if above == 0 else [*chosen[1:], peak]


def solve(fit: Fit) -> tuple[list[mpf], mpf, mpf]:
    """Fit, round the lowest power, fit the rest again, and so on.

    Returns:
        The rounded coefficients, the error of the unrounded fit and the error left.
    """
    points = chebyshev_points(fit.low, fit.high, GRID)
    points = [x for x in points if abs(x) > mpf(10) ** -30]
    target = [fit.target(x) for x in points]
    weight = [abs(fit.weight(x)) for x in points]
    rounded: list[mpf] = []
    best = mpf(0)
    for degree in range(fit.degree, -1, -1):
        coefficients, error = minimax(points, target, weight, degree)
        best = best or error
        head = round_to(fit.elem, coefficients[0])
        rounded.append(head)
        # Divide the rest by x and multiply the weight: x, x^2, ... without 1 is no Haar system around 0.
        target = [(t - head) / x for x, t in zip(points, target, strict=True)]
        weight = [w * abs(x) for x, w in zip(points, weight, strict=True)]
    return rounded, best, max(abs(w * t) for t, w in zip(target, weight, strict=True))


def log_fits(half_ln2: mpf) -> list[Fit]:
    """Exponentials and logarithms of both formats."""
    ln2 = mp.log(2)
    fits: list[Fit] = []
    for elem, expm1, exp2, log in (("f32", 4, 5, 8), ("f64", 10, 11, 19)):
        tag = elem.upper()
        fits += [
            Fit(
                f"EXPM1_{tag}",
                elem,
                "expm1(r) = r + r^2 * P(r), |r| <= ln(2)/2",
                lambda r: (mp.expm1(r) - r) / r**2,
                lambda r: r**2 / mp.expm1(r),
                -half_ln2,
                half_ln2,
                expm1,
            ),
            Fit(
                f"EXP2_{tag}",
                elem,
                "2^r = 1 + r * P(r), |r| <= 1/2",
                lambda r: mp.expm1(r * ln2) / r,
                lambda r: r / mp.power(2, r),
                mpf("-0.5"),
                mpf("0.5"),
                exp2,
            ),
            *logarithms(elem, log),
        ]
    return fits + power_fits()


def logarithms(elem: str, terms: int) -> list[Fit]:
    """Logarithms of one format."""
    ln2, tag = mp.log(2), elem.upper()
    return [
        Fit(
            f"LOG_{tag}",
            elem,
            "log(1 + f) = f + f^2 * P(f), 3/4 <= 1 + f <= 3/2",
            lambda f: (mp.log1p(f) - f) / f**2,
            lambda f: f**2 / mp.log1p(f),
            mpf("-0.25"),
            mpf("0.5"),
            terms,
        ),
        Fit(
            f"LOG2_{tag}",
            elem,
            "log2(1 + f) = log2(e) * f + f^2 * P(f), sqrt(1/2) <= 1 + f <= sqrt(2)",
            lambda f: (mp.log1p(f) - f) / f**2 / ln2,
            lambda f: f**2 / mp.log1p(f) * ln2,
            mp.sqrt(0.5) - 1,
            mp.sqrt(2) - 1,
            terms,
        ),
    ]


def power_fits() -> list[Fit]:
    """What powers take besides."""
    ln2 = mp.log(2)
    return [
        Fit(
            "POW_LOG2",
            "f64",
            "log2(1 + f) = f * P(f), sqrt(1/2) <= 1 + f <= sqrt(2) (for pow of f32)",
            lambda f: mp.log1p(f) / f / ln2,
            lambda f: f / mp.log1p(f) * ln2,
            mp.sqrt(0.5) - 1,
            mp.sqrt(2) - 1,
            11,
        ),
        Fit(
            "POW_ATANH",
            "f64",
            "atanh(s) = s * (1 + z/3 + z^2 * P(z)), z = s^2, |s| <= 3 - sqrt(8)",
            lambda z: (mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1 - z / 3) / z**2,
            lambda z: z**2 * mp.sqrt(z) / mp.atanh(mp.sqrt(z)),
            mpf(10) ** -12,
            (3 - mp.sqrt(8)) ** 2 * mpf("1.0001"),
            8,
        ),
        Fit(
            "POW_EXP2",
            "f64",
            "2^r = 1 + r * P(r), |r| <= 1/2 (for pow of f32)",
            lambda r: mp.expm1(r * ln2) / r,
            lambda r: r / mp.power(2, r),
            mpf("-0.5"),
            mpf("0.5"),
            5,
        ),
    ]


def trig_fits() -> list[Fit]:
    """Sine and cosine on the reduced interval (slightly widened: the quotient is rounded)."""
    quarter = mp.pi / 4 * mpf("1.0001")
    top = quarter**2
    fits: list[Fit] = []
    for elem, degree in (("f32", 2), ("f64", 5)):
        tag = elem.upper()
        fits += [
            Fit(
                f"SIN_{tag}",
                elem,
                "sin(r) = r + r * z * P(z), z = r^2, |r| <= pi/4",
                lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
                lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)),
                mpf(10) ** -12,
                top,
                degree,
            ),
            Fit(
                f"COS_{tag}",
                elem,
                "cos(r) = 1 - z/2 + z^2 * P(z), z = r^2, |r| <= pi/4",
                lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2,
                lambda z: z**2 / mp.cos(mp.sqrt(z)),
                mpf(10) ** -12,
                top,
                degree,
            ),
        ]
    return fits


def odd_fits() -> list[Fit]:
    """Fits of tanh near zero and the two branches of erf."""
    fits = [
        Fit(
            f"TANH_{elem.upper()}",
            elem,
            "tanh(x) = x + x * z * P(z), z = x^2, |x| <= 0.65625",
            lambda z: (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
            lambda z: z * mp.sqrt(z) / mp.tanh(mp.sqrt(z)),
            mpf(10) ** -12,
            mpf("0.65625") ** 2,
            degree,
        )
        for elem, degree in (("f32", 4), ("f64", 11))
    ]
    for elem, small, split, high, large in (("f32", 6, "0.9375", "3.95", 7), ("f64", 12, "1", "5.95", 19)):
        tag = elem.upper()
        fits += [
            Fit(
                f"ERF_SMALL_{tag}",
                elem,
                f"erf(x) = x + x * P(z), z = x^2, |x| <= {split}",
                lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
                lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
                mpf(10) ** -12,
                mpf(split) ** 2,
                small,
            ),
            Fit(
                f"ERF_LARGE_{tag}",
                elem,
                f"log2(erfc(x)) = P(x), {split} <= x <= {high}",
                lambda x: mp.log(mp.erfc(x), 2),
                lambda x: mp.erfc(x) * mp.log(2) / mp.erf(x),
                mpf(split),
                mpf(high),
                large,
            ),
        ]
    return fits


def inverse_fits() -> list[Fit]:
    """Arcus functions, the decimal logarithm, and the polynomials of erfc and lgamma."""
    ln10, ln2pi = mp.log(10), mp.log(2 * mp.pi)
    fits: list[Fit] = []
    for elem, atan, asin, log in (("f32", 8, 4, 8), ("f64", 20, 12, 19)):
        tag = elem.upper()
        fits += [
            Fit(
                f"ATAN_{tag}",
                elem,
                "atan(t) = t + t * z * P(z), z = t^2, |t| <= 1",
                lambda z: (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
                lambda z: z * mp.sqrt(z) / mp.atan(mp.sqrt(z)),
                mpf(10) ** -12,
                mpf(1),
                atan,
            ),
            Fit(
                f"ASIN_{tag}",
                elem,
                "asin(s) = s + s * z * P(z), z = s^2, |s| <= 1/2",
                lambda z: (mp.asin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
                lambda z: z * mp.sqrt(z) / mp.asin(mp.sqrt(z)),
                mpf(10) ** -12,
                mpf("0.25") * mpf("1.0001"),
                asin,
            ),
            Fit(
                f"LOG10_{tag}",
                elem,
                "log10(1 + f) = log10(e) * f + f^2 * P(f), sqrt(1/2) <= 1 + f <= sqrt(2)",
                lambda f: (mp.log1p(f) - f) / f**2 / ln10,
                lambda f: f**2 / mp.log1p(f) * ln10,
                mp.sqrt(0.5) - 1,
                mp.sqrt(2) - 1,
                log,
            ),
        ]
    for elem, centre, high, degree in (("f32", 2, "10.1", 10), ("f64", 4, "27.3", 22)):
        fits.append(erfc_fit(elem, centre, mpf(high), degree))
    for elem, degree in (("f32", 3), ("f64", 7)):
        fits.append(
            Fit(
                f"SINPI_{elem.upper()}",
                elem,
                "sin(pi f) / pi = f + f * z * P(z), z = f^2, |f| <= 1/2",
                lambda z: (mp.sinpi(mp.sqrt(z)) / (mp.pi * mp.sqrt(z)) - 1) / z,
                lambda z: mp.pi * z * mp.sqrt(z) / mp.sinpi(mp.sqrt(z)),
                mpf(10) ** -12,
                mpf("0.25"),
                degree,
            )
        )
    for elem, degree, start, tail in (("f32", 8, "4.5", 1), ("f64", 19, "8.5", 5)):
        tag = elem.upper()
        fits += [
            Fit(
                f"LGAMMA_{tag}",
                elem,
                "lgamma(2 + t) = t * P(t), |t| <= 1/2",
                lambda t: mp.loggamma(2 + t) / t,
                lambda t: t / mp.loggamma(2 + t),
                mpf("-0.5"),
                mpf("0.5"),
                degree,
            ),
            Fit(
                f"STIRLING_{tag}",
                elem,
                f"lgamma(x) = (x - 1/2) * (log(x) - 1) + (log(2 pi) - 1) / 2 + P(1/x^2) / x, x >= {start}",
                lambda s: (mp.loggamma(1 / mp.sqrt(s)) - stirling(1 / mp.sqrt(s), ln2pi)) / mp.sqrt(s),
                lambda s: mp.sqrt(s) / mp.loggamma(1 / mp.sqrt(s)),
                mpf(10) ** -8,
                1 / mpf(start) ** 2,
                tail,
            ),
        ]
    return fits


def stirling(x: mpf, ln2pi: mpf) -> mpf:
    """Lgamma of a large x, but for a part that vanishes."""
    return (x - mpf("0.5")) * (mp.log(x) - 1) + (ln2pi - 1) / 2


def erfc_fit(elem: str, centre: int, high: mpf, degree: int) -> Fit:
    """The factor of exp(-a^2) in erfc, over a variable that takes all positive numbers to [-1, 1)."""

    def scaled(q: mpf) -> mpf:
        a = centre * (1 + q) / (1 - q)
        return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)

    return Fit(
        f"ERFC_{elem.upper()}",
        elem,
        f"(1 + 2 a) exp(a^2) erfc(a) = 1 + P(q), q = (a - {centre}) / (a + {centre}), 0 <= a <= {high}",
        lambda q: scaled(q) - 1,
        lambda q: 1 / scaled(q),
        mpf(-1),
        (high - centre) / (high + centre),
        degree,
    )


def normal_fits() -> list[Fit]:
    """The tail of the normal distribution, for composites of every backend.

    What it is multiplied with in GELU makes errors of a tail below 1e-4 count less and less.
    """
    root = mp.sqrt(2)
    return [
        Fit(
            "NORMAL_TAIL",
            "f32",
            "log2(2 Q(a)) = a * P(a), Q(a) = erfc(a / sqrt(2)) / 2, 0 <= a <= 5.5",
            lambda a: mp.log(mp.erfc(a / root), 2) / a,
            lambda a: a * mp.log(2) / (1 + mpf("2e-4") / mp.erfc(a / root)),
            mpf(10) ** -6,
            mpf("5.5"),
            9,
        )
    ]


HEADER = '''"""Polynomial coefficients of the vector functions, lowest power first, by scripts/fit_vecmath.py.

Weighted minimax fits (Remez exchange, 50 digits), rounded to the element format one at a time, those still
free fitted again after each. The error is the largest relative one of the whole function in exact arithmetic.
"""

from __future__ import annotations

from typing import Final
'''


def main() -> None:
    """Print the module of coefficients, or the sets named as arguments; the errors go to stderr too."""
    half_ln2 = mp.log(2) / 2 * mpf("1.0001")
    print(HEADER, end="")
    named = sys.argv[1:]
    fits = [*log_fits(half_ln2), *trig_fits(), *odd_fits(), *inverse_fits()]
    for fit in [fit for fit in (*fits, *normal_fits()) if fit.name in named] if named else fits:
        coefficients, best, error = solve(fit)
        exact, bound = (f"2^{float(mp.log(e, 2)):.1f}" for e in (best, error))
        print(f"{fit.name}: unrounded {exact}, rounded {bound}", file=sys.stderr, flush=True)
        print(f"\n# {fit.doc}; error {bound}.")
        print(f"{fit.name}: Final = (")
        for value in coefficients:
            print(f'    float.fromhex("{float(value).hex()}"),')
        print(")")


if __name__ == "__main__":
    main()
