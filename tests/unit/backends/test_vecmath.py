"""Accuracy of the CPU backend's vector functions: measured in ULP against float64, long double and mpmath."""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest
from mpmath import mp, mpf
from numpy.typing import NDArray

from scripts import fit_vecmath
from tessera.backends.llvm.vecmath import vecmath_function
from tessera.numerics.elementary import GENERATORS
from tessera.numerics.elementary import coefficients as vecmath_coefficients
from tessera.numerics.functions import TRANSCENDENTAL
from tessera.numerics.normal import NORMAL_TAIL, NORMAL_TAIL_END

Array = NDArray[np.floating]

WIDE_LONG_DOUBLE = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here"
)
UNARY = (
    *("exp", "exp2", "expm1", "tanh", "erf", "log", "log2", "log1p", "sin", "cos"),
    *("log10", "tan", "atan", "asin", "acos", "cbrt", "erfc"),
)
BINARY = ("pow", "atan2", "hypot")
OTHERS = ("sigmoid", "lgamma")
ALL = (*UNARY, *BINARY, *OTHERS)
BY_MPMATH = ("erf", "erfc")
FLOAT = {"f32": np.float32, "f64": np.float64}
BITS = {"f32": np.uint32, "f64": np.uint64}
LLVM = {"f32": "float", "f64": "double"}
# Largest error in ULP: f32 is measured over every argument, for f64 and pow
# the bound leaves room for arguments that no sample met.
BOUND_F32 = {
    "exp": 1.02,
    "exp2": 0.88,
    "expm1": 1.13,
    "tanh": 1.39,
    "erf": 1.22,
    "log": 0.92,
    "log2": 0.98,
    "log1p": 0.92,
    "sin": 1.23,
    "cos": 1.22,
    "log10": 1.0,
    "tan": 2.5,
    "atan": 1.4,
    "asin": 2.5,
    "acos": 1.2,
    "cbrt": 0.75,
    "erfc": 2.6,
    "pow": 0.65,
    "atan2": 1.6,
    "hypot": 1.0,
}
BOUND_F64 = {
    "exp": 1.05,
    "exp2": 0.90,
    "expm1": 1.25,
    "tanh": 1.45,
    "erf": 1.30,
    "log": 0.95,
    "log2": 1.10,
    "log1p": 1.00,
    "sin": 1.25,
    "cos": 1.25,
    "log10": 1.0,
    "tan": 2.5,
    "atan": 1.5,
    "asin": 2.4,
    "acos": 1.2,
    "cbrt": 0.75,
    "erfc": 2.7,
    "pow": 1.00,
    "atan2": 1.6,
    "hypot": 1.0,
}
FAST = ("exp", "exp2")
# Where each function does its work; the random bits cover the rest.
DOMAIN = {
    "exp": (-104, 89),
    "exp2": (-150, 129),
    "expm1": (-18, 20),
    "tanh": (-10, 10),
    "erf": (-4.2, 4.2),
    "log": (0, 4),
    "log2": (0, 4),
    "log1p": (-1, 3),
    "sin": (-300, 300),
    "cos": (-300, 300),
    "log10": (0, 4),
    "tan": (-300, 300),
    "atan": (-5, 5),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "cbrt": (-20, 20),
    "erfc": (-4.2, 10.5),
    "lgamma": (-20, 20),
    "pow": (-20, 20),
    "atan2": (-20, 20),
    "hypot": (-20, 20),
    "sigmoid": (-100, 30),
}
DOMAIN_F64 = {**DOMAIN, "exp": (-746, 710), "exp2": (-1075, 1024), "expm1": (-40, 40), "erf": (-6, 6), "erfc": (-6, 28)}
_PLAIN = (0, math.inf, 1, 0.5, 2, 3, 7, 10, 100, 2.5, 1e-30, 1e22, 1e30, 1 / 3)
_EDGES = (0.70710677, 0.70710683, 0.75, 1.5, 1.4142135, 0.65625, 0.9375, 9.25, 3.95, 1.0000001, 0.99999994)
_RANGE = (88.72283, 88.72284, 87.33655, 103.97208, 103.97209, 104.1, 127.99999, 128, 126, 149, 149.5, 150)
_FORMAT = (
    2.0**-126,
    2.0**-127,
    2.0**-149,
    2.0**127,
    3.4028235e38,
    2.0**20 - 1,
    2.0**20,
    2.0**24,
    2.0**24 - 1,
)
SPECIAL = (math.nan, *(s * v for v in (*_PLAIN, *_EDGES, *_RANGE, *_FORMAT) for s in (1.0, -1.0)))


# All f32 but those of magnitude 2^-25 to 128: the first of some neighbours as bits, how many, and their exponential.
_TINY, _HUGE, _INFINITY, _SIGN = 102 << 23, 134 << 23, 255 << 23, 1 << 31
EXP_OUTER = [
    (0, _TINY, 1.0),
    (_SIGN, _TINY, 1.0),
    (_HUGE, _INFINITY - _HUGE + 1, math.inf),
    (_SIGN + _HUGE, _INFINITY - _HUGE + 1, 0.0),
    (_INFINITY + 1, _SIGN - _INFINITY - 1, math.nan),
    (_SIGN + _INFINITY + 1, _SIGN - _INFINITY - 1, math.nan),
]
EXPONENT_F64 = 2047 << 52


@dataclass(frozen=True)
class Variant:
    """One generated function and the vector type it works on."""

    fn: str
    width: int = 16
    elem: str = "f32"
    fast: bool = False
    features: frozenset[str] = frozenset()


def loop_around(variant: Variant, symbol: str, name: str) -> str:
    """A C-callable loop `symbol(x, y, out, n)` over whole vectors, unaligned."""
    scalar = LLVM[variant.elem]
    vector = scalar if variant.width == 1 else f"<{variant.width} x {scalar}>"
    align = np.dtype(FLOAT[variant.elem]).itemsize
    second = f", {vector} %y" if variant.fn in BINARY else ""
    return f"""
define void @{symbol}(ptr %px, ptr %py, ptr %pout, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %ax = getelementptr {scalar}, ptr %px, i64 %i
  %ay = getelementptr {scalar}, ptr %py, i64 %i
  %aout = getelementptr {scalar}, ptr %pout, i64 %i
  %x = load {vector}, ptr %ax, align {align}
  %y = load {vector}, ptr %ay, align {align}
  %result = call {vector} @{name}({vector} %x{second})
  store {vector} %result, ptr %aout, align {align}
  %next = add i64 %i, {variant.width}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def module_text(variants: list[Variant]) -> str:
    """One module of all these variants, shared declarations merged."""
    functions = [vecmath_function(v.fn, v.width, v.elem, v.fast, v.features) for v in variants]
    declares = dict.fromkeys(item for function in functions for item in function.declares)
    loops = [loop_around(v, f"loop{i}", f.name) for i, (v, f) in enumerate(zip(variants, functions, strict=True))]
    return "\n".join([*declares, *(function.definition for function in functions), *loops])


def target_machine(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    """A machine at O3; position-independent, as the backend compiles."""
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default")


def optimised(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """Parse, verify and run the O3 pipeline."""
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    return module


class Compiled:
    """Variants compiled for this machine, callable on arrays."""

    def __init__(self, variants: list[Variant], cpu: str = "", features: str = ""):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        cpu = cpu or llvm.get_host_cpu_name()
        machine = target_machine(llvm.get_default_triple(), cpu, features or llvm.get_host_cpu_features().flatten())
        module = optimised(module_text(variants), machine)
        self.engine = llvm.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self.loops = {v: prototype(self.engine.get_function_address(f"loop{i}")) for i, v in enumerate(variants)}

    def __call__(self, variant: Variant, x: Array, y: Array | None = None) -> Array:
        """Apply a variant elementwise; the size must be a multiple of its width."""
        assert x.size % variant.width == 0
        assert x.dtype == FLOAT[variant.elem]
        out = np.empty_like(x)
        second = x if y is None else y
        self.loops[variant](x.ctypes.data, second.ctypes.data, out.ctypes.data, x.size)
        return out


@cache
def host_features() -> frozenset[str]:
    """LLVM's names of the features of this CPU."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@pytest.fixture(scope="module")
def generic() -> Compiled:
    """Every function at its widest, without target-specific instructions."""
    wide = [Variant(fn) for fn in ALL] + [Variant(fn, width=8, elem="f64") for fn in ALL]
    fast = [Variant(fn, fast=True) for fn in (*FAST, "pow")]
    return Compiled(wide + fast)


@pytest.fixture(scope="module")
def native() -> Compiled:
    """The exponentials as kernels get them on this CPU."""
    return Compiled(
        [
            Variant(fn, fast=fast, features=host_features())
            for fn in ("exp", "tanh", "sigmoid")
            for fast in (False, True)
        ]
    )


def sample(elem: str, domain: tuple[float, float], count: int, seed: int = 0) -> Array:
    """Half random bits (all exponents, NaN and infinities too), half uniform in the domain, the specials."""
    rng = np.random.default_rng(seed)
    half = count // 2
    bits = rng.integers(0, 2 ** (8 * FLOAT[elem]().itemsize), half, dtype=np.uint64).astype(BITS[elem])
    special = np.resize(np.array(SPECIAL, FLOAT[elem]), 96)
    return np.concatenate([bits.view(FLOAT[elem]), rng.uniform(*domain, half).astype(FLOAT[elem]), special])


def ulp_errors(got: Array, reference: Array) -> Array:
    """|got - reference| in units of the reference's last place; overflow counts as the next power of two.

    Fails when one is NaN and the other is not, or when the sign of a zero differs.
    """
    assert np.array_equal(np.isnan(got), np.isnan(reference))
    zero = (got == 0) & (reference == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(reference[zero]))
    info = np.finfo(got.dtype)
    top = reference.dtype.type(2) ** info.maxexp
    wide = got.astype(reference.dtype)
    wide = np.where(np.isinf(wide), np.copysign(top, wide), wide)
    bounded = np.clip(reference, -top, top)
    exponent = np.clip(np.frexp(np.abs(bounded))[1] - 1, info.minexp, info.maxexp - 1)
    errors = np.abs(wide - bounded) / np.ldexp(reference.dtype.type(1), exponent - info.nmant)
    return np.where(np.isnan(reference), 0, errors)


def worst(got: Array, reference: Array, x: Array) -> tuple[float, float]:
    """The largest error in ULP and the argument it happens at."""
    errors = ulp_errors(got, reference)
    at = int(errors.argmax())
    return float(errors[at]), float(x[at])


def by_math(fn: str, x: Array) -> Array:
    """A function of Python's `math` over an array."""
    return np.frompyfunc(getattr(math, fn), 1, 1)(x).astype(np.float64)


def reference_f64(fn: str, x: Array) -> Array:
    """The function of f32 arguments in float64."""
    with np.errstate(all="ignore"):
        return by_math(fn, x.astype(np.float64)) if fn in BY_MPMATH else getattr(np, fn)(x.astype(np.float64))


def mp_exact(fn: str, x: float) -> mpf:
    """The function at one point, with digits enough for the largest argument of sin, cos and tan."""
    with mp.workdps(400 if fn in ("sin", "cos", "tan") else 60):
        return getattr(mp, fn)(mpf(x))


def long_double(values: list[mpf]) -> Array:
    """Numbers of mpmath as long doubles."""
    return np.array([np.longdouble(mp.nstr(value, 30)) for value in values])


@pytest.mark.parametrize("fn", UNARY)
def test_f32_error_stays_within_the_documented_ulp(generic: Compiled, fn: str) -> None:
    x = sample("f32", DOMAIN[fn], 1 << 22)
    error, at = worst(generic(Variant(fn), x), reference_f64(fn, x), x)
    assert error <= BOUND_F32[fn], f"{fn}({at!r})"


@pytest.mark.parametrize("fn", ["exp", "exp2", "log", "log2", "log1p", "expm1", "tanh", "erf"])
def test_f32_near_the_ends_of_the_reduced_intervals(generic: Compiled, fn: str) -> None:
    x = np.random.default_rng(1).uniform(-2, 2, 1 << 20).astype(np.float32)
    error, at = worst(generic(Variant(fn), x), reference_f64(fn, x), x)
    assert error <= BOUND_F32[fn], f"{fn}({at!r})"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("start", "count", "expected"), EXP_OUTER)
def test_exp_where_it_is_one_zero_infinite_or_nan(native: Compiled, start: int, count: int, expected: float) -> None:
    chunk = 1 << 16
    numbers = np.arange(chunk, dtype=np.uint32)
    for first in range(start, start + count, chunk):
        x = (numbers[: start + count - first] + np.uint32(first)).view(np.float32)
        got = native(Variant("exp", features=host_features()), np.resize(x, chunk))[: x.size]
        right = np.isnan(got) if math.isnan(expected) else got == expected
        assert right.all(), f"exp of bits {first:#x} on"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_exp_of_every_other_f32(native: Compiled, fast: bool) -> None:
    variant = Variant("exp", fast=fast, features=host_features())
    for exponent in range(-25, 7):
        for sign in (1.0, -1.0):
            error, at = worst_exp(native, variant, math.ldexp(sign, exponent))
            assert error <= BOUND_F32["exp"], f"exp({at!r})"


def worst_exp(compiled: Compiled, variant: Variant, least: float) -> tuple[float, float]:
    """The largest error in ULP over the 2^23 floats from `least` to twice that, and where it is.

    The reference is exp(a) exp(b), where a + b is the argument exactly: three roundings of float64, 2^-28 ULP.
    The fast form is judged where its result is in [2^-126, 2^127.5).
    """
    columns, rows = 1 << 8, 1 << 8
    step = least * 2.0**-23
    low = np.exp(step * np.arange(columns))
    found = (0.0, least)
    for first in range(1 << 23, 1 << 24, rows * columns):
        starts = first + columns * np.arange(rows)
        x = (step * (starts[:, None] + np.arange(columns))).astype(np.float32).ravel()
        reference = (np.exp(step * starts)[:, None] * low).ravel()
        got = compiled(variant, x)
        power = (reference.view(np.int64) & EXPONENT_F64).view(np.float64)
        if abs(least) == 64.0 and variant.fast:
            judged = (reference >= 2.0**-126) & (reference < 2.0**127.5)
            reference, got, power, x = reference[judged], got[judged], power[judged], x[judged]
        elif abs(least) == 64.0:
            reference, got = np.minimum(reference, 2.0**128), np.minimum(got.astype(np.float64), 2.0**128)
            power = np.clip(power, 2.0**-126, 2.0**127)
        errors = np.abs(got - reference) / power
        if errors.size and (error := float(errors.max()) * 2.0**23) > found[0]:
            found = (error, float(x[errors.argmax()]))
    return found


@pytest.mark.parametrize("fn", ["sin", "cos", "tan"])
def test_f32_sines_and_tangents_of_arguments_around_multiples_of_half_pi(generic: Compiled, fn: str) -> None:
    # The nearest floats to k * pi/2 leave the smallest remainders, on both sides of the switch at 2^20.
    k = np.concatenate([np.arange(1, 2**19), np.geomspace(2**19, 2**45, 2**19).round()])
    x = np.resize((k * (math.pi / 2)).astype(np.float32), 1 << 20)
    assert worst(generic(Variant(fn), x), reference_f64(fn, x), x)[0] <= BOUND_F32[fn]


@pytest.mark.skipif("TESSERA_EXHAUSTIVE" not in os.environ, reason="minutes a function: set TESSERA_EXHAUSTIVE=1")
@pytest.mark.timeout(7200)
@pytest.mark.exhaustive
@pytest.mark.parametrize("fn", [fn for fn in UNARY if fn != "exp"])
def test_all_f32_arguments(generic: Compiled, fn: str) -> None:
    chunk = 1 << 24
    top, where = 0.0, 0.0
    for start in range(0, 1 << 32, chunk):
        x = np.arange(start, start + chunk, dtype=np.int64).astype(np.uint32).view(np.float32)
        error, at = worst(generic(Variant(fn), x), reference_f64(fn, x), x)
        top, where = max((top, where), (error, at))
    print(f"{fn}: {top:.4f} ULP at {where!r}")
    assert top <= BOUND_F32[fn], f"{fn}({where!r})"


@WIDE_LONG_DOUBLE
@pytest.mark.parametrize("fn", [fn for fn in UNARY if fn not in BY_MPMATH])
def test_f64_error_stays_within_the_documented_ulp(generic: Compiled, fn: str) -> None:
    x = sample("f64", DOMAIN_F64[fn], 1 << 18)
    x = np.concatenate([x, np.random.default_rng(2).uniform(-2, 2, 1 << 18)])
    with np.errstate(all="ignore"):
        reference = getattr(np, fn)(x.astype(np.longdouble))
    error, at = worst(generic(Variant(fn, width=8, elem="f64"), x), reference, x)
    assert error <= BOUND_F64[fn], f"{fn}({at!r})"


@WIDE_LONG_DOUBLE
def test_f64_erf_error_stays_within_the_documented_ulp(generic: Compiled) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-6.2, 6.2, 3000), rng.uniform(-1, 1, 1000) * 2.0 ** rng.integers(-1070, 0, 1000)])
    reference = long_double([mp_exact("erf", float(v)) for v in x])
    assert worst(generic(Variant("erf", width=8, elem="f64"), x), reference, x)[0] <= BOUND_F64["erf"]


@WIDE_LONG_DOUBLE
def test_f64_erfc_error_stays_within_the_documented_ulp(generic: Compiled) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-6.2, 27.3, 4000), rng.uniform(-1, 1, 1000) * 2.0 ** rng.integers(-1070, 0, 1000)])
    reference = long_double([mp_exact("erfc", float(v)) for v in x])
    assert worst(generic(Variant("erfc", width=8, elem="f64"), x), reference, x)[0] <= BOUND_F64["erfc"]


LGAMMA_ULP = {"f32": 5.8, "f64": 5.5}


def lgamma_samples(elem: str) -> Array:
    """Positive numbers: of all exponents, of the pieces of the function, and around its zeros at 1 and 2."""
    rng = np.random.default_rng(13)
    near = np.ldexp(1.0, -rng.integers(1, 3 * FLOAT[elem]().itemsize, 400))
    wide = np.ldexp(rng.uniform(1, 2, 800), rng.integers(-120, 117, 800))
    parts = (wide, rng.uniform(0, 12, 4000), rng.uniform(1.3, 1.6, 400), 1 - near, 1 + near, 2 - near, 2 + near)
    x = np.concatenate(parts).astype(FLOAT[elem])
    return x[: x.size // 16 * 16]


@WIDE_LONG_DOUBLE
@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_lgamma_of_positive_numbers(generic: Compiled, elem: str) -> None:
    x = lgamma_samples(elem)
    with mp.workdps(60):
        reference = long_double([mp.loggamma(mpf(float(v))) for v in x])
    error, at = worst(generic(Variant("lgamma", 16 if elem == "f32" else 8, elem), x), reference, x)
    assert error <= LGAMMA_ULP[elem], f"lgamma({at!r})"


@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_lgamma_of_negative_numbers_is_as_good_as_what_it_is_made_of(generic: Compiled, elem: str) -> None:
    rng = np.random.default_rng(14)
    x = -np.concatenate([rng.uniform(0, 40, 2000), np.ldexp(rng.uniform(1, 2, 1008), rng.integers(-120, 20, 1008))])
    x = x.astype(FLOAT[elem])
    x = x[x != np.rint(x)]
    x = x[: x.size // 16 * 16]
    got = generic(Variant("lgamma", 16 if elem == "f32" else 8, elem), x).astype(np.float64)
    with mp.workdps(60):
        pairs = [(mp.loggamma(mpf(float(v))).real, mp.loggamma(-mpf(float(v))), mp.log(-mpf(float(v)))) for v in x]
    unit = np.finfo(FLOAT[elem]).eps
    for value, (exact, mirrored, log), at in zip(got, pairs, x, strict=True):
        assert abs(mpf(float(value)) - exact) <= 4 * unit * (abs(mirrored) + abs(log) + 1), f"lgamma({at!r})"


@pytest.mark.parametrize("elem", ["f32", "f64"])
def test_lgamma_of_special_numbers(generic: Compiled, elem: str) -> None:
    points = [0.0, -0.0, -1.0, -7.0, -1e30, math.inf, -math.inf, math.nan, 1.0, 2.0]
    x = np.resize(np.array(points, FLOAT[elem]), 16)
    expected = np.resize(np.array([math.inf] * 7 + [math.nan, 0.0, 0.0], FLOAT[elem]), 16)
    np.testing.assert_array_equal(generic(Variant("lgamma", 16 if elem == "f32" else 8, elem), x), expected)


def two_argument_samples(elem: str) -> Iterator[tuple[Array, Array]]:
    """Random bits, numbers of like size, a number with itself, and every pair of special numbers."""
    rng = np.random.default_rng(15)
    count = 1 << 17
    bits = [rng.integers(0, 2 ** (8 * FLOAT[elem]().itemsize) - 1, count, np.uint64).astype(BITS[elem]) for _ in "xy"]
    yield bits[0].view(FLOAT[elem]), bits[1].view(FLOAT[elem])
    x, y = (rng.uniform(-20, 20, count).astype(FLOAT[elem]) for _ in "xy")
    yield x, y
    yield x, -x
    yield x * FLOAT[elem](2.0**-130), y * FLOAT[elem](2.0**-130)
    yield special_pairs(FLOAT[elem])


@WIDE_LONG_DOUBLE
@pytest.mark.parametrize("elem", ["f32", "f64"])
@pytest.mark.parametrize(("fn", "function"), [("atan2", np.arctan2), ("hypot", np.hypot)])
def test_functions_of_two_arguments(generic: Compiled, fn: str, function: np.ufunc, elem: str) -> None:
    bound = (BOUND_F32 if elem == "f32" else BOUND_F64)[fn]
    for x, y in two_argument_samples(elem):
        with np.errstate(all="ignore"):
            reference = function(x.astype(np.longdouble), y.astype(np.longdouble))
        errors = ulp_errors(generic(Variant(fn, 16 if elem == "f32" else 8, elem), x, y), reference)
        at = int(errors.argmax())
        assert errors[at] <= bound, f"{fn}({x[at]!r}, {y[at]!r})"


@WIDE_LONG_DOUBLE
@pytest.mark.parametrize(
    ("fn", "points"),
    [
        # Muller's hardest reduction of binary64, and arguments far beyond what any table lookup guesses.
        ("sin", [6381956970095103.0 * 2.0**797, 1e22, 1.7976931348623157e308, 2.0**30, 5e-324, math.pi]),
        ("cos", [6381956970095103.0 * 2.0**797, 1e22, 1.7976931348623157e308, 2.0**1023, math.pi / 2, 1e300]),
        ("tan", [6381956970095103.0 * 2.0**797, 1e22, 1.7976931348623157e308, math.pi / 2, math.pi, 5e-324]),
        ("exp", [709.782712893384, -745.1332191019411, -708.4, 1e-300, -744.44, 0.3465735902799726]),
        ("log1p", [1e-300, -0.9999999999999999, 1.7976931348623157e308, 2.0**1023, 5e-324, 0.41421356]),
        ("expm1", [709.782712893384, 37.42994775023705, -37.0, 5e-324, 0.3465735902799727, -1e-17]),
    ],
)
def test_f64_hard_points(generic: Compiled, fn: str, points: list[float]) -> None:
    x = np.resize(np.array(points), 8)
    reference = long_double([mp_exact(fn, float(v)) for v in x])
    assert worst(generic(Variant(fn, width=8, elem="f64"), x), reference, x)[0] <= BOUND_F64[fn]


@pytest.mark.parametrize("fn", FAST)
def test_fast_f32_error_of_normal_results(generic: Compiled, fn: str) -> None:
    low, high = {"exp": (-87, 88), "exp2": (-125, 127)}[fn]
    x = np.random.default_rng(4).uniform(low, high, 1 << 20).astype(np.float32)
    assert worst(generic(Variant(fn, fast=True), x), reference_f64(fn, x), x)[0] <= BOUND_F32[fn]


@pytest.mark.parametrize("fn", ["exp", "exp2"])
def test_fast_exponentials_keep_the_limits(generic: Compiled, fn: str) -> None:
    x = np.resize(np.array([-math.inf, math.inf, -1e30, 1e30, math.nan, 0.0, -0.0, -200.0], np.float32), 16)
    expected = np.resize(np.array([0, math.inf, 0, math.inf, math.nan, 1, 1, 0], np.float32), 16)
    np.testing.assert_array_equal(generic(Variant(fn, fast=True), x), expected)


def test_fast_tanh_keeps_the_bound(native: Compiled) -> None:
    x = sample("f32", DOMAIN["tanh"], 1 << 22)
    got = native(Variant("tanh", fast=True, features=host_features()), x)
    error, at = worst(got, reference_f64("tanh", x), x)
    assert error <= BOUND_F32["tanh"], f"tanh({at!r})"


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_sigmoid_is_within_two_and_a_half_ulp(native: Compiled, fast: bool) -> None:
    # Below -88.7 e^-x is infinite, where the result would be subnormal.
    x = np.random.default_rng(8).uniform(-87.3, 30, 1 << 22).astype(np.float32)
    got = native(Variant("sigmoid", fast=fast, features=host_features()), x)
    assert worst(got, 1 / (1 + np.exp(-x.astype(np.float64))), x)[0] <= 2.5


@WIDE_LONG_DOUBLE
def test_f64_sigmoid_is_within_two_and_a_half_ulp(generic: Compiled) -> None:
    x = np.random.default_rng(9).uniform(-708, 40, 1 << 18)
    got = generic(Variant("sigmoid", width=8, elem="f64"), x)
    assert worst(got, 1 / (1 + np.exp(-x.astype(np.longdouble))), x)[0] <= 2.5


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_sigmoid_keeps_the_limits(native: Compiled, fast: bool) -> None:
    x = np.resize(np.array([-math.inf, math.inf, -1e30, 1e30, math.nan, 0.0, -0.0, -200.0], np.float32), 16)
    expected = np.resize(np.array([0, 1, 0, 1, math.nan, 0.5, 0.5, 0], np.float32), 16)
    got = native(Variant("sigmoid", fast=fast, features=host_features()), x)
    np.testing.assert_array_equal(got, expected)


def pow_samples() -> Iterator[tuple[Array, Array]]:
    """Random bits; results over the whole exponent range; whole exponents; every pair of special numbers."""
    rng = np.random.default_rng(5)
    count = 1 << 20
    x, y = (rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32) for _ in range(2))
    yield x, y
    with np.errstate(all="ignore"):
        log2_x = np.log2(np.abs(x.astype(np.float64)))
        yield np.abs(x), (rng.uniform(-151, 129, count) / log2_x).astype(np.float32)
    yield rng.uniform(-20, 20, count).astype(np.float32), rng.integers(-30, 30, count).astype(np.float32)
    yield special_pairs(np.float32)


def special_pairs(dtype: type[np.floating]) -> tuple[Array, Array]:
    """Every pair of special numbers, repeated to fill whole vectors."""
    x, y = np.meshgrid(*[np.resize(np.array(SPECIAL, dtype), 96)] * 2)
    return x.ravel(), y.ravel()


def test_f32_pow_is_nearly_correctly_rounded(generic: Compiled) -> None:
    for x, y in pow_samples():
        assert_pow(generic, Variant("pow"), x, y, np.float64)


@WIDE_LONG_DOUBLE
def test_f64_pow_error_stays_within_the_documented_ulp(generic: Compiled) -> None:
    rng = np.random.default_rng(7)
    count = 1 << 17
    bits = [rng.integers(0, 2**64, count, dtype=np.uint64).view(np.float64) for _ in range(2)]
    near_one = 1 + rng.uniform(-1e-6, 1e-6, count), rng.uniform(-7e8, 7e8, count)
    middle = rng.uniform(0.5, 2, count), rng.uniform(-1060, 1020, count)
    whole = rng.uniform(-20, 20, count), rng.integers(-200, 200, count).astype(np.float64)
    for x, y in (bits, near_one, middle, whole, special_pairs(np.float64)):
        assert_pow(generic, Variant("pow", width=8, elem="f64"), x, y, np.longdouble)


def assert_pow(generic: Compiled, variant: Variant, x: Array, y: Array, wide: type[np.floating]) -> None:
    """Bound and sign of pow against NumPy in a wider format."""
    with np.errstate(all="ignore"):
        reference = np.power(x.astype(wide), y.astype(wide))
    got = generic(variant, x, y)
    errors = ulp_errors(got, reference)
    at = int(errors.argmax())
    bound = (BOUND_F32 if variant.elem == "f32" else BOUND_F64)["pow"]
    assert errors[at] <= bound, f"pow({x[at]!r}, {y[at]!r})"
    number = ~np.isnan(reference)
    assert np.array_equal(np.signbit(got[number]), np.signbit(reference[number]))


def test_fast_pow_error_grows_with_the_exponent(generic: Compiled) -> None:
    for x, y in pow_samples():
        with np.errstate(all="ignore"):
            reference = np.power(x.astype(np.float64), y.astype(np.float64))
            limit = np.nan_to_num(4 + 2 * np.abs(y * np.log2(np.abs(x.astype(np.float64)))), nan=4)
        errors = ulp_errors(generic(Variant("pow", fast=True), x, y), reference)
        normal = (np.abs(reference) > 2.0**-125) & (np.abs(reference) < 2.0**127)
        assert np.all(errors[normal] <= limit[normal])
        assert np.all(errors[(np.abs(reference) < 2.0**-151) | (np.abs(reference) > 2.0**129)] <= 0.5)


def assert_same_bits(got: Array, expected: Array) -> None:
    """Equal bits, any NaN equal to any other."""
    nan = np.isnan(got) & np.isnan(expected)
    bits = np.dtype(f"u{got.dtype.itemsize}")
    np.testing.assert_array_equal(np.where(nan, 0, got.view(bits)), np.where(nan, 0, expected.view(bits)))


def assert_variants_agree(generic: Compiled, other: Compiled, variants: list[Variant]) -> None:
    """Each variant gives the bits of the widest generic one on a sample."""
    for variant in variants:
        domain = (DOMAIN_F64 if variant.elem == "f64" else DOMAIN)[variant.fn]
        x = sample(variant.elem, domain, 1 << 14)
        x = x[x.size % 64 :]  # the special numbers come last
        y = x[::-1].copy()
        wide = Variant(variant.fn, width=16 if variant.elem == "f32" else 8, elem=variant.elem)
        assert_same_bits(other(variant, x, y), generic(wide, x, y))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_width_gives_the_same_bits(generic: Compiled, width: int) -> None:
    variants = [Variant(fn, width, elem) for fn in ALL for elem in ("f32", "f64")]
    assert_variants_agree(generic, Compiled(variants), variants)


def test_avx512_instructions_give_the_same_bits(generic: Compiled) -> None:
    if not {"avx512f", "avx512dq", "avx512vl"} <= host_features():
        pytest.skip("this CPU has no AVX-512")
    features = frozenset({"avx512f", "avx512dq", "avx512vl"})
    variants = [
        Variant(fn, width, elem, features=features)
        for fn in ("exp", "exp2", "log", "log2", "pow", "log10", "erfc", "lgamma")
        for elem, width in (("f32", 16), ("f32", 8), ("f32", 4), ("f64", 8), ("f64", 4), ("f64", 2))
    ]
    assert "scalef.ps.512" in module_text(variants)
    assert_variants_agree(generic, Compiled(variants), variants)


@pytest.mark.parametrize(("elem", "width", "registers"), [("f32", 64, 4), ("f32", 32, 2), ("f64", 16, 2)])
def test_registers_abreast_give_the_same_bits(generic: Compiled, elem: str, width: int, registers: int) -> None:
    """All registers of an argument and of a result are ready together, which no lane sees."""
    features = frozenset({"avx512f", "avx512dq", "avx512vl"})
    variants = [Variant(fn, width, elem, features=features) for fn in ALL]
    places = ",".join(["=v"] * registers + [str(number) for number in range(registers)])
    # An argument and a result of each function, and a second argument of some.
    assert module_text(variants).count(f'asm "", "{places}"') == 2 * len(variants) + len(BINARY)
    if not features <= host_features():
        pytest.skip("this CPU has no AVX-512")
    assert_variants_agree(generic, Compiled(variants), variants)


def test_one_register_and_other_cpus_stay_as_they_are() -> None:
    features = frozenset({"avx512f", "avx512dq", "avx512vl"})
    variants = [
        Variant("exp", 16, features=features),
        Variant("tanh", 64),
        Variant("erf", 8, features=features),
    ]
    assert "asm" not in module_text(variants)


def test_avx2_gives_the_same_bits(generic: Compiled) -> None:
    if "avx2" not in host_features() or "fma" not in host_features():
        pytest.skip("this CPU has no AVX2")
    variants = [Variant(fn, width=8) for fn in (*UNARY, "pow", "sigmoid")] + [
        Variant(fn, 4, "f64") for fn in (*UNARY, "pow", "sigmoid")
    ]
    assert_variants_agree(generic, Compiled(variants, cpu="haswell", features="+avx2,+fma"), variants)


@pytest.mark.parametrize(
    ("triple", "cpu"), [("aarch64-unknown-linux-gnu", "neoverse-n1"), ("x86_64-unknown-linux-gnu", "haswell")]
)
def test_no_library_calls(triple: str, cpu: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    variants = [Variant(fn, 4) for fn in (*UNARY, "pow", "sigmoid")] + [
        Variant(fn, 2, "f64") for fn in (*UNARY, "pow", "sigmoid")
    ]
    machine = target_machine(triple, cpu, "")
    module = optimised(f'target triple = "{triple}"\n{module_text(variants)}', machine)
    called = set(re.findall(r"^\s+(?:bl|callq?)\s+(\S+)", machine.emit_assembly(module), re.MULTILINE))
    assert called <= {"tessera_rem_pio2_f64"}


def test_there_is_a_function_for_all_that_no_processor_rounds() -> None:
    assert TRANSCENDENTAL - {*GENERATORS} == {"rsqrt"}


def test_names_and_kinds_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="no vector function gamma for f32"):
        vecmath_function("gamma", 8, "f32")
    with pytest.raises(ValueError, match="no vector function exp for f16"):
        vecmath_function("exp", 8, "f16")
    with pytest.raises(ValueError, match="vector width 0"):
        vecmath_function("exp", 0, "f32")


def test_symbols_tell_function_type_and_mode() -> None:
    assert vecmath_function("exp", 16, "f32").name == "tessera_exp_v16f32"
    assert vecmath_function("exp", 1, "f64").name == "tessera_exp_f64"
    assert vecmath_function("sin", 8, "f32", fast=True).name == "tessera_sin_fast_v8f32"


def test_shipped_coefficients_are_the_fitted_ones() -> None:
    (fit,) = (fit for fit in fit_vecmath.odd_fits() if fit.name == "TANH_F32")
    assert tuple(float(value) for value in fit_vecmath.solve(fit)[0]) == vecmath_coefficients.TANH_F32


def test_the_shipped_tail_of_the_normal_distribution_is_the_fitted_one() -> None:
    (fit,) = fit_vecmath.normal_fits()
    coefficients, _, error = fit_vecmath.solve(fit)
    assert tuple(float(value) for value in coefficients) == NORMAL_TAIL
    assert error < 2**-25.2
    ends = [fit_vecmath.polynomial(coefficients, mpf(at)) * at for at in (5.5, 7, 9, 11, NORMAL_TAIL_END)]
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < -150  # below half of the least f32
