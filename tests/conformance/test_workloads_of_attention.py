"""Attention in the forms that its users write: scales of either sign, biases, windows, lengths, sinks, shared keys."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import Tolerance
from tests.conformance.data import normal
from tests.conformance.harness import Close, Output, check, conformance
from tests.conformance.workloads import case, wide

SIZE, ROWS, KEYS = 32, 64, 32
NEAR = Tolerance(relative=4e-3, scaled=4e-3, absolute=1e-5)

Q = ts.Tensor["H", "S", SIZE, ts.f16]
KV = ts.Tensor["G", "T", SIZE, ts.f16]


def plain(q: Q, k: KV, v: KV, y: ts.Tensor["H", "S", SIZE, ts.f32], scale: ts.f32):
    for h, m in ts.tile.grid((H, 1), (S, ROWS)):
        top, total = ts.tile.full((ROWS,), -float("inf")), ts.tile.zeros((ROWS,))
        acc = ts.tile.zeros((ROWS, SIZE))
        for n in ts.tile.range(0, T, KEYS):
            scores = ts.tile.mma(q[h, m : m + ROWS, :], k[h, n : n + KEYS, :].T) * scale
            scores = ts.tile.where((n + ts.tile.arange(KEYS) < T)[None, :], scores, -float("inf"))
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            p, kept = ts.tile.exp(scores - new[:, None]), ts.tile.exp(top - new)
            total = total * kept + ts.tile.row_sum(p)
            acc = ts.tile.mma(ts.tile.cast(p, ts.f16), v[h, n : n + KEYS, :], acc * kept[:, None])
            top = new
        y[h, m : m + ROWS, :] = acc / total[:, None]


def windowed(
    q: Q,
    k: KV,
    v: KV,
    slope: ts.Tensor["H", ts.f32],
    y: ts.Tensor["H", "S", SIZE, ts.f32],
    lse: ts.Tensor["H", "S", ts.f32],
    window: ts.i32,
):
    for h, m in ts.tile.grid((H, 1), (S, ROWS)):
        rows = m + ts.tile.arange(ROWS) + (T - S)
        bias, group = slope[h], h // 2
        top, total = ts.tile.full((ROWS,), -float("inf")), ts.tile.zeros((ROWS,))
        acc = ts.tile.zeros((ROWS, SIZE))
        first = ts.tile.maximum(m + T - S - window, 0) // KEYS * KEYS
        for n in ts.tile.range(first, ts.tile.minimum(T, m + ROWS + T - S), KEYS):
            columns = n + ts.tile.arange(KEYS)
            apart = rows[:, None] - columns[None, :]
            scores = ts.tile.mma(q[h, m : m + ROWS, :], k[group, n : n + KEYS, :].T) * 0.2
            scores = scores - bias * ts.tile.cast(apart, ts.f32)
            scores = ts.tile.where((apart >= 0) & (apart <= window), scores, -1e30)
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            p, kept = ts.tile.exp(scores - new[:, None]), ts.tile.exp(top - new)
            total = total * kept + ts.tile.row_sum(p)
            acc = acc * kept[:, None]
            acc = ts.tile.mma(ts.tile.cast(p, ts.f16), v[group, n : n + KEYS, :], acc)
            top = new
        y[h, m : m + ROWS, :] = acc / total[:, None]
        lse[h, m : m + ROWS] = top + ts.tile.log(total)


def capped(
    q: Q,
    k: KV,
    v: KV,
    lengths: ts.Tensor["H", ts.i32],
    sink: ts.Tensor["H", ts.f32],
    y: ts.Tensor["H", "S", SIZE, ts.f32],
):
    for h, m in ts.tile.grid((H, 1), (S, ROWS)):
        length = lengths[h]
        top, total = ts.tile.full((ROWS,), 0.0) + sink[h], ts.tile.full((ROWS,), 1.0)
        acc = ts.tile.zeros((ROWS, SIZE))
        query = ts.tile.cast(q[h, m : m + ROWS, :] * 0.25, ts.f16)
        for n in ts.tile.range(0, length, KEYS):
            scores = 5.0 * ts.tile.tanh(ts.tile.mma(query, k[h, n : n + KEYS, :].T) / 5.0)
            if n + KEYS > length:
                scores = ts.tile.where((n + ts.tile.arange(KEYS) < length)[None, :], scores, -float("inf"))
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            p = ts.tile.exp(scores - new[:, None])
            kept = ts.tile.exp(top - new)
            total = total * kept + ts.tile.row_sum(p)
            acc = ts.tile.mma(ts.tile.cast(p, ts.f16), v[h, n : n + KEYS, :], acc * kept[:, None])
            top = new
        y[h, m : m + ROWS, :] = acc / total[:, None]


def kept_scores(q: Q, k: KV, v: KV, p: ts.Tensor["H", "S", "T", ts.f32], y: ts.Tensor["H", "S", SIZE, ts.f32]):
    """Two passes: scores are stored, then read again."""
    for h, m in ts.tile.grid((H, 1), (S, ROWS)):
        top, total = ts.tile.full((ROWS,), -float("inf")), ts.tile.zeros((ROWS,))
        for n in ts.tile.range(0, T, KEYS):
            scores = ts.tile.mma(q[h, m : m + ROWS, :], k[h, n : n + KEYS, :].T) * -0.3
            scores = ts.tile.where((n + ts.tile.arange(KEYS) < T)[None, :], scores, -float("inf"))
            p[h, m : m + ROWS, n : n + KEYS] = scores
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            total = total * ts.tile.exp(top - new) + ts.tile.row_sum(ts.tile.exp(scores - new[:, None]))
            top = new
        acc = ts.tile.zeros((ROWS, SIZE))
        for n in ts.tile.range(0, T, KEYS):
            weights = ts.tile.exp(p[h, m : m + ROWS, n : n + KEYS] - top[:, None]) / total[:, None]
            p[h, m : m + ROWS, n : n + KEYS] = weights
            acc = ts.tile.mma(ts.tile.cast(weights, ts.f16), v[h, n : n + KEYS, :], acc)
        y[h, m : m + ROWS, :] = acc


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return weights of rows, in f64."""
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def _plain(q: Any, k: Any, v: Any, y: Any, scale: float) -> Any:
    weights = softmax(wide(q) @ wide(k).transpose(0, 2, 1) * float(np.float32(scale)))
    return Close(weights @ wide(v), np.abs(wide(v)).max())


def _windowed(q: Any, k: Any, v: Any, slope: Any, y: Any, lse: Any, window: int) -> Any:
    keys, values = np.repeat(wide(k), 2, 0), np.repeat(wide(v), 2, 0)
    rows, columns = np.arange(q.shape[1]) + k.shape[1] - q.shape[1], np.arange(k.shape[1])
    apart = rows[:, None] - columns[None, :]
    scores = wide(q) @ keys.transpose(0, 2, 1) * 0.2 - wide(slope)[:, None, None] * apart
    scores = np.where((apart >= 0) & (apart <= window), scores, -np.inf)
    top = scores.max(-1)
    total = np.exp(scores - top[..., None]).sum(-1)
    return Close(softmax(scores) @ values, np.abs(values).max()), Close(top + np.log(total), 1.0)


def _capped(q: Any, k: Any, v: Any, lengths: Any, sink: Any, y: Any) -> Any:
    scores = 5 * np.tanh(wide(q * np.float16(0.25)) @ wide(k).transpose(0, 2, 1) / 5)
    hidden = np.arange(k.shape[1])[None, None, :] >= lengths[:, None, None]
    scores = np.where(hidden, -np.inf, scores)
    with_sink = np.concatenate([np.broadcast_to(wide(sink)[:, None, None], (*scores.shape[:2], 1)), scores], 2)
    return Close(softmax(with_sink)[..., 1:] @ wide(v), np.abs(wide(v)).max())


def _kept_scores(q: Any, k: Any, v: Any, p: Any, y: Any) -> Any:
    weights = softmax(wide(q) @ wide(k).transpose(0, 2, 1) * -0.3)
    return Close(weights, 1.0), Close(weights @ wide(v), np.abs(wide(v)).max())


def _given(heads: int, groups: int, s: int, t: int) -> Callable[[np.random.Generator], list[Any]]:
    def make(rng: np.random.Generator) -> list[Any]:
        sizes = ((heads, s, SIZE), (groups, t, SIZE), (groups, t, SIZE))
        return [normal(rng, size, ts.f16) for size in sizes]

    return make


@conformance(
    [
        case(
            f"plain-{s}x{t}-{scale}",
            plain,
            lambda rng, s=s, t=t, scale=scale: [*_given(2, 2, s, t)(rng), Output((2, s, SIZE), ts.f32), scale],
            _plain,
            NEAR,
        )
        for s, t, scale in ((70, 100, 0.2), (3, 33, -0.5), (64, 64, 0.0))
    ]
    + [
        case(
            f"windowed-{s}x{t}-{window}",
            windowed,
            lambda rng, s=s, t=t, window=window: [
                *_given(4, 2, s, t)(rng),
                np.array([0.5, -0.03, 0.0, 0.125], np.float32),
                Output((4, s, SIZE), ts.f32),
                Output((4, s), ts.f32),
                window,
            ],
            _windowed,
            NEAR,
        )
        for s, t, window in ((100, 100, 40), (20, 130, 1000), (65, 65, 0))
    ]
    + [
        case(
            "capped",
            capped,
            lambda rng: [
                *_given(5, 5, 66, 80)(rng),
                np.array([80, 0, 1, 32, 47], np.int32),
                normal(rng, (5,), ts.f32),
                Output((5, 66, SIZE), ts.f32),
            ],
            _capped,
            NEAR,
        ),
        case(
            "kept-scores",
            kept_scores,
            lambda rng: [
                *_given(2, 2, 70, 72)(rng),
                Output((2, 70, 72), ts.f32),
                Output((2, 70, SIZE), ts.f32),
            ],
            _kept_scores,
            NEAR,
        ),
    ]
)
def test_attention(case, backend):
    check(case, backend)
