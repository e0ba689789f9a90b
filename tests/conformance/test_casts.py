"""Conversions between all pairs of dtypes, special values and saturation, against exact rounding."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import smallest_normal
from tests.conformance.data import finfo_max, float_specials, integers, normal, with_specials
from tests.conformance.harness import Case, Output, check, conformance, dtype

NAMES = (
    "f64",
    "f32",
    "f16",
    "bf16",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp6_e2m3",
    "fp6_e3m2",
    "fp4_e2m1",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "bool",
)
TARGETS = tuple(dtype(name) for name in NAMES)
NARROW = tuple(dtype(name) for name in NAMES[2:9])
_INFINITY = {"f64", "f32", "f16", "bf16", "fp8_e5m2"}
_NAN = {*_INFINITY, "fp8_e4m3"}
COUNT = 203


def rounded(value: np.ndarray, target: DType) -> np.ndarray:
    """Round extended-precision numbers to a float dtype, to nearest even; no overflow yet."""
    bottom = np.log2(np.longdouble(smallest_normal(target)))
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(value))
        exponent = np.maximum(exponent - 1, int(bottom))
        step = np.ldexp(np.longdouble(1), exponent - target.mantissa)
        return np.where(np.isfinite(value) & (value != 0), np.rint(value / step) * step, value)


def to_float(value: np.ndarray, target: DType, saturate: bool) -> np.ndarray:
    """Convert as `ts.tile.cast` says."""
    result, most = rounded(value, target), finfo_max(target)
    over = np.abs(result) > most
    beyond = most if saturate or target.name not in _NAN else np.inf if target.name in _INFINITY else np.nan
    result = np.where(over, np.copysign(np.longdouble(beyond), value), result)
    if target.name not in _NAN:
        result = np.where(np.isnan(value), np.longdouble("-0.0"), result)
    return result


def to_integer(value: np.ndarray, target: DType) -> np.ndarray:
    """Truncate, clamp, and give 0 for NaN."""
    info = np.iinfo(target.numpy())
    whole = [0 if np.isnan(v) else info.max if v > info.max else info.min if v < info.min else int(v) for v in value]
    return np.array(whole, target.numpy())


def reference(source: DType, targets: Sequence[DType], saturate: bool) -> Callable[..., Any]:
    """Return the expected conversion of an array of `source` to each target."""

    def convert(x: np.ndarray, target: DType) -> np.ndarray:
        wide = (
            x.astype(np.longdouble)
            if not source.is_float or source.bits >= 32
            else x.astype(np.float32).astype(np.longdouble)
        )
        if target.kind == "bool":
            return wide != 0
        if target == source:
            return x
        if target.is_float:
            return to_float(wide, target, saturate)
        if source.is_float:
            return to_integer(wide, target)
        return x.astype(target.numpy())

    return lambda x, *_: tuple(convert(x, target) for target in targets)


def halfway(rng: np.random.Generator, targets: Sequence[DType]) -> list[float]:
    """Return numbers at, just above and just below the middle of two neighbours of each target."""
    found: list[float] = []
    for target in targets:
        base = 1.0 + float(rng.integers(0, 2**target.mantissa)) * 2.0**-target.mantissa
        middle = base + 2.0 ** -(target.mantissa + 1)
        found += [
            middle,
            middle + 2.0**-40,
            -middle + 2.0**-40,
            middle - 2.0**-24,
            finfo_max(target) * (1 + 1e-9),
        ]
        found += [smallest_normal(target) * 2.0 ** -(target.mantissa + 1) * (1 + 1e-9)]
    return found


def source_values(rng: np.random.Generator, source: DType) -> np.ndarray:
    """Return values of every magnitude that `source` has, ends, ties and special ones among them."""
    if source.kind == "bool":
        return normal(rng, (COUNT,), source)
    if source.is_int:
        magnitudes = integers(rng, (COUNT,), source) >> rng.integers(0, source.bits, COUNT).astype(source.numpy())
        # 2**k + 2**(k-8) is halfway between two bf16; one more is above.
        ties = [v for k in range(12, source.bits - 1) for v in (2**k + 2 ** (k - 8), 2**k + 2 ** (k - 8) + 1)]
        return with_specials(rng, magnitudes, [np.iinfo(source.numpy()).max, np.iinfo(source.numpy()).min, 0, *ties])
    if source.bits <= 8:
        return np.resize(np.arange(2**source.bits, dtype=np.uint8), COUNT + 60)[:COUNT].view(source.numpy())
    values = normal(rng, (COUNT,), ts.f64) * np.exp2(rng.uniform(-20, 20, COUNT))
    with np.errstate(all="ignore"):
        values = with_specials(rng, values, [*float_specials(source), *halfway(rng, NARROW)])
        first = values.astype(np.float32) if source.bits < 32 else values
        return first.astype(source.numpy())


def kernel(source: DType, t: Sequence[DType]) -> Callable[..., Any]:
    """Return a kernel that converts `x` to eighteen dtypes."""

    def convert(
        x: ts.Tensor["n", source],
        y0: ts.Tensor["n", t[0]],
        y1: ts.Tensor["n", t[1]],
        y2: ts.Tensor["n", t[2]],
        y3: ts.Tensor["n", t[3]],
        y4: ts.Tensor["n", t[4]],
        y5: ts.Tensor["n", t[5]],
        y6: ts.Tensor["n", t[6]],
        y7: ts.Tensor["n", t[7]],
        y8: ts.Tensor["n", t[8]],
        y9: ts.Tensor["n", t[9]],
        ya: ts.Tensor["n", t[10]],
        yb: ts.Tensor["n", t[11]],
        yc: ts.Tensor["n", t[12]],
        yd: ts.Tensor["n", t[13]],
        ye: ts.Tensor["n", t[14]],
        yf: ts.Tensor["n", t[15]],
        yg: ts.Tensor["n", t[16]],
        yh: ts.Tensor["n", t[17]],
    ):
        for i in ts.tile.grid((n, 48)):
            v = x[i : i + 48]
            y0[i : i + 48] = ts.tile.cast(v, t[0])
            y1[i : i + 48] = ts.tile.cast(v, t[1])
            y2[i : i + 48] = v.to(t[2])
            y3[i : i + 48] = v.to(t[3])
            y4[i : i + 48] = v
            y5[i : i + 48] = v
            y6[i : i + 48] = v
            y7[i : i + 48] = v
            y8[i : i + 48] = v
            y9[i : i + 48] = v
            ya[i : i + 48] = v
            yb[i : i + 48] = v
            yc[i : i + 48] = v
            yd[i : i + 48] = v
            ye[i : i + 48] = v
            yf[i : i + 48] = v
            yg[i : i + 48] = v
            yh[i : i + 48] = v

    return convert


def case(source: DType) -> Case:
    """Return the conversions from one dtype."""
    return Case(
        f"from-{source}",
        kernel(source, TARGETS),
        lambda rng: [source_values(rng, source), *(Output((COUNT,), target) for target in TARGETS)],
        reference(source, TARGETS, saturate=False),
    )


@conformance([case(source) for source in TARGETS])
def test_conversions(case, backend):
    check(case, backend)


def saturating(source: DType, t: Sequence[DType]) -> Callable[..., Any]:
    """Return a kernel that converts to the narrow floats and clamps."""
    p = [target @ ts.saturate for target in t]

    def convert(
        x: ts.Tensor["n", source],
        y0: ts.Tensor["n", t[0]],
        y1: ts.Tensor["n", t[1]],
        y2: ts.Tensor["n", t[2]],
        y3: ts.Tensor["n", t[3]],
        y4: ts.Tensor["n", t[4]],
        y5: ts.Tensor["n", p[5]],
        y6: ts.Tensor["n", p[6]],
    ):
        for i in ts.tile.grid((n, 32)):
            v = x[i : i + 32]
            y0[i : i + 32] = v.to(p[0])
            y1[i : i + 32] = v.to(p[1])
            y2[i : i + 32] = v.to(p[2])
            y3[i : i + 32] = ts.tile.cast(v, p[3])
            y4[i : i + 32] = ts.tile.cast(v, p[4])
            y5[i : i + 32] = v
            y6[i : i + 32] = v

    return convert


@conformance(
    [
        Case(
            f"from-{source}",
            saturating(source, NARROW),
            lambda rng, source=source: [
                source_values(rng, source),
                *(Output((COUNT,), target) for target in NARROW),
            ],
            reference(source, NARROW, saturate=True),
        )
        for source in (ts.f64, ts.f32, ts.f16, ts.bf16, ts.fp8_e4m3, ts.fp8_e5m2, ts.i32, ts.u16)
    ]
)
def test_conversions_saturate(case, backend):
    check(case, backend)


def widening(source: DType) -> Callable[..., Any]:
    """Return a kernel that converts to the wide floats and clamps."""
    single, double = ts.f32 @ ts.saturate, ts.f64 @ ts.saturate

    def convert(x: ts.Tensor["n", source], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", double]):
        for i in ts.tile.grid((n, 32)):
            y[i : i + 32] = x[i : i + 32].to(single)
            z[i : i + 32] = x[i : i + 32]

    return convert


@conformance(
    [
        Case(
            f"widened-from-{source}",
            widening(source),
            lambda rng, source=source: [source_values(rng, source), *(Output((COUNT,), t) for t in (ts.f32, ts.f64))],
            reference(source, (ts.f32, ts.f64), saturate=True),
        )
        for source in (ts.f64, ts.f32, ts.f16, ts.bf16, ts.fp8_e5m2, ts.i64, ts.u64)
    ]
)
def test_conversions_to_wide_floats_saturate(case, backend):
    check(case, backend)


def scalars(x: ts.Tensor["n", ts.f32], y: ts.Tensor[6, ts.f32], s: ts.f32, k: ts.i32, b: ts.u8, h: ts.bf16):
    y[0] = s.to(ts.bf16)
    y[1] = k.to(ts.f32) / 2
    y[2] = b * 2 + n
    y[3] = h + 1.0
    y[4] = ts.tile.cast(s, ts.i32)
    y[5] = x[1].to(ts.f16)


@conformance(
    [
        Case(
            "scalars",
            scalars,
            lambda rng: [normal(rng, (4,), ts.f32), Output((6,), ts.f32), 3.14159, -7, 200, 1.5],
            lambda x, y, s, k, b, h: np.array(
                [3.140625, k / 2, (b * 2) % 256 + 4, h + 1, 3, np.float32(np.float16(x[1]))], np.float32
            ),
        )
    ]
)
def test_scalars_convert_too(case, backend):
    check(case, backend)


# Integers that lie in the middle of two neighbours of a narrow float, or next to it: one rounding, of any size


def _middles(source: DType) -> np.ndarray:
    info, found = np.iinfo(source.numpy()), {0}
    for top in range(source.bits):
        for mantissa in {target.mantissa for target in NARROW}:
            half = 1 << top - mantissa - 1 if top > mantissa else 0
            for start in ((1 << top), (1 << top) + 2 * half, (2 << top) - 2 * half):
                found |= {sign * (start + half + step) for step in (-1, 0, 1) for sign in (1, -1)}
    return np.array(sorted(v for v in found | {info.min, info.max} if info.min <= v <= info.max), source.numpy())


def narrowing(source: DType) -> Callable[..., Any]:
    t = NARROW

    def kernel(
        x: ts.Tensor["n", source],
        a: ts.Tensor["n", t[0]],
        b: ts.Tensor["n", t[1]],
        c: ts.Tensor["n", t[2]],
        d: ts.Tensor["n", t[3]],
        e: ts.Tensor["n", t[4]],
        f: ts.Tensor["n", t[5]],
        g: ts.Tensor["n", t[6]],
    ):
        for i in ts.tile.grid((n, 256)):
            v = x[i : i + 256]
            a[i : i + 256], b[i : i + 256] = v.to(t[0]), v.to(t[1])
            c[i : i + 256], d[i : i + 256] = v.to(t[2]), v.to(t[3])
            e[i : i + 256], f[i : i + 256] = v.to(t[4]), v.to(t[5])
            g[i : i + 256] = v.to(t[6])

    return kernel


@conformance(
    [
        Case(
            f"middles-{name}",
            narrowing(dtype(name)),
            lambda _rng, name=name: [
                _middles(dtype(name)),
                *(Output(_middles(dtype(name)).shape, target) for target in NARROW),
            ],
            reference(dtype(name), NARROW, saturate=False),
        )
        for name in NAMES[9:17]
    ]
)
def test_integers_round_once(case, backend):
    check(case, backend)


def by_way_of_f16(source: DType) -> Any:
    """Numbers of few digits and large exponents, which f16 makes infinite, and what becomes of these."""

    def kernel(
        x: ts.Tensor["n", source],
        a: ts.Tensor["n", ts.i32],
        b: ts.Tensor["n", ts.f32],
        c: ts.Tensor["n", source],
    ):
        for i in ts.tile.grid((n, 256)):
            v = x[i : i + 256]
            a[i : i + 256] = (v << 27).to(ts.f16).to(ts.i32)
            b[i : i + 256] = (v * 32768).to(ts.f16)
            c[i : i + 256] = (v * 4096).to(ts.f16).to(source)

    return kernel


def _by_way_of_f16(source: DType) -> Callable[..., Any]:
    def reference(x: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
        with np.errstate(over="ignore"):
            large = (x << x.dtype.type(27), x * x.dtype.type(32768), x * x.dtype.type(4096))
        halves = [to_float(v.astype(np.longdouble), ts.f16, saturate=False) for v in large]
        return to_integer(halves[0], ts.i32), halves[1], to_integer(halves[2], source)

    return reference


@conformance(
    [
        Case(
            f"by-way-of-f16-{name}",
            by_way_of_f16(dtype(name)),
            lambda rng, name=name: [
                rng.integers(0 if name[0] == "u" else -9, 99, COUNT).astype(dtype(name).numpy()),
                *(Output((COUNT,), t) for t in (ts.i32, ts.f32, dtype(name))),
            ],
            _by_way_of_f16(dtype(name)),
        )
        for name in ("i32", "i64", "u32", "u64")
    ]
)
def test_large_numbers_of_few_digits_are_infinite_as_f16(case, backend):
    check(case, backend)
