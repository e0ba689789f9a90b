"""Reductions and scans: every operation x dtype x shape x axis, NaN, edges of tensors, accumulation in loops."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType, accumulator_of
from tessera.numerics.tolerances import EXACT, Tolerance, of_sum
from tests.conformance.data import integers, normal, with_specials
from tests.conformance.harness import Case, Close, Output, Rows, check, conformance, dtype

DTYPES = ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "fp8_e4m3", "bool")
SHAPES = (
    (1,),
    (7,),
    (33,),
    (128,),
    (1000,),
    (3, 5),
    (16, 16),
    (48, 80),
    (64, 1),
    (1, 64),
    (3, 4, 5),
    (2, 33, 6),
)
ARITHMETIC, LOGIC = ("sum", "max", "min", "prod"), ("any", "all")

_UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def values(rng: np.random.Generator, shape: tuple[int, ...], dt: DType, fns: Sequence[str] = ()) -> np.ndarray:
    """Return numbers whose products stay in range; for integers the whole range, which wraps."""
    if dt.is_int:
        return integers(rng, shape, dt)
    if dt.kind == "bool":
        return rng.random(shape) < (0.9 if "all" in fns else 0.3)
    sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    return (sign * np.exp(0.3 * rng.standard_normal(shape))).astype(np.float32).astype(dt.numpy())


def widened(x: np.ndarray, dt: DType) -> tuple[np.ndarray, DType]:
    """Return an operand in extended precision (integers in their accumulator), and the accumulator."""
    acc = accumulator_of(dt)
    if dt.is_float:
        return x.astype(np.float32 if dt.bits < 32 else x.dtype).astype(np.longdouble), acc
    return x.astype(acc.numpy()), acc


def tolerance(fn: str, acc: DType, count: int) -> Tolerance:
    """Return the bound of combining `count` numbers."""
    if fn == "sum":
        return of_sum(acc, count)
    if fn == "prod" and acc.is_float:
        one = of_sum(acc, 2)
        return Tolerance(relative=count * one.relative, absolute=one.absolute)
    return EXACT


def reduced(x: np.ndarray, fn: str, axis: int | None, acc: DType) -> tuple[np.ndarray, np.ndarray]:
    """Return a reduction and the magnitude of its terms."""
    kind = {} if acc.is_float or fn in LOGIC else {"dtype": acc.numpy()}
    result = _UFUNCS[fn].reduce(x, axis=axis, **kind)
    magnitude = np.abs(x).sum(axis=axis) if fn == "sum" and acc.is_float else np.zeros_like(result, np.float64)
    return np.asarray(result), np.asarray(magnitude)


def kernel(fns: tuple[str, ...], shape: tuple[int, ...], dt: DType, out: DType) -> Callable[..., Any]:
    """Return a kernel that reduces one tile along each axis and altogether."""
    count, rank = len(fns), len(shape)
    rest = [tuple(s for a, s in enumerate(shape) if a != axis) for axis in range(rank)]

    def one(x: ts.Tensor[*shape, dt], y: ts.Tensor[count, out]):
        v = x[...]
        for f in ts.tile.static_range(count):
            y[f] = ts.tile.reduce(v, op=fns[f])

    def two(
        x: ts.Tensor[*shape, dt],
        y: ts.Tensor[count, out],
        r0: ts.Tensor[count, *rest[0], out],
        r1: ts.Tensor[count, *rest[-1], out],
    ):
        v = x[...]
        for f in ts.tile.static_range(count):
            y[f] = ts.tile.reduce(v, None, fns[f])
            r0[f, :] = ts.tile.reduce(v, 0, fns[f])
            r1[f, :] = ts.tile.reduce(v, -1, fns[f])

    def three(
        x: ts.Tensor[*shape, dt],
        y: ts.Tensor[count, out],
        r0: ts.Tensor[count, *rest[0], out],
        r1: ts.Tensor[count, *rest[1 % rank], out],
        r2: ts.Tensor[count, *rest[-1], out],
    ):
        v = x[...]
        for f in ts.tile.static_range(count):
            y[f] = ts.tile.reduce(v, None, fns[f])
            r0[f, :, :] = ts.tile.reduce(v, 0, fns[f])
            r1[f, :, :] = ts.tile.reduce(v, 1, fns[f])
            r2[f, :, :] = ts.tile.reduce(v, 2, fns[f])

    return {1: one, 2: two, 3: three}[rank]


def case(fns: tuple[str, ...], shape: tuple[int, ...], dt: DType, special: str = "") -> Case:
    """Return the reductions of one tile."""
    out = accumulator_of(dt) if fns[0] not in LOGIC else ts.bool_
    rank = len(shape)
    axes: list[int | None] = [None, *(range(rank) if rank > 1 else ())]
    outputs = [
        Output((len(fns), *(() if axis is None else (s for a, s in enumerate(shape) if a != axis))), out)
        for axis in axes
    ]

    def make(rng: np.random.Generator) -> Sequence[Any]:
        x = values(rng, shape, dt, fns)
        if special == "nan":
            x = with_specials(rng, x, [np.nan])
        if special == "inf":
            x = with_specials(rng, x, [np.inf, -np.inf, 0.0])
        return [x, *outputs]

    def reference(x: np.ndarray, *_: Any) -> tuple[Close, ...]:
        wide, acc = (x, dt) if fns[0] in LOGIC else widened(x, dt)
        found = [[reduced(wide, fn, axis, acc) for fn in fns] for axis in axes]
        return tuple(Close(np.stack([v for v, _ in row]), np.stack([m for _, m in row])) for row in found)

    lengths = [int(np.prod(shape)) if axis is None else shape[axis] for axis in axes]
    rows = [Rows(tuple((fn, tolerance(fn, accumulator_of(dt), n)) for fn in fns)) for n in lengths]
    text = "x".join(map(str, shape))
    return Case(f"{dt}-{text}-{'+'.join(fns)}{special}", kernel(fns, shape, dt, out), make, reference, rows)


def _cases() -> list[Case]:
    """Every dtype sees a third of the shapes, every shape a third of the dtypes."""
    found: list[Case] = []
    for at, name in enumerate(DTYPES):
        for place, shape in enumerate(SHAPES):
            if (place + at) % 3 == 0:
                dt = dtype(name)
                found.append(case(LOGIC if dt.kind == "bool" else ARITHMETIC, shape, dt))
    found.append(case(("sum",), (5, 24), ts.bool_))
    for name in ("f32", "f64", "bf16"):
        found.append(case(ARITHMETIC, (5, 40), dtype(name), "nan"))
        found.append(case(("sum", "max", "min"), (5, 40), dtype(name), "inf"))
    return found


@conformance(_cases())
def test_reductions(case, backend):
    check(case, backend)


def of_negated(shape: tuple[int, int], dt: DType) -> Callable[..., Any]:
    rows, columns = shape

    def kernel(
        x: ts.Tensor[*shape, dt],
        top: ts.Tensor[rows, dt],
        low: ts.Tensor[rows, dt],
        high: ts.Tensor[columns, dt],
    ):
        v = -x[...]
        top[:] = ts.tile.row_max(v)
        low[:] = ts.tile.cast(ts.tile.reduce(v, 1, "min"), dt)
        high[:] = ts.tile.maximum(ts.tile.max(v, 0), -ts.tile.max(v, 0))

    return kernel


def _of_negated(x: np.ndarray, *_: Any) -> tuple[Any, ...]:
    high = (-x).max(0)
    return (-x).max(1), (-x).min(1), np.maximum(high, -high)


@conformance(
    [
        Case(
            f"negated-{name}-{m}x{n}",
            of_negated((m, n), dtype(name)),
            lambda rng, name=name, m=m, n=n: [
                values(rng, (m, n), dtype(name)),
                *(Output((size,), dtype(name)) for size in (m, m, n)),
            ],
            _of_negated,
            [EXACT, EXACT, EXACT],
        )
        for name in ("i8", "i16", "i32", "i64", "u32", "f16", "bf16", "f32", "f64")
        for m, n in ((5, 12), (16, 64))
    ]
)
def test_reductions_of_negated_numbers(case, backend):
    """Assemblers fuse three maxima and their negations into one instruction, and one got that wrong."""
    check(case, backend)


# Rows of a tensor larger than the tile, edges included


def rows(dt: DType, out: DType) -> Callable[..., Any]:
    def kernel(
        x: ts.Tensor["m", "n", dt],
        s: ts.Tensor["m", out],
        top: ts.Tensor["m", out],
        low: ts.Tensor["n", out],
        B: ts.constexpr,
        W: ts.constexpr,
    ):
        for i in ts.tile.grid((m, B)):
            s[i : i + B] = ts.tile.row_sum(x[i : i + B, :])
            top[i : i + B] = ts.tile.row_max(x[i : i + B, :])
        for j in ts.tile.grid((n, W)):
            least = ts.tile.full((W,), 99, out)
            for i in ts.tile.range(0, m, B):
                part = ts.tile.load(x[i : i + B, j : j + W], fill=99)
                least = ts.tile.minimum(least, ts.tile.min(part, 0))
            low[j : j + W] = least
        return s, top, low

    return kernel


@conformance(
    [
        Case(
            f"rows-{name}-{m}x{n}-by-{B}",
            rows(dtype(name), accumulator_of(dtype(name))),
            lambda rng, name=name, m=m, n=n: [
                normal(rng, (m, n), dtype(name)),
                *(Output((size,), accumulator_of(dtype(name))) for size in (m, m, n)),
            ],
            lambda x, *_: (
                Close(x.astype(np.float64).sum(1), np.abs(x.astype(np.float64)).sum(1)),
                x.astype(np.float64).max(1),
                x.astype(np.float64).min(0),
            ),
            [of_sum(accumulator_of(dtype(name)), n), EXACT, EXACT],
            dict(B=B, W=W),
        )
        for name, (m, n), (B, W) in (
            ("f32", (37, 129), (4, 32)),
            ("bf16", (50, 257), (8, 24)),
            ("f32", (1, 1000), (1, 128)),
            ("i32", (33, 48), (16, 16)),
            ("f16", (64, 64), (64, 64)),
            ("f32", (9, 3), (4, 8)),
            ("f64", (20, 30), (3, 7)),
            ("f32", (300, 17), (128, 16)),
        )
    ]
)
def test_reductions_of_larger_tensors(case, backend):
    check(case, backend)


# Scans


def scans(fns: tuple[str, ...], shape: tuple[int, ...], dt: DType, out: DType, axis: int) -> Callable[..., Any]:
    count = len(fns)

    def kernel(x: ts.Tensor[*shape, dt], y: ts.Tensor[count, *shape, out], z: ts.Tensor[count, *shape, out]):
        v = x[...]
        for f in ts.tile.static_range(count):
            y[f, ...] = ts.tile.scan(v, axis, fns[f])
            z[f, ...] = ts.tile.scan(v, axis, fns[f], reverse=True)

    return kernel


def scan_case(fns: tuple[str, ...], shape: tuple[int, ...], dt: DType, axis: int) -> Case:
    """Return scans of one tile, forwards and backwards."""
    out = accumulator_of(dt) if fns[0] not in LOGIC else ts.bool_

    def one(x: np.ndarray, fn: str, acc: DType) -> tuple[np.ndarray, np.ndarray]:
        kind = {} if acc.is_float or fn in LOGIC else {"dtype": acc.numpy()}
        result = _UFUNCS[fn].accumulate(x, axis=axis, **kind)
        return result, np.abs(x).cumsum(axis) if fn == "sum" and acc.is_float else np.zeros(x.shape)

    def reference(x: np.ndarray, *_: Any) -> tuple[Close, Close]:
        wide, acc = (x, dt) if fns[0] in LOGIC else widened(x, dt)
        forward = [one(wide, fn, acc) for fn in fns]
        back = [tuple(np.flip(v, axis) for v in one(np.flip(wide, axis), fn, acc)) for fn in fns]
        return tuple(Close(np.stack([v for v, _ in part]), np.stack([m for _, m in part])) for part in (forward, back))

    rows = Rows(tuple((fn, tolerance(fn, accumulator_of(dt), shape[axis])) for fn in fns))
    text = "x".join(map(str, shape))
    return Case(
        f"scan-{dt}-{text}-axis{axis}-{'+'.join(fns)}",
        scans(fns, shape, dt, out, axis),
        lambda rng: [values(rng, shape, dt, fns), *[Output((len(fns), *shape), out)] * 2],
        reference,
        [rows, rows],
    )


SCANS = (
    ("f32", (33,), 0),
    ("f32", (128,), -1),
    ("bf16", (5, 24), 1),
    ("f16", (5, 24), 0),
    ("f64", (16, 16), 0),
    ("i8", (16, 16), 1),
    ("i32", (3, 4, 5), 1),
    ("u16", (100,), 0),
    ("i64", (7, 64), -1),
    ("f32", (2, 300), 1),
    ("u32", (1, 9), 0),
    ("f32", (64, 6), 0),
)


@conformance(
    [scan_case(ARITHMETIC, shape, dtype(name), axis) for name, shape, axis in SCANS]
    + [scan_case(LOGIC, (5, 24), ts.bool_, axis) for axis in (0, 1)]
)
def test_scans(case, backend):
    check(case, backend)


def softmax_like(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32], t: ts.Tensor["m", ts.f32]):
    """Chains of reductions and broadcasts of one tile."""
    for i in ts.tile.grid((m, 3)):
        v = x[i : i + 3, :]
        top = ts.tile.row_max(v)
        e = ts.tile.exp(v - top[:, None])
        total = ts.tile.row_sum(e)
        y[i : i + 3, :] = e / total[:, None]
        t[i : i + 3] = ts.tile.log(total) + top


def _softmax(x: np.ndarray, *_: Any) -> tuple[Any, Any]:
    wide = x.astype(np.float64)
    top = wide.max(1, keepdims=True)
    e = np.exp(wide - top)
    return e / e.sum(1, keepdims=True), Close(np.log(e.sum(1)) + top[:, 0], np.abs(top[:, 0]) + 1)


@conformance(
    [
        Case(
            f"chain-{m}x{n}",
            softmax_like,
            lambda rng, m=m, n=n: (
                normal(rng, (m, n), ts.f32, 4.0),
                Output((m, n), ts.f32),
                Output((m,), ts.f32),
            ),
            _softmax,
            [Tolerance(relative=4e-6, absolute=1e-30), Tolerance(scaled=1e-6)],
        )
        for m, n in ((7, 129), (3, 16), (1, 1), (10, 1000))
    ]
)
def test_reductions_feed_each_other(case, backend):
    check(case, backend)
