"""Products in tiles whose sizes are no powers of two, and all that is done with such tiles.

Sizes are drawn from the multiples of 8: GPUs compute others where they may (`fit-blocks`), or else parts of them
(`split-tiles`), and Hopper's warpgroups take the transposes where only these have rows in 64s.
"""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import tessera as ts
from tessera.numerics.tolerances import Tolerance
from tests.conformance.harness import BACKENDS, Case, Close, Output, Updated, check, conformance

EVERYWHERE = (*BACKENDS, "ptx-sm_80", "ptx-sm_90a")
BF16 = Tolerance(relative=2.0**-8, scaled=2.0**-20)
"""Sums of few terms in f32, rounded to bf16."""

Operands = Callable[[np.random.Generator], list[Any]]


def _random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def _wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


def _product(block: tuple[int, int, int], trans: tuple[bool, bool], finish: str) -> Callable[..., Any]:
    bm, bn, bk = block
    left, right = trans
    a0, a1 = ("K", "M") if left else ("M", "K")
    b0, b1 = ("N", "K") if right else ("K", "N")

    def kernel(
        a: ts.Tensor[a0, a1, ts.bf16],
        b: ts.Tensor[b0, b1, ts.bf16],
        bias: ts.Tensor["N", ts.bf16],
        c: ts.Tensor["M", "N", ts.bf16],
    ):
        for m, n in ts.tile.grid((M, bm), (N, bn)):
            acc = ts.tile.zeros((bm, bn), ts.f32)
            for k in ts.tile.range(0, K, bk):
                x = a[k : k + bk, m : m + bm].T if left else a[m : m + bm, k : k + bk]
                y = b[n : n + bn, k : k + bk].T if right else b[k : k + bk, n : n + bn]
                acc = ts.tile.mma(x, y, acc)
            if finish == "bias":
                acc = acc + bias[n : n + bn].to(ts.f32)[None, :] + (m + ts.tile.arange(bm)).to(ts.f32)[:, None]
            elif finish == "rows":
                acc = acc - ts.tile.max(acc, 1)[:, None] + ts.tile.sum(acc, 0)[None, :]
            c[m : m + bm, n : n + bn] = acc

    return kernel


def _of_product(block: tuple[int, int, int], trans: tuple[bool, bool], finish: str) -> Callable[..., Any]:
    bm, bn, _ = block

    def reference(a: np.ndarray, b: np.ndarray, bias: np.ndarray, _c: np.ndarray) -> Any:
        a, b, bias = _wide(a, b, bias)
        a, b = a.T if trans[0] else a, b.T if trans[1] else b
        exact, size = a @ b, np.abs(a) @ np.abs(b)
        if finish == "bias":
            exact = exact + bias + np.arange(len(a))[:, None]
            size = size + np.abs(bias) + np.arange(len(a))[:, None]
        elif finish == "rows":
            m, n = exact.shape
            tiles = np.zeros((-(-m // bm) * bm, -(-n // bn) * bn))
            sizes = tiles.copy()
            tiles[:m, :n], sizes[:m, :n] = exact, size
            blocks = tiles.reshape(-1, bm, tiles.shape[1] // bn, bn)
            around = sizes.reshape(blocks.shape)
            blocks = blocks - blocks.max(3, keepdims=True) + blocks.sum(1, keepdims=True)
            around = around + around.max(3, keepdims=True) + around.sum(1, keepdims=True)
            exact, size = blocks.reshape(tiles.shape)[:m, :n], around.reshape(tiles.shape)[:m, :n]
        return Close(exact, size)

    return reference


def _drawn(seed: int, **knobs: int) -> Case:
    """Return a product in a random tile, stored in a random way, with a random end."""
    rng = np.random.default_rng(seed)
    block = tuple(int(rng.choice(sizes)) for sizes in (range(16, 209, 16), range(8, 209, 8), (16, 32, 48, 64, 80, 96)))
    trans = bool(rng.integers(2)), bool(rng.integers(2))
    finish = str(rng.choice(["none", "bias", "rows"]))
    m, n = (int(rng.integers(1, 3)) * size + 8 * int(rng.integers(-1, 2)) for size in block[:2])
    m, n, k = max(m, 8), max(n, 8), int(rng.integers(1, 12)) * 8
    left, right = (k, m) if trans[0] else (m, k), (n, k) if trans[1] else (k, n)

    def operands(rng: np.random.Generator) -> list[Any]:
        return [_random(rng, *left), _random(rng, *right), _random(rng, n), Output((m, n), ts.bf16)]

    name = f"{seed}: {'x'.join(map(str, block))} {finish} {trans}{' as written' if knobs else ''}"
    reference = _of_product(block, trans, finish)
    return Case(name, _product(block, trans, finish), operands, reference, BF16, backends=EVERYWHERE, knobs=knobs)


@conformance([_drawn(seed, **knobs) for seed in range(6) for knobs in ({}, {"fit_blocks": 0})])
def test_products(case: Case, backend: str) -> None:
    check(case, backend)


def _heads(size: int, keys: int) -> Callable[..., Any]:
    def kernel(
        q: ts.Tensor["S", size, ts.bf16],
        k: ts.Tensor["S", size, ts.bf16],
        v: ts.Tensor["S", size, ts.bf16],
        out: ts.Tensor["S", size, ts.bf16],
    ):
        for at in ts.tile.grid((S, 64)):
            query = q[at : at + 64, :]
            acc = ts.tile.zeros((64, size), ts.f32)
            top = ts.tile.full((64,), -float("inf"), ts.f32)
            total = ts.tile.zeros((64,), ts.f32)
            for n in ts.tile.range(0, ts.tile.minimum(S, at + 64), keys):
                scores = ts.tile.mma(query, k[n : n + keys, :].T) * (1 / math.sqrt(size))
                scores = ts.tile.causal_mask(scores, at, n)
                new = ts.tile.maximum(top, ts.tile.row_max(scores))
                alpha = ts.tile.exp(top - new)
                p = ts.tile.exp(scores - new[:, None])
                total = alpha * total + ts.tile.row_sum(p)
                acc = ts.tile.mma(p.to(ts.bf16), v[n : n + keys, :], alpha[:, None] * acc)
                top = new
            out[at : at + 64, :] = acc / total[:, None]

    return kernel


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, _out: np.ndarray) -> np.ndarray:
    q, k, v = _wide(q, k, v)
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T / math.sqrt(q.shape[1]), -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p @ v / p.sum(1, keepdims=True)


@conformance(
    [
        Case(
            f"heads of {size}, {keys} keys",
            _heads(size, keys),
            lambda rng, size=size: [*(_random(rng, 144, size) for _ in range(3)), Output((144, size), ts.bf16)],
            _attention,
            Tolerance(relative=2.0**-6, absolute=2.0**-6),
            backends=EVERYWHERE,
        )
        for size, keys in (
            (80, 64),
            (96, 48),
            (16, 80),
            (112, 32),
            (8, 32),
            (40, 64),
            (72, 48),
            (88, 128),
            (184, 64),
            (232, 32),
        )
    ]
)
def test_attention(case: Case, backend: str) -> None:
    check(case, backend)


def _middle(
    a: ts.Tensor["S", 104, ts.bf16],
    b: ts.Tensor[120, 120, ts.bf16],
    c: ts.Tensor["S", 104, ts.bf16],
    d: ts.Tensor["S", 120, ts.bf16],
):
    for at in ts.tile.grid((S, 64)):
        x = ts.tile.mma(a[at : at + 64, :], b[:104, 8:112])
        c[at : at + 64, :] = x - ts.tile.max(x, 1)[:, None]
        d[at : at + 64, :104] = ts.tile.mma(a[at : at + 64, :] + 1, b[16:, 16:])


def _of_middle(a: np.ndarray, b: np.ndarray, _c: np.ndarray, d: np.ndarray) -> tuple[Close, Close]:
    a, b, d = _wide(a, b, d)
    exact, size = a @ b[:104, 8:112], np.abs(a) @ np.abs(b[:104, 8:112])
    one = ml_dtypes.bfloat16(1)
    more = _wide(a.astype(ml_dtypes.bfloat16) + one)[0]
    d[:, :104] = more @ b[16:, 16:]
    around = np.ones(d.shape)
    around[:, :104] = np.abs(more) @ np.abs(b[16:, 16:])
    return Close(exact - exact.max(1, keepdims=True), size + size.max(1, keepdims=True)), Close(d, around)


@conformance(
    [
        Case(
            "rows that go on behind a tile, and what reduces them",
            _middle,
            lambda rng: [
                _random(rng, 72, 104),
                _random(rng, 120, 120),
                Output((72, 104), ts.bf16),
                Updated(_random(rng, 72, 120)),
            ],
            _of_middle,
            BF16,
            backends=EVERYWHERE,
        )
    ]
)
def test_tiles_that_do_not_grow(case: Case, backend: str) -> None:
    check(case, backend)


def _shifted(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K - 1, 64):
            acc = ts.tile.mma(a[m : m + 64, k + 1 : k + 65], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n + 4 : n + 68] = acc


def _of_shifted(a: np.ndarray, b: np.ndarray, _c: np.ndarray) -> Close:
    a, b = (_wide(a, b)[0][:, 1:], _wide(a, b)[1][:-1, :-4])
    untouched = np.zeros((len(a), 4))
    return Close(np.hstack([untouched, a @ b]), np.hstack([untouched, np.abs(a) @ np.abs(b)]))


@conformance(
    [
        Case(
            "a product of tiles that begin between multiples of 16 bytes",
            _shifted,
            lambda rng: [
                _random(rng, 72, 136),
                _random(rng, 136, 104),
                Updated(np.zeros((72, 104), ml_dtypes.bfloat16)),
            ],
            _of_shifted,
            BF16,
            backends=EVERYWHERE,
        )
    ]
)
def test_tiles_between_multiples_of_16_bytes(case: Case, backend: str) -> None:
    check(case, backend)


def _gated(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["K", "N", ts.bf16],
    y: ts.Tensor["M", "N", ts.bf16],
):
    for m, n in ts.tile.grid((M, 64), (N, 40)):
        left, right = ts.tile.zeros((64, 40), ts.f32), ts.tile.zeros((64, 40), ts.f32)
        norms = ts.tile.zeros((64,), ts.f32)
        for k in ts.tile.range(0, K, 48):
            x = a[m : m + 64, k : k + 48]
            left = ts.tile.mma(x, b[k : k + 48, n : n + 40], left)
            right = ts.tile.mma(x, c[k : k + 48, n : n + 40], right)
            norms = norms + ts.tile.sum(x.to(ts.f32) * x.to(ts.f32), 1)
        y[m : m + 64, n : n + 40] = left * right / (1 + norms)[:, None]


def _of_gated(a: np.ndarray, b: np.ndarray, c: np.ndarray, _y: np.ndarray) -> Close:
    a, b, c = _wide(a, b, c)
    scale = 1 + (a * a).sum(1, keepdims=True)
    left, right = np.abs(a) @ np.abs(b), np.abs(a) @ np.abs(c)
    return Close((a @ b) * (a @ c) / scale, left * right / scale)


@conformance(
    [
        Case(
            "two products and the norms of rows",
            _gated,
            lambda rng: [
                _random(rng, 72, 104),
                _random(rng, 104, 88),
                _random(rng, 104, 88),
                Output((72, 88), ts.bf16),
            ],
            _of_gated,
            BF16,
            backends=EVERYWHERE,
        )
    ]
)
def test_what_shares_operands(case: Case, backend: str) -> None:
    check(case, backend)


def _finished(
    a: ts.Tensor["M", "K", ts.f16],
    b: ts.Tensor["K", "N", ts.f16],
    c: ts.Tensor["N", "K", ts.f16],
    bias: ts.Tensor["N", ts.f32],
    scales: ts.Tensor["M", ts.f32],
    before: ts.Tensor["M", "N", ts.f16],
    y: ts.Tensor["M", "N", ts.f16],
):
    for m, n in ts.tile.grid((M, 72), (N, 40)):
        left, right = ts.tile.zeros((72, 40), ts.f32), ts.tile.zeros((72, 40), ts.f32)
        for k in ts.tile.range(0, K, 24):
            x = a[m : m + 72, k : k + 24]
            left = ts.tile.mma(x, b[k : k + 24, n : n + 40], left)
            right = ts.tile.mma(x, c[n : n + 40, k : k + 24].T, right)
        left = ts.tile.maximum(left + bias[n : n + 40][None, :], 0.0) * scales[m : m + 72][:, None]
        columns, rows = n + ts.tile.arange(40), ts.tile.arange(72) + m
        kept = ts.tile.where(columns[None, :] <= rows[:, None] * 2, left * right, -1.0)
        y[m : m + 72, n : n + 40] = kept + before[m : m + 72, n : n + 40].to(ts.f32)


def _of_finished(*arrays: np.ndarray) -> Close:
    a, b, c, bias, scales, before, _ = _wide(*arrays)
    left, size = np.maximum(a @ b + bias, 0) * scales[:, None], (np.abs(a) @ np.abs(b) + np.abs(bias))
    kept = np.arange(b.shape[1])[None, :] <= np.arange(len(a))[:, None] * 2
    around = size * np.abs(scales)[:, None] * (np.abs(a) @ np.abs(c.T)) + 1 + np.abs(before)
    return Close(np.where(kept, left * (a @ c.T), -1.0) + before, around)


@conformance(
    [
        Case(
            f"{m}x{n}x{k}, bias, scales, a mask and a residual",
            _finished,
            lambda rng, m=m, n=n, k=k: [
                *(rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n), (n, k))),
                rng.standard_normal(n).astype(np.float32),
                rng.standard_normal(m).astype(np.float32),
                rng.standard_normal((m, n)).astype(np.float16),
                Output((m, n), ts.f16),
            ],
            _of_finished,
            Tolerance(relative=2.0**-10, scaled=2.0**-18),
            backends=EVERYWHERE,
        )
        for m, n, k in ((72, 40, 48), (131, 77, 53), (64, 200, 40), (1, 9, 1))
    ]
)
def test_ends_of_products_whose_blocks_change(case: Case, backend: str) -> None:
    check(case, backend)
