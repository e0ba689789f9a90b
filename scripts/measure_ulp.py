"""Measures the error of every elementwise function of floats on this CPU, and writes the table of docs/numerics.md.

python scripts/measure_ulp.py          # measures a million arguments each, and writes the table
python scripts/measure_ulp.py --check  # fails when a function of the table of functions has no line

The functions are those of `numerics/functions.py`: one that is added has no line until this has run, which a test says.
References are long doubles of the C library (64 bits of mantissa or more) and, for what that lacks, mpmath, or float64
where arguments are f32.
"""

from __future__ import annotations

import argparse
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpmath import mp, mpf

import tessera as ts
from tessera.numerics.functions import FUNCTIONS, INTERNAL, Function, accepts

PAGE = Path(__file__).resolve().parent.parent / "docs" / "numerics.md"
BEGIN, END = "<!-- Written by scripts/measure_ulp.py. -->\n", "<!-- End of what scripts/measure_ulp.py writes. -->\n"
COLUMNS = (("strict", "f32"), ("strict", "f64"), ("fast", "f32"), ("fast", "f64"))
FLOAT: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
BLOCK = 4096
MP_SHARE = 32
"""Of how many arguments mpmath is asked for one: it takes a tenth of a millisecond."""

T, N = ts.dtype_var("T", ts.f32, ts.f64), ts.dims("N")


@ts.kernel
def _of_one(xs: ts.Tensor[N, T], out: ts.Tensor[N, T], fn: ts.constexpr):
    for i in ts.tile.grid((N, 1024)):
        out[i : i + 1024] = fn(xs[i : i + 1024])


@ts.kernel
def _of_two(xs: ts.Tensor[N, T], ys: ts.Tensor[N, T], out: ts.Tensor[N, T], fn: ts.constexpr):
    for i in ts.tile.grid((N, 1024)):
        out[i : i + 1024] = fn(xs[i : i + 1024], ys[i : i + 1024])


@ts.kernel
def _of_three(xs: ts.Tensor[N, T], ys: ts.Tensor[N, T], zs: ts.Tensor[N, T], out: ts.Tensor[N, T], fn: ts.constexpr):
    for i in ts.tile.grid((N, 1024)):
        out[i : i + 1024] = fn(xs[i : i + 1024], ys[i : i + 1024], zs[i : i + 1024])


@ts.function
def add(x: Any, y: Any) -> Any:
    """Return a sum."""
    return x + y


@ts.function
def sub(x: Any, y: Any) -> Any:
    """Return a difference."""
    return x - y


@ts.function
def mul(x: Any, y: Any) -> Any:
    """Return a product."""
    return x * y


@ts.function
def div(x: Any, y: Any) -> Any:
    """Return a quotient."""
    return x / y


@ts.function
def floordiv(x: Any, y: Any) -> Any:
    """Return a quotient rounded down."""
    return x // y


@ts.function
def mod(x: Any, y: Any) -> Any:
    """Return a remainder."""
    return x % y


@ts.function
def neg(x: Any) -> Any:
    """Return a negative."""
    return -x


@ts.function
def select(x: Any, y: Any, z: Any) -> Any:
    """Return one of two by a comparison."""
    return ts.tile.where(x < z, x, y)


OPERATORS = {"add": add, "sub": sub, "mul": mul, "div": div, "floordiv": floordiv, "mod": mod, "neg": neg}
OPERATORS["select"] = select
_NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "pow": "power",
    "round": "rint",
    "sub": "subtract",
}
_EXACT: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "select": lambda x, y, z: np.where(x < z, x, y),
    "mul": np.multiply,
    "neg": np.negative,
    "div": np.divide,
    "floordiv": np.floor_divide,
}
_SPREAD = {"sin": 1e4, "cos": 1e4, "tan": 1e4, "pow": 30.0, "sigmoid": 80.0, "mod": 1e3, "floordiv": 1e3, "fma": 1e3}
"""Of functions whose other arguments say little, the largest argument."""
_LARGEST = {("floordiv", 0): 2.0**40}
"""The largest of one argument: of dividends such that quotients come that the formats do not hold."""
_BY_MPMATH: dict[str, Callable[..., Any]] = {
    "erf": mp.erf,
    "erfc": mp.erfc,
    "lgamma": mp.loggamma,
    "fma": lambda x, y, z: x * y + z,
}
_IN_F64 = {"erf": math.erf, "erfc": math.erfc, "lgamma": math.lgamma}
"""Of f32 arguments a float64 is a reference."""
_LEAST = {"log1p": -1.0, "asin": -1.0, "acos": -1.0}
_MOST = {"asin": 1.0, "acos": 1.0}


def measured() -> list[Function]:
    """Return the functions whose results are floats, in the order of the table of functions."""
    return [
        one for one in FUNCTIONS.values() if accepts(one, "float") and one.result == "same" and one.name not in INTERNAL
    ]


def arguments(function: Function, dtype: str, count: int) -> list[Any]:
    """Return arguments of a function: of every magnitude, and of moderate ones; fewer are the first of more.

    Args:
        function: the function.
        dtype: `f32` or `f64`.
        count: how many.
    """
    found: list[Any] = []
    for place in range(function.arity):
        rng = np.random.default_rng([place, *function.name.encode()])
        blocks = [_block(function, place, rng) for _ in range(-(-count // BLOCK))]
        found.append(np.concatenate(blocks)[:count].astype(FLOAT[dtype]))
    return found


def _block(function: Function, place: int, rng: np.random.Generator) -> Any:
    most = math.log2(_LARGEST.get((function.name, place), _SPREAD.get(function.name, 2.0**100)))
    wide = 2.0 ** rng.uniform(-20, most, BLOCK) * rng.choice([-1.0, 1.0], BLOCK)
    x = np.where(rng.random(BLOCK) < 0.5, wide, rng.uniform(-4, 4, BLOCK))
    if function.name in ("log", "log2", "log10", "sqrt", "rsqrt", "lgamma") or (function.name, place) == ("pow", 0):
        x = np.abs(x)
    inside = (x > _LEAST.get(function.name, -math.inf)) & (x < _MOST.get(function.name, math.inf))
    return np.where(inside, x, np.sin(x))


def computed(function: Function, args: list[Any], dtype: str, profile: str) -> Any:
    """Return what the compiled function gives on this CPU.

    Args:
        function: the function.
        args: its arguments.
        dtype: `f32` or `f64`.
        profile: the numerics profile.
    """
    out = np.empty_like(args[0])
    with ts.numerics.profile(profile):
        (_of_one, _of_two, _of_three)[function.arity - 1](*args, out, fn=_written(function.name))
    return out


def _written(name: str) -> Any:
    return OPERATORS.get(name) or getattr(ts.tile, name)


def exact(function: Function, args: list[Any]) -> tuple[Any, Any]:
    """Return the function in a wider format, and the places where it was asked for.

    Args:
        function: the function.
        args: its arguments.
    """
    if function.name in _IN_F64 and args[0].dtype == np.float32:
        return np.frompyfunc(_IN_F64[function.name], 1, 1)(args[0].astype(np.float64)).astype(np.longdouble), slice(
            None
        )
    if function.name in _BY_MPMATH:
        some = zip(*(arg[: -(-len(arg) // MP_SHARE)] for arg in args), strict=True)
        with mp.workdps(60):
            values = [mp.nstr(mp.re(_BY_MPMATH[function.name](*(mpf(float(x)) for x in each))), 30) for each in some]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers beyond long doubles are infinite
            return np.array([np.longdouble(value) for value in values]), slice(0, len(values))
    wide = [arg.astype(np.longdouble) for arg in args]
    name = _NAMES.get(function.name, function.name)
    reference = _EXACT[function.name] if function.name in _EXACT else getattr(np, name)
    with np.errstate(all="ignore"):
        return reference(*wide), slice(None)


def errors(function: Function, dtype: str, profile: str, count: int) -> float:
    """Return the largest error in units in the last place of normal results.

    Args:
        function: the function.
        dtype: `f32` or `f64`.
        profile: the numerics profile.
        count: how many arguments.
    """
    args = arguments(function, dtype, count)
    if (function.name, dtype, profile) == ("pow", "f32", "fast"):  # beyond, the error is that of the exponent
        args[1] = (args[1] / np.maximum(np.abs(args[1] * np.log2(args[0])), 1)).astype(args[1].dtype)
    got = computed(function, args, dtype, profile)
    wanted, where = exact(function, args)
    info = np.finfo(FLOAT[dtype])
    got = got[where].astype(np.longdouble)
    normal = np.isfinite(wanted) & (np.abs(wanted) >= 2 * info.tiny) & (np.abs(wanted) <= info.max / 2)
    got, wanted = got[normal], wanted[normal]
    unit = np.ldexp(np.longdouble(1), np.frexp(wanted)[1] - 1 - info.nmant)
    return float(np.max(np.abs(got - wanted) / unit, initial=0.0))


def lines() -> dict[str, tuple[float, ...]]:
    """Return the documented errors of each function, as the page has them."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^\| (\w+) \|((?: [0-9.]+ \|){4})$", text[text.index(BEGIN) : text.index(END)], re.MULTILINE)
    return {name: tuple(float(part) for part in row.split("|") if part.strip()) for name, row in found}


def _bound(error: float) -> str:
    """Return what is documented of a measured error: nothing more for what is rounded once, else a fifth more."""
    for rounding in (0.0, 0.5):
        if error <= rounding + 0.001:  # of which the reference is a part
            return f"{rounding:.1f}"
    return f"{math.ceil(12 * error) / 10:.1f}"


def _table(count: int) -> str:
    rows = ["| function | f32 | f64 | f32, `fast` | f64, `fast` |", "|---|---|---|---|---|"]
    for function in measured():
        found = [errors(function, dtype, profile, count) for profile, dtype in COLUMNS]
        rows.append(f"| {function.name} | {' | '.join(map(_bound, found))} |")
        print(rows[-1], flush=True)
    return "\n".join(rows)


def main() -> int:
    """Write the table, or check that it has a line for each function."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--count", type=int, default=1 << 20, help="arguments for each function")
    given = parser.parse_args()
    if given.check:
        missing = [one.name for one in measured() if one.name not in lines()]
        print("\n".join(f"no line for {name}" for name in missing))
        return int(bool(missing))
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{_table(given.count)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
