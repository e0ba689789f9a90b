"""Kernels of linear algebra and of layouts, as their users write them: small batches, views, transposes."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT, Tolerance, of_matmul, of_rounding
from tests.conformance.data import integers, normal
from tests.conformance.harness import Close, Output, Updated, check, conformance
from tests.conformance.workloads import case, wide


def small_products(a: ts.Tensor["B", 5, 7, ts.f32], b: ts.Tensor["B", 7, 3, ts.f32], y: ts.Tensor["B", 5, 3, ts.f32]):
    for i in ts.tile.grid((B, 4)):
        left, right = a[i : i + 4, :, :], b[i : i + 4, :, :]
        y[i : i + 4, :, :] = ts.tile.sum(left[:, :, :, None] * right[:, None, :, :], 2)


def small_mma(a: ts.Tensor["B", 5, 7, ts.f16], b: ts.Tensor["B", 7, 3, ts.f16], y: ts.Tensor["B", 3, 5, ts.f32]):
    for i in ts.tile.grid((B, 3)):
        found = ts.tile.mma(a[i : i + 3, 0:16, 0:16], b[i : i + 3, 0:16, 0:8])
        y[i : i + 3, 0:8, 0:16] = ts.tile.transpose(found, (0, 2, 1))


def turned(x: ts.Tensor["a", "b", "c", ts.i16], y: ts.Tensor["c", "a", "b", ts.i16]):
    for i, j, k in ts.tile.grid((a, 3), (b, 4), (c, 5)):
        y[k : k + 5, i : i + 3, j : j + 4] = ts.tile.transpose(x[i : i + 3, j : j + 4, k : k + 5], (2, 0, 1))


def transposed_in_place(x: ts.Tensor["n", "n", ts.f32]):
    for i, j in ts.tile.grid((n, 8), (n, 8)):
        if i == j:
            x[i : i + 8, i : i + 8] = x[i : i + 8, i : i + 8].T
        elif i < j:
            upper, lower = x[i : i + 8, j : j + 8], x[j : j + 8, i : i + 8]
            x[i : i + 8, j : j + 8] = lower.T
            x[j : j + 8, i : i + 8] = upper.T


def layer_norm_back(
    x: ts.Tensor["M", "N", ts.bf16],
    w: ts.Tensor["N", ts.f32],
    dy: ts.Tensor["M", "N", ts.bf16],
    dx: ts.Tensor["M", "N", ts.f32],
    dw: ts.Tensor["N", ts.f32],
):
    for m in ts.tile.grid((M, 2)):
        row, inside = ts.tile.cast(x[m : m + 2, :], ts.f32), (m + ts.tile.arange(2) < M)[:, None]
        mean, spread = row.mean(1, keepdims=True), ts.tile.rsqrt(row.var(1, keepdims=True) + 1e-5)
        hat = (row - mean) * spread
        given = ts.tile.cast(dy[m : m + 2, :], ts.f32)
        scaled = given * w[:]
        one, two = scaled.mean(1, keepdims=True), (scaled * hat).mean(1, keepdims=True)
        dx[m : m + 2, :] = (scaled - one - hat * two) * spread
        ts.tile.atomic_add(dw[:], ts.tile.sum(ts.tile.where(inside, given * hat, 0.0), 0))


def _layer_norm_back(x: Any, w: Any, dy: Any, dx: Any, dw: Any) -> Any:
    row, given = wide(x), wide(dy)
    spread = 1 / np.sqrt(row.var(1, keepdims=True) + 1e-5)
    hat = (row - row.mean(1, keepdims=True)) * spread
    scaled = given * wide(w)
    two = (scaled * hat).mean(1, keepdims=True)
    result = (scaled - scaled.mean(1, keepdims=True) - hat * two) * spread
    return Close(result, np.abs(scaled).max()), Close(wide(dw) + (given * hat).sum(0), np.abs(given * hat).sum(0) + 1)


def nearest(
    x: ts.Tensor["n", 16, ts.f16], c: ts.Tensor["k", 16, ts.f16], y: ts.Tensor["n", ts.i32], d: ts.Tensor["n", ts.f32]
):
    for i in ts.tile.grid((n, 32)):
        points = x[i : i + 32, :]
        best, place = ts.tile.full((32,), float("inf")), ts.tile.zeros((32,), ts.i32)
        for j in ts.tile.range(0, k, 16):
            centres = c[j : j + 16, :]
            length = ts.tile.sum(ts.tile.cast(centres, ts.f32) * centres, 1)
            far = length[None, :] - 2 * ts.tile.mma(points, centres.T)
            far = ts.tile.where((j + ts.tile.arange(16) < k)[None, :], far, float("inf"))
            least = ts.tile.min(far, 1)
            place = ts.tile.where(least < best, ts.tile.cast(j, ts.i32) + ts.tile.argmin(far, 1), place)
            best = ts.tile.minimum(best, least)
        y[i : i + 32] = place
        d[i : i + 32] = best


def _nearest(x: Any, c: Any, y: Any, d: Any) -> Any:
    far = (wide(c) ** 2).sum(1) - 2 * wide(x) @ wide(c).T
    return far.argmin(1).astype(np.int32), far.min(1)


def gated(
    x: ts.Tensor["M", "K", ts.bf16],
    w: ts.Tensor["K", "2*N", ts.bf16],
    r: ts.Tensor["M", "N", ts.bf16],
    y: ts.Tensor["M", "N", ts.bf16],
    scale: ts.f32,
):
    for m, n in ts.tile.grid((M, 32), (N, 16)):
        gate, up = ts.tile.zeros((32, 16)), ts.tile.zeros((32, 16))
        for k in ts.tile.range(0, K, 32):
            part = x[m : m + 32, k : k + 32]
            gate = ts.tile.mma(part, w[k : k + 32, n : n + 16], gate)
            up = ts.tile.mma(part, w[k : k + 32, N + n : N + n + 16], up)
        y[m : m + 32, n : n + 16] = ts.tile.silu(gate * scale) * up + r[m : m + 32, n : n + 16]


def _gated(x: Any, w: Any, r: Any, y: Any, scale: float) -> Any:
    both = wide(x) @ wide(w)
    gate, up = both[:, : y.shape[1]] * float(np.float32(scale)), both[:, y.shape[1] :]
    size = np.abs(wide(x)) @ np.abs(wide(w))
    size = size.max() ** 2
    return Close(gate / (1 + np.exp(-gate)) * up + wide(r), size)


def power_rounds(a: ts.Tensor["B", 12, 12, ts.f32], v: ts.Tensor["B", 12, ts.f32], y: ts.Tensor["B", ts.f32]):
    for b in ts.tile.grid((B, 1)):
        matrix, vector = a[b, :, :], v[b, :]
        before, value, rounds = 0.0, 1.0, 0
        while ts.tile.abs(value - before) > 1e-7 * ts.tile.abs(value) and rounds < 400:
            product = ts.tile.sum(matrix * vector[None, :], 1)
            before = value
            value = ts.tile.sqrt(ts.tile.sum(product * product))
            vector = product / value
            rounds += 1
        v[b, :] = vector
        y[b] = value


def _power_rounds(a: Any, v: Any, y: Any) -> Any:
    values, vectors = np.linalg.eigh(wide(a))
    top = vectors[:, :, -1]
    return top * np.sign((top * wide(v)).sum(1, keepdims=True)), values[:, -1]


def _symmetric(rng: np.random.Generator, count: int) -> np.ndarray:
    q = np.linalg.qr(rng.standard_normal((count, 12, 12)))[0]
    values = np.concatenate([np.linspace(0.1, 1, 11), [3.0]])
    return (q * values[None, None, :] @ q.transpose(0, 2, 1)).astype(np.float32)


def complex_product(a: ts.Tensor["n", 2, ts.f64], b: ts.Tensor["n", 2, ts.f64], y: ts.Tensor["n", 2, ts.f64]):
    for i in ts.tile.grid((n, 11)):
        ar, ai = ts.tile.unstack(a[i : i + 11, :], 1)
        br, bi = ts.tile.unstack(b[i : i + 11, :], 1)
        y[i : i + 11, :] = ts.tile.join(ar * br - ai * bi, ar * bi + ai * br)


def hadamard(x: ts.Tensor["M", 32, ts.f32]):
    for m in ts.tile.grid((M, 3)):
        v, at = x[m : m + 3, :], ts.tile.arange(32)
        for step in ts.tile.static_range(5):
            other = ts.tile.exchange(v, 1 << step, 1)
            v = ts.tile.where(((at >> step) & 1 == 0)[None, :], v + other, other - v)
        x[m : m + 3, :] = v


def _hadamard(x: np.ndarray) -> Any:
    h = np.ones((1, 1))
    for _ in range(5):
        h = np.block([[h, h], [h, -h]])
    return Close(wide(x) @ h, np.abs(wide(x)).sum(1, keepdims=True) * np.ones(32))


def every_other(x: ts.Tensor["h", "w", ts.f32], y: ts.Tensor["h", "w", ts.f32]):
    for i, j in ts.tile.grid((h, 4), (w, 6)):
        even, odd = x[i : i + 4, j : j + 6 : 2], x[i : i + 4, j + 1 : j + 7 : 2]
        y[i : i + 4, j : j + 6 : 2] = even + odd
        y[i : i + 4, j + 1 : j + 7 : 2] = even - odd


def _every_other(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    padded = np.pad(wide(x), ((0, 0), (0, x.shape[1] % 2)))
    even, odd = padded[:, 0::2], padded[:, 1::2]
    return np.stack([even + odd, even - odd], 2).reshape(len(x), -1)[:, : x.shape[1]]


def _view(x: np.ndarray, how: str) -> np.ndarray:
    """Return an array of the shape of `x` that lies otherwise in memory."""
    if how == "columns":
        return np.asfortranarray(x)
    whole = np.zeros((x.shape[0] * 2, x.shape[1] * 3), x.dtype)
    part = whole[1::2, 2::3] if how == "steps" else whole[::-2, ::-3]
    part[...] = x
    return part


@conformance(
    [
        case(
            f"small-products-{n}",
            small_products,
            lambda rng, n=n: [
                normal(rng, (n, 5, 7), ts.f32),
                normal(rng, (n, 7, 3), ts.f32),
                Output((n, 5, 3), ts.f32),
            ],
            lambda a, b, y: Close(wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))),
        )
        for n in (0, 9)
    ]
    + [
        case(
            "small-mma",
            small_mma,
            lambda rng: [normal(rng, (7, 5, 7), ts.f16), normal(rng, (7, 7, 3), ts.f16), Output((7, 3, 5), ts.f32)],
            lambda a, b, y: Close(
                (wide(a) @ wide(b)).transpose(0, 2, 1), (np.abs(wide(a)) @ np.abs(wide(b))).transpose(0, 2, 1)
            ),
            of_matmul(ts.f16, ts.f32, 7),
        ),
        case(
            "layer-norm-back",
            layer_norm_back,
            lambda rng: [
                normal(rng, (9, 50), ts.bf16),
                normal(rng, (50,), ts.f32),
                normal(rng, (9, 50), ts.bf16),
                Output((9, 50), ts.f32),
                Updated(normal(rng, (50,), ts.f32)),
            ],
            _layer_norm_back,
            Tolerance(relative=1e-4, scaled=1e-5),
        ),
        case(
            "nearest",
            nearest,
            lambda rng: [
                normal(rng, (70, 16), ts.f16),
                normal(rng, (37, 16), ts.f16),
                Output((70,), ts.i32),
                Output((70,), ts.f32),
            ],
            _nearest,
            [EXACT, Tolerance(absolute=1e-4)],
        ),
        case(
            "gated",
            gated,
            lambda rng: [
                normal(rng, (40, 50), ts.bf16),
                normal(rng, (50, 46), ts.bf16),
                normal(rng, (40, 23), ts.bf16),
                Output((40, 23), ts.bf16),
                0.25,
            ],
            _gated,
            of_rounding(ts.bf16).plus(Tolerance(scaled=1e-6)),
        ),
        case(
            "power-rounds",
            power_rounds,
            lambda rng: [
                _symmetric(rng, 4),
                Updated(np.abs(normal(rng, (4, 12), ts.f32))),
                Output((4,), ts.f32),
            ],
            _power_rounds,
            Tolerance(absolute=1e-3),
        ),
        case(
            "complex-product",
            complex_product,
            lambda rng: [normal(rng, (40, 2), ts.f64), normal(rng, (40, 2), ts.f64), Output((40, 2), ts.f64)],
            lambda a, b, y: (a.view(np.complex128) * b.view(np.complex128)).view(np.float64),
            Tolerance(absolute=1e-13),
        ),
        case("hadamard", hadamard, lambda rng: [Updated(normal(rng, (7, 32), ts.f32))], _hadamard),
    ]
)
def test_algebra(case, backend):
    check(case, backend)


@conformance(
    [
        case(
            f"turned-{a}x{b}x{c}",
            turned,
            lambda rng, s=(a, b, c): [integers(rng, s, ts.i16), Output((s[2], s[0], s[1]), ts.i16)],
            lambda x, y: x.transpose(2, 0, 1),
            EXACT,
        )
        for a, b, c in ((5, 9, 12), (1, 2, 33), (4, 0, 3))
    ]
    + [
        case(
            f"transposed-in-place-{n}",
            transposed_in_place,
            lambda rng, n=n: [Updated(normal(rng, (n, n), ts.f32))],
            lambda x: x.T,
            EXACT,
        )
        for n in (8, 29)
    ]
    + [
        case(
            f"every-other-{h}x{w}-{how}",
            every_other,
            lambda rng, s=(h, w), how=how: [_view(normal(rng, s, ts.f32), how), Output(s, ts.f32)],
            _every_other,
        )
        for h, w, how in ((5, 13, "columns"), (6, 12, "steps"), (9, 1, "backwards"))
    ]
)
def test_layouts(case, backend):
    check(case, backend)
