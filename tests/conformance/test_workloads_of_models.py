"""Kernels of language models, as their users write them: odd sizes, tails, skipped and masked rows."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT, Tolerance, of_rounding
from tests.conformance.data import normal
from tests.conformance.harness import Close, Output, Updated, check, conformance
from tests.conformance.workloads import NEAR, case, wide

# Random numbers


@ts.function
def mixed_bits(seed, counter):
    state = ts.tile.cast(counter, ts.u32) ^ ts.tile.cast(seed, ts.u32)
    for _ in ts.tile.static_range(3):
        low = state * 0xCD9E8D57
        high = ts.tile.mulhi(state, ts.tile.full_like(state, 0xD2511F53))
        state = (low ^ (high >> 3)) + 0x9E3779B9
    return state


def hashed_dropout(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], keep: ts.Tensor["n", ts.bool_], seed: ts.i32):
    for i in ts.tile.grid((n, 96)):
        at = i + ts.tile.arange(96)
        kept = mixed_bits(seed, at) >> 8 < 0xB33333
        y[i : i + 96] = ts.tile.where(kept, x[i : i + 96] / 0.7, 0.0)
        keep[i : i + 96] = kept


def _hashed(x: np.ndarray, y: np.ndarray, keep: np.ndarray, seed: int) -> Any:
    state = np.arange(len(x), dtype=np.uint64) ^ np.uint64(seed % 2**32)
    for _ in range(3):
        low = state * np.uint64(0xCD9E8D57) % 2**32
        high = state * np.uint64(0xD2511F53) >> np.uint64(32)
        state = ((low ^ (high >> np.uint64(3))) + np.uint64(0x9E3779B9)) % 2**32
    kept = (state >> np.uint64(8)) < 0xB33333
    return np.where(kept, wide(x) / 0.7, 0), kept


@conformance(
    [
        case(
            f"dropout-{n}",
            hashed_dropout,
            lambda rng, n=n: [normal(rng, (n,), ts.f32), Output((n,), ts.f32), Output((n,), ts.bool_), -5],
            _hashed,
            [NEAR, EXACT],
        )
        for n in (0, 1, 97, 1000)
    ]
)
def test_dropout_by_a_hash(case, backend):
    check(case, backend)


# Language models


def rotary(x: ts.Tensor["T", "H", 40, ts.bf16], position: ts.Tensor["T", ts.i64]):
    for t, h in ts.tile.grid((T, 8), (H, 1)):
        angle = ts.tile.arange(20, dtype=ts.f32) * (-2.0 / 40)
        theta = ts.tile.cast(position[t : t + 8], ts.f32)[:, None] * ts.tile.exp2(angle * 13.287712379549449)
        one, two = x[t : t + 8, h, 0:20], x[t : t + 8, h, 20:40]
        c, s = ts.tile.cos(theta), ts.tile.sin(theta)
        x[t : t + 8, h, 0:20] = one * c - two * s
        x[t : t + 8, h, 20:40] = two * c + one * s


def _rotary(x: np.ndarray, position: np.ndarray) -> np.ndarray:
    theta = position[:, None, None] * 10000.0 ** (-np.arange(20) / 20)
    one, two = wide(x)[..., :20], wide(x)[..., 20:]
    return np.concatenate([one * np.cos(theta) - two * np.sin(theta), two * np.cos(theta) + one * np.sin(theta)], -1)


def cross_entropy(
    logits: ts.Tensor["N", "V", ts.f32],
    target: ts.Tensor["N", ts.i64],
    loss: ts.Tensor["N", ts.f32],
    counted: ts.Tensor[1, ts.i32],
):
    for n in ts.tile.grid((N, 1)):
        wanted = target[n]
        top, total = ts.tile.full((1,), -float("inf")), ts.tile.zeros((1,))
        for v in ts.tile.range(0, V, 64):
            part = ts.tile.load(logits[n, v : v + 64], fill=-float("inf"))
            higher = ts.tile.maximum(top, ts.tile.max(part, 0, keepdims=True))
            total = total * ts.tile.exp(top - higher) + ts.tile.sum(ts.tile.exp(part - higher), 0, keepdims=True)
            top = higher
        lse = top + ts.tile.log(total)
        if wanted == -100:
            loss[n : n + 1] = ts.tile.zeros((1,))
            for v in ts.tile.range(0, V, 64):
                logits[n, v : v + 64] = 0.0
        else:
            loss[n : n + 1] = lse - logits[n, wanted]
            ts.tile.atomic_add(counted[0], 1)
            for v in ts.tile.range(0, V, 64):
                at = v + ts.tile.arange(64, dtype=ts.i64)
                hit = ts.tile.where(at == wanted, 1.0, 0.0)
                logits[n, v : v + 64] = ts.tile.exp(logits[n, v : v + 64] - lse) - hit


def _cross_entropy(logits: np.ndarray, target: np.ndarray, loss: np.ndarray, counted: np.ndarray) -> Any:
    x = wide(logits)
    lse = np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)) + x.max(1)
    rows, skipped = np.arange(len(x)), target == -100
    at = np.where(skipped, 0, target)
    grad = np.exp(x - lse[:, None])
    grad[rows, at] -= 1
    grad[skipped] = 0
    return grad, np.where(skipped, 0, lse - x[rows, at]), np.array([(~skipped).sum()], np.int32)


def _targets(rng: np.random.Generator, rows: int, words: int) -> np.ndarray:
    return np.where(rng.random(rows) < 0.3, -100, rng.integers(0, words, rows)).astype(np.int64)


def masked_softmax(x: ts.Tensor["M", "N", ts.f16], mask: ts.Tensor["M", "N", ts.bool_], y: ts.Tensor["M", "N", ts.f16]):
    for m in ts.tile.grid((M, 3)):
        seen = mask[m : m + 3, :]
        scores = ts.tile.where(seen, ts.tile.cast(x[m : m + 3, :], ts.f32), -float("inf"))
        top = scores.max(1, keepdims=True)
        top = ts.tile.where(ts.tile.isinf(top), 0.0, top)
        weights = ts.tile.exp(scores - top)
        total = weights.sum(1, keepdims=True)
        y[m : m + 3, :] = ts.tile.where(total > 0, weights / total, 0.0)


def _masked_softmax(x: np.ndarray, mask: np.ndarray, y: np.ndarray) -> np.ndarray:
    weights = np.where(mask, np.exp(np.where(mask, wide(x), 0)), 0)
    total = weights.sum(1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1), 0)


def embedding(ids: ts.Tensor["n", ts.i32], table: ts.Tensor["V", "D", ts.bf16], y: ts.Tensor["n", "D", ts.f32]):
    for i in ts.tile.grid((n, 7)):
        y[i : i + 7, :] = table[ids[i : i + 7], :] * 2


def _embedding(ids: np.ndarray, table: np.ndarray, y: np.ndarray) -> np.ndarray:
    inside = (ids >= 0) & (ids < len(table))
    return np.where(inside[:, None], wide(table)[np.where(inside, ids, 0)] * 2, 0)


def paged(
    q: ts.Tensor["B", 16, ts.f16],
    keys: ts.Tensor["P", 8, 16, ts.f16],
    values: ts.Tensor["P", 8, 16, ts.f16],
    pages: ts.Tensor["B", "most", ts.i32],
    lengths: ts.Tensor["B", ts.i32],
    y: ts.Tensor["B", 16, ts.f32],
):
    for b in ts.tile.grid((B, 1)):
        query, length = ts.tile.cast(q[b, :], ts.f32), lengths[b]
        top, total, out = -1e30, 0.0, ts.tile.zeros((16,))
        for p in ts.tile.range(0, ts.cdiv(length, 8)):
            page = pages[b, p]
            scores = ts.tile.sum(keys[page, :, :] * query[None, :], 1) * 0.25
            scores = ts.tile.where(p * 8 + ts.tile.arange(8) < length, scores, -float("inf"))
            higher = ts.tile.maximum(top, ts.tile.max(scores))
            weights, kept = ts.tile.exp(scores - higher), ts.tile.exp(top - higher)
            total = total * kept + ts.tile.sum(weights)
            out = out * kept + ts.tile.sum(weights[:, None] * values[page, :, :], 0)
            top = higher
        y[b, :] = out / total if length > 0 else out


def _paged(q: Any, keys: Any, values: Any, pages: Any, lengths: Any, y: Any) -> np.ndarray:
    result = np.zeros(y.shape)
    for b, length in enumerate(lengths):
        if length:
            k, v = (wide(x)[pages[b]].reshape(-1, 16)[:length] for x in (keys, values))
            scores = k @ wide(q)[b] * 0.25
            weights = np.exp(scores - scores.max())
            result[b] = weights @ v / weights.sum()
    return result


def adamw(
    p: ts.Tensor["n", ts.bf16],
    g: ts.Tensor["n", ts.bf16],
    m: ts.Tensor["n", ts.f32],
    v: ts.Tensor["n", ts.f32],
    rate: ts.f32,
    step: ts.i32,
):
    for i in ts.tile.grid((n, 128)):
        grad, weight = ts.tile.cast(g[i : i + 128], ts.f32), ts.tile.cast(p[i : i + 128], ts.f32)
        first, second = m[i : i + 128] * 0.9 + grad * 0.1, v[i : i + 128] * 0.99 + grad * grad * 0.01
        count = ts.tile.cast(step, ts.f32)
        hat = first / (1.0 - ts.tile.pow(0.9, count))
        scale = ts.tile.sqrt(second / (1.0 - ts.tile.pow(0.99, count))) + 1e-6
        p[i : i + 128] = weight * (1.0 - rate * 0.1) - rate * hat / scale
        m[i : i + 128] = first
        v[i : i + 128] = second


def _adamw(p: Any, g: Any, m: Any, v: Any, rate: float, step: int) -> Any:
    grad, rate = wide(g), float(np.float32(rate))
    first, second = wide(m) * 0.9 + grad * 0.1, wide(v) * 0.99 + grad * grad * 0.01
    scale = np.sqrt(second / (1 - 0.99**step)) + 1e-6
    return wide(p) * (1 - rate * 0.1) - rate * (first / (1 - 0.9**step)) / scale, first, second


@conformance(
    [
        case(
            f"rotary-{tokens}x{heads}",
            rotary,
            lambda rng, s=(tokens, heads): [
                Updated(normal(rng, (*s, 40), ts.bf16)),
                rng.integers(0, 500, s[0]).astype(np.int64),
            ],
            lambda x, at: Close(_rotary(x, at), np.abs(wide(x)).max() * 2 if x.size else 0.0),
            of_rounding(ts.bf16).plus(Tolerance(scaled=1e-4)),
        )
        for tokens, heads in ((1, 3), (13, 2), (0, 4))
    ]
    + [
        case(
            f"cross-entropy-{rows}x{words}",
            cross_entropy,
            lambda rng, s=(rows, words): [
                Updated(normal(rng, s, ts.f32, 4.0)),
                _targets(rng, *s),
                Output((s[0],), ts.f32),
                Updated(np.zeros(1, np.int32)),
            ],
            _cross_entropy,
            [NEAR, NEAR, EXACT],
        )
        for rows, words in ((17, 150), (5, 1), (3, 64))
    ]
    + [
        case(
            f"masked-softmax-{m}x{n}",
            masked_softmax,
            lambda rng, s=(m, n): [
                normal(rng, s, ts.f16),
                (rng.random(s) < 0.5) & (np.arange(s[0]) % 4 != 1)[:, None],
                Output(s, ts.f16),
            ],
            _masked_softmax,
            of_rounding(ts.f16, 2).plus(NEAR),
        )
        for m, n in ((10, 37), (4, 1), (2, 200))
    ]
    + [
        case(
            f"embedding-{n}x{d}",
            embedding,
            lambda rng, n=n, d=d: [
                rng.integers(-3, 14, n).astype(np.int32),
                normal(rng, (11, d), ts.bf16),
                Output((n, d), ts.f32),
            ],
            _embedding,
            EXACT,
        )
        for n, d in ((20, 48), (3, 5), (0, 9))
    ]
    + [
        case(
            "paged",
            paged,
            lambda rng: [
                normal(rng, (6, 16), ts.f16),
                normal(rng, (9, 8, 16), ts.f16),
                normal(rng, (9, 8, 16), ts.f16),
                rng.integers(0, 9, (6, 4)).astype(np.int32),
                np.array([32, 0, 1, 9, 17, 24], np.int32),
                Output((6, 16), ts.f32),
            ],
            _paged,
            Tolerance(relative=1e-4, absolute=1e-4),
        ),
        case(
            "adamw",
            adamw,
            lambda rng: [
                Updated(normal(rng, (333,), ts.bf16)),
                normal(rng, (333,), ts.bf16),
                Updated(normal(rng, (333,), ts.f32)),
                Updated(np.abs(normal(rng, (333,), ts.f32))),
                0.01,
                7,
            ],
            _adamw,
            [of_rounding(ts.bf16).plus(NEAR), NEAR, NEAR],
        ),
    ]
)
def test_language_models(case, backend):
    check(case, backend)
