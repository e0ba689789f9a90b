"""Broadcasting in every form, transposes, reshapes, and tiles made of nothing."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import of_rounding
from tests.conformance.data import normal
from tests.conformance.harness import BACKENDS, Case, Output, Updated, check, conformance, dtype

SOME_DTYPES = ("f32", "bf16", "f64", "i8", "i32", "u16", "fp8_e5m2", "bool")


def forms(
    a: ts.Tensor["m", "n", ts.f32],
    r: ts.Tensor["n", ts.f32],
    c: ts.Tensor["m", ts.f32],
    s: ts.f32,
    y: ts.Tensor[9, "m", "n", ts.f32],
    M: ts.constexpr,
    N: ts.constexpr,
):
    for i, j in ts.tile.grid((m, M), (n, N)):
        v, row, column = a[i : i + M, j : j + N], r[j : j + N], c[i : i + M]
        y[0, i : i + M, j : j + N] = v + row
        y[1, i : i + M, j : j + N] = v * column[:, None]
        y[2, i : i + M, j : j + N] = column[:, None] - row[None, :]
        y[3, i : i + M, j : j + N] = s - v
        y[4, i : i + M, j : j + N] = row
        y[5, i : i + M, j : j + N] = column[:, None]
        y[6, i : i + M, j : j + N] = s
        y[7, i : i + M, j : j + N] = ts.tile.where(row > 0, column[:, None], v)
        y[8, i : i + M, j : j + N] = ts.tile.broadcast_to(ts.tile.expand_dims(column, 1), (M, N)) + 2.0
    return y


def forms_reference(a: Any, r: Any, c: Any, s: float, _y: Any) -> Any:
    a, r, c, s = (np.asarray(v).astype(np.float64) for v in (a, r, c, np.float32(s)))
    column, one = c[:, None], np.ones_like(a)
    rows = [
        a + r,
        a * column,
        column - r,
        s - a,
        one * r,
        one * column,
        one * s,
        np.where(r > 0, column, a),
        one * column + 2,
    ]
    return np.stack(rows)


FORM_SHAPES = [
    ((1, 1), (4, 4)),
    ((37, 129), (12, 40)),
    ((16, 16), (16, 16)),
    ((64, 1), (24, 1)),
    ((1, 64), (1, 64)),
    ((5, 3), (8, 16)),
]


@conformance(
    [
        Case(
            f"forms-{m}x{n}-tile-{M}x{N}",
            forms,
            lambda rng, m=m, n=n: (
                normal(rng, (m, n), ts.f32),
                normal(rng, (n,), ts.f32),
                normal(rng, (m,), ts.f32),
                0.7,
                Output((9, m, n), ts.f32),
            ),
            forms_reference,
            of_rounding(ts.f32),
            dict(M=M, N=N),
        )
        for (m, n), (M, N) in FORM_SHAPES
    ]
)
def test_broadcasting(case, backend):
    check(case, backend)


def ones(
    a: ts.Tensor[3, 1, 5, ts.i32],
    b: ts.Tensor[4, 1, ts.i32],
    c: ts.Tensor[1, ts.i32],
    y: ts.Tensor[3, 4, 5, ts.i32],
    z: ts.Tensor[3, 4, 5, ts.i32],
    w: ts.Tensor[2, 3, 1, 5, ts.i32],
):
    y[:, :, :] = a[:, :, :] * b[:, :] + c[:]
    z[:, :, :] = b[:, :]
    w[:, :, :, :] = a[:, :, :]


@conformance(
    [
        Case(
            "ones",
            ones,
            lambda rng: (
                *(normal(rng, shape, ts.i32) for shape in ((3, 1, 5), (4, 1), (1,))),
                *(Output(shape, ts.i32) for shape in ((3, 4, 5), (3, 4, 5), (2, 3, 1, 5))),
            ),
            lambda a, b, c, *_: (a * b + c, np.broadcast_to(b, (3, 4, 5)), np.broadcast_to(a, (2, 3, 1, 5))),
        )
    ]
)
def test_broadcasting_of_ones_in_three_and_four_dimensions(case, backend):
    check(case, backend)


def transposing(dt: Any) -> Any:
    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["n", "m", dt], M: ts.constexpr, N: ts.constexpr):
        for i, j in ts.tile.grid((m, M), (n, N)):
            y[j : j + N, i : i + M] = x[i : i + M, j : j + N].T
        return y

    return kernel


TRANSPOSED = [
    ((37, 129), (32, 32)),
    ((16, 16), (16, 16)),
    ((48, 80), (24, 40)),
    ((1, 64), (1, 64)),
    ((64, 1), (64, 1)),
    ((7, 3), (8, 4)),
]


@conformance(
    [
        Case(
            f"transpose-{name}-{m}x{n}",
            transposing(dtype(name)),
            lambda rng, m=m, n=n, name=name: (normal(rng, (m, n), dtype(name)), Output((n, m), dtype(name))),
            lambda x, y: x.T,
            constexprs=dict(M=M, N=N),
        )
        for at, name in enumerate(SOME_DTYPES)
        for (m, n), (M, N) in (TRANSPOSED[at % 6], TRANSPOSED[(at + 3) % 6])
    ]
)
def test_transposes(case, backend):
    check(case, backend)


def permuted(perm: tuple[int, ...], shape: tuple[int, ...], dt: Any) -> Any:
    def kernel(x: ts.Tensor[*shape, dt], y: ts.Tensor[*(shape[axis] for axis in perm), dt]):
        y[...] = ts.tile.transpose(x[...], perm)

    return kernel


PERMUTED = [
    ((2, 0, 1), (3, 5, 7)),
    ((1, 2, 0), (4, 8, 16)),
    ((0, 2, 1), (2, 33, 5)),
    ((3, 1, 0, 2), (2, 3, 4, 5)),
    ((1, 0), (31, 66)),
]


@conformance(
    [
        Case(
            f"permute-{'x'.join(map(str, shape))}-{name}",
            permuted(perm, shape, dtype(name)),
            lambda rng, perm=perm, shape=shape, name=name: (
                normal(rng, shape, dtype(name)),
                Output(tuple(shape[axis] for axis in perm), dtype(name)),
            ),
            lambda x, y, perm=perm: x.transpose(perm),
        )
        for at, (perm, shape) in enumerate(PERMUTED)
        for name in (SOME_DTYPES[at], SOME_DTYPES[at + 3])
    ]
)
def test_permutations(case, backend):
    check(case, backend)


def reshaped(old: tuple[int, ...], new: tuple[int, ...], dt: Any) -> Any:
    def kernel(x: ts.Tensor[*old, dt], y: ts.Tensor[*new, dt], z: ts.Tensor[*new, dt]):
        v = ts.tile.reshape(x[...], new)
        y[...] = v
        z[...] = ts.tile.where(v > 0, v, 1)

    return kernel


RESHAPED = [
    ((6, 8), (48,)),
    ((48,), (6, 8)),
    ((4, 6), (8, 3)),
    ((3, 5, 7), (15, 7)),
    ((3, 5, 7), (3, 35)),
    ((16, 16), (4, 64)),
    ((105,), (3, 5, 7)),
    ((12, 10), (10, 12)),
    ((1, 32), (32, 1)),
    ((2, 3, 4, 5), (6, 20)),
    ((128,), (2, 64)),
    ((80,), (5, 16)),
    ((12, 2, 8), (24, 8)),
    ((3, 4, 5), (12, 5)),
]


@conformance(
    [
        Case(
            f"reshape-{'x'.join(map(str, old))}-to-{'x'.join(map(str, new))}",
            reshaped(old, new, dtype(name)),
            lambda rng, old=old, new=new, name=name: (
                normal(rng, old, dtype(name)),
                *[Output(new, dtype(name))] * 2,
            ),
            lambda x, y, z, new=new: (
                x.reshape(new),
                np.where(x.reshape(new) > 0, x.reshape(new), np.ones(1, x.dtype)),
            ),
        )
        for at, (old, new) in enumerate(RESHAPED)
        for name in [("f32", "i16", "bf16", "f64", "u8")[at % 5]]
    ]
)
def test_reshapes(case, backend):
    check(case, backend)


def made(dt: Any) -> Any:
    def kernel(x: ts.Tensor["n", dt], y: ts.Tensor[8, "n", dt], s: ts.i32):
        for i in ts.tile.grid((n, 24)):
            v = x[i : i + 24]
            y[0, i : i + 24] = ts.tile.zeros((24,), dt)
            y[1, i : i + 24] = ts.tile.full((24,), 3, dt)
            y[2, i : i + 24] = ts.tile.full(24, s, dt)
            y[3, i : i + 24] = ts.tile.arange(24)
            y[4, i : i + 24] = ts.tile.arange(5, 29, dtype=ts.f32)
            y[5, i : i + 24] = ts.tile.zeros_like(v)
            y[6, i : i + 24] = ts.tile.full_like(v, 2)
            y[7, i : i + 24] = (i + ts.tile.arange(24)) % 7

    return kernel


@conformance(
    [
        Case(
            f"made-{name}",
            made(dtype(name)),
            lambda rng, name=name: (normal(rng, (53,), dtype(name)), Output((8, 53), dtype(name)), 6),
            lambda x, y, s: np.stack(
                [
                    np.zeros(53),
                    np.full(53, 3),
                    np.full(53, s),
                    np.arange(53) % 24,
                    np.arange(53) % 24 + 5,
                    np.zeros(53),
                    np.full(53, 2),
                    np.arange(53) % 7,
                ]
            ).astype(x.dtype),
        )
        for name in ("f32", "f16", "f64", "i8", "u32", "i64")
    ]
)
def test_tiles_made_of_nothing(case, backend):
    check(case, backend)


def fewer_than_no_programs(y: ts.Tensor["n", ts.i32], less: int):
    for i in ts.tile.grid((5 - 9, 2)):
        y[i : i + 2] = 1
    for i, j in ts.tile.grid((n, 8), (less, 1)):
        y[i : i + 8] = j
    for i, j in ts.tile.grid((3 - n, 4), (8, 2)):
        y[i : i + 4] = j


@conformance(
    [
        Case(
            f"fewer-than-none-{less}",
            fewer_than_no_programs,
            lambda _, less=less: (Updated(np.arange(16, dtype=np.int32)), less),
            lambda y, less: y,
            backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"),
        )
        for less in (0, -3)
    ]
)
def test_grids_of_negative_extents_have_no_programs(case, backend):
    check(case, backend)
