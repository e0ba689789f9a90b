"""Kernels over integers and their bits, as their users write them."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT, Tolerance
from tests.conformance.data import integers, normal
from tests.conformance.harness import Output, check, conformance
from tests.conformance.workloads import case, wide

# Integers


def quotients(a: ts.Tensor["n", ts.i8], b: ts.Tensor["n", ts.i8], y: ts.Tensor[6, "n", ts.i8], by: ts.i8, over: ts.i64):
    for i in ts.tile.grid((n, 40)):
        x, z = a[i : i + 40], b[i : i + 40]
        z = ts.tile.where(z == 0, 3, z)
        y[0, i : i + 40] = x // z
        y[1, i : i + 40] = x % z
        y[2, i : i + 40] = (x >> (z & 7)) ^ (x << (z & 3))
        y[3, i : i + 40] = x // by
        y[4, i : i + 40] = ts.tile.cast((ts.tile.cast(x, ts.i64) * 1000003) % over, ts.i8)
        y[5, i : i + 40] = ts.tile.cast((i - 50 + ts.tile.arange(40)) // 7, ts.i8)


def _quotients(a: np.ndarray, b: np.ndarray, y: np.ndarray, by: int, over: int) -> np.ndarray:
    x, z, at = a.astype(np.int64), b.astype(np.int64), np.arange(len(a))
    z = np.where(z == 0, 3, z)
    low = lambda v: v.astype(np.int8)  # noqa: E731
    shifts = low(x >> (z & 7)) ^ low(x << (z & 3))
    i = at // 40 * 40
    return np.stack(
        [low(x // z), low(x % z), shifts, low(x // by), low(x * 1000003 % over), low((i - 50 + at - i) // 7)]
    )


def checksums(text: ts.Tensor["n", "k", ts.u8], y: ts.Tensor["n", ts.u32]):
    for i in ts.tile.grid((n, 9)):
        crc = ts.tile.full((9,), 0xFFFFFFFF, ts.u32)
        for j in ts.tile.range(k):
            crc = crc ^ ts.tile.cast(text[i : i + 9, j], ts.u32)
            for _ in ts.tile.static_range(8):
                crc = (crc >> 1) ^ (0xEDB88320 & -(crc & 1))
        y[i : i + 9] = ~crc


def _checksums(text: np.ndarray, y: np.ndarray) -> np.ndarray:
    import zlib

    return np.array([zlib.crc32(row.tobytes()) for row in text], np.uint32)


def quantised(x: ts.Tensor["M", "N", ts.bf16], q: ts.Tensor["M", "N", ts.i8], s: ts.Tensor["M", ts.f32]):
    for m in ts.tile.grid((M, 4)):
        row = ts.tile.cast(x[m : m + 4, :], ts.f32)
        scale = ts.tile.max(ts.tile.abs(row), 1) / 127
        scale = ts.tile.where(scale == 0, 1.0, scale)
        q[m : m + 4, :] = ts.tile.cast(ts.tile.round(row / scale[:, None]), ts.i8)
        s[m : m + 4] = scale


def _quantised(x: np.ndarray, q: np.ndarray, s: np.ndarray) -> Any:
    scale = np.abs(x.astype(np.float32)).max(1) / np.float32(127)
    scale = np.where(scale == 0, np.float32(1), scale).astype(np.float32)
    return np.round(x.astype(np.float32) / scale[:, None]).astype(np.int8), scale


def nibbles(q: ts.Tensor["n", "k", ts.i8], packed: ts.Tensor["n", "k//2", ts.u8], back: ts.Tensor["n", "k", ts.i8]):
    for i, j in ts.tile.grid((n, 3), (k, 10)):
        low, high = q[i : i + 3, j : j + 10 : 2], q[i : i + 3, j + 1 : j + 11 : 2]
        both = (low & 15) | (high << 4)
        packed[i : i + 3, j // 2 : j // 2 + 5] = ts.tile.bitcast(both, ts.u8)
        pair = ts.tile.join((both << 4) >> 4, both >> 4)
        back[i : i + 3, j : j + 10] = pair.reshape(3, 10)


def _nibbles(q: np.ndarray, packed: np.ndarray, back: np.ndarray) -> Any:
    low, high = q[:, 0::2].astype(np.int64) & 15, q[:, 1::2].astype(np.int64) & 15
    sign = ((q.astype(np.int64) & 15) ^ 8) - 8
    return (low | high << 4).astype(np.uint8), sign.astype(np.int8)


def packed_bits(x: ts.Tensor["n", 40, ts.f32], y: ts.Tensor["n", 5, ts.u8], counts: ts.Tensor["n", ts.i32]):
    for i in ts.tile.grid((n, 2)):
        positive = (x[i : i + 2, :] > 0).reshape(2, 5, 8)
        bits = ts.tile.cast(positive, ts.i32) << ts.tile.arange(8)
        words = ts.tile.cast(ts.tile.sum(bits, 2), ts.u8)
        y[i : i + 2, :] = words
        counts[i : i + 2] = ts.tile.sum(ts.tile.popcount(words), 1)


def _packed_bits(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> Any:
    return np.packbits(x > 0, 1, "little"), (x > 0).sum(1).astype(np.int32)


def mixed_types(
    a: ts.Tensor["n", ts.i8],
    b: ts.Tensor["n", ts.f16],
    c: ts.Tensor["n", ts.u32],
    d: ts.Tensor["n", ts.bool_],
    y: ts.Tensor["n", ts.f64],
    z: ts.Tensor["n", ts.i64],
):
    for i in ts.tile.grid((n, 17)):
        e, f, g, h = a[i : i + 17], b[i : i + 17], c[i : i + 17], d[i : i + 17]
        y[i : i + 17] = ts.tile.cast(e, ts.f64) * ts.tile.cast(f, ts.f64) + ts.tile.where(
            h, ts.tile.cast(g, ts.f64), -0.5
        )
        z[i : i + 17] = (
            ts.tile.cast(e, ts.i64) * ts.tile.cast(g, ts.i64) - ts.tile.cast(f, ts.i64) + ts.tile.cast(h, ts.i64)
        )


def _mixed_types(a: Any, b: Any, c: Any, d: Any, y: Any, z: Any) -> Any:
    return a * wide(b) + np.where(d, c, -0.5), a.astype(np.int64) * c.astype(np.int64) - b.astype(np.int64) + d


@conformance(
    [
        case(
            f"quotients-{n}-{by}-{over}",
            quotients,
            lambda rng, n=n, by=by, over=over: [
                integers(rng, (n,), ts.i8),
                integers(rng, (n,), ts.i8),
                Output((6, n), ts.i8),
                by,
                over,
            ],
            _quotients,
            EXACT,
        )
        for n, by, over in ((133, -3, 97), (41, 1, -(10**12)), (1, -128, 1))
    ]
    + [
        case(
            f"checksums-{k}",
            checksums,
            lambda rng, k=k: [rng.integers(0, 256, (20, k)).astype(np.uint8), Output((20,), ts.u32)],
            _checksums,
            EXACT,
        )
        for k in (0, 13)
    ]
    + [
        case(
            "quantised",
            quantised,
            lambda rng: [
                normal(rng, (11, 50), ts.bf16) * np.array(np.arange(11) % 3, ts.bf16.numpy())[:, None],
                Output((11, 50), ts.i8),
                Output((11,), ts.f32),
            ],
            _quantised,
            EXACT,
            profile="strict",
        ),
        case(
            "nibbles",
            nibbles,
            lambda rng: [integers(rng, (5, 34), ts.i8), Output((5, 17), ts.u8), Output((5, 34), ts.i8)],
            _nibbles,
            EXACT,
        ),
        case(
            "packed-bits",
            packed_bits,
            lambda rng: [normal(rng, (7, 40), ts.f32), Output((7, 5), ts.u8), Output((7,), ts.i32)],
            _packed_bits,
            EXACT,
        ),
        case(
            "mixed-types",
            mixed_types,
            lambda rng: [
                integers(rng, (50,), ts.i8),
                normal(rng, (50,), ts.f16, 100.0),
                integers(rng, (50,), ts.u32),
                normal(rng, (50,), ts.bool_),
                Output((50,), ts.f64),
                Output((50,), ts.i64),
            ],
            _mixed_types,
            [Tolerance(relative=1e-15), EXACT],
        ),
    ]
)
def test_integers(case, backend):
    check(case, backend)
