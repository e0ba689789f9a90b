"""Whole kernels as users write them: attention, normalisations, saxpy, rotary embedding, fused epilogues."""

import math
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import Tolerance, of_rounding
from tests.conformance.data import normal
from tests.conformance.harness import Case, Close, Output, Updated, check, conformance, dtype

NEAR = Tolerance(relative=4e-6, scaled=2e-6, absolute=1e-7)
"""A dozen f32 operations and a few functions of moderate arguments."""


def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32) -> ts.Tensor["n", ts.f32]:
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


@conformance(
    [
        Case(
            f"saxpy-{n}",
            saxpy,
            lambda rng, n=n: [normal(rng, (n,), ts.f32), Updated(normal(rng, (n,), ts.f32)), 2.5],
            lambda x, y, alpha: Close(alpha * x.astype(np.float64) + y, np.abs(alpha * x) + np.abs(y)),
            Tolerance(scaled=2e-7),
        )
        for n in (1, 31, 1024, 10007)
    ]
)
def test_saxpy(case, backend):
    check(case, backend)


def softmax(X: ts.Tensor["M", "N", ts.f32], Y: ts.Tensor["M", "N", ts.f32], BM: ts.constexpr = 4):
    for m in ts.tile.grid((M, BM)):
        x = X[m : m + BM, :]
        e = ts.tile.exp(x - ts.tile.row_max(x)[:, None])
        Y[m : m + BM, :] = e / ts.tile.row_sum(e)[:, None]
    return Y


def online_softmax(
    X: ts.Tensor["M", "N", ts.f32],
    Y: ts.Tensor["M", "N", ts.f32],
    BM: ts.constexpr = 4,
    BN: ts.constexpr = 48,
):
    """Rows too long for a tile: running maximum and sum, then a second pass."""
    for m in ts.tile.grid((M, BM)):
        top = ts.tile.full((BM,), -math.inf, ts.f32)
        total = ts.tile.zeros((BM,), ts.f32)
        for n in ts.tile.range(0, N, BN):
            x = ts.tile.load(X[m : m + BM, n : n + BN], fill=-math.inf)
            new = ts.tile.maximum(top, ts.tile.row_max(x))
            total = total * ts.tile.exp(top - new) + ts.tile.row_sum(ts.tile.exp(x - new[:, None]))
            top = new
        for n in ts.tile.range(0, N, BN):
            Y[m : m + BM, n : n + BN] = ts.tile.exp(X[m : m + BM, n : n + BN] - top[:, None]) / total[:, None]
    return Y


def _softmax(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@conformance(
    [
        Case(
            f"{kernel.__name__}-{m}x{n}",
            kernel,
            lambda rng, m=m, n=n: [normal(rng, (m, n), ts.f32, 3.0), Output((m, n), ts.f32)],
            lambda x, y: Close(_softmax(x), _softmax(x) * (1 + np.ptp(x))),
            NEAR,
        )
        for kernel in (softmax, online_softmax)
        for m, n in ((10, 33), (4, 64), (1, 1), (7, 1000))
    ]
)
def test_softmax(case, backend):
    check(case, backend)


def layernorm(dt: Any) -> Any:
    def kernel(
        X: ts.Tensor["M", "N", dt],
        W: ts.Tensor["N", ts.f32],
        B: ts.Tensor["N", ts.f32],
        Y: ts.Tensor["M", "N", dt],
        mean: ts.Tensor["M", ts.f32],
        eps: ts.f32,
    ):
        for m in ts.tile.grid((M, 2)):
            x = X[m : m + 2, :].to(ts.f32)
            mu = ts.tile.row_sum(x) / N
            d = x - mu[:, None]
            # Padding never counts, so that the variance needs no mask.
            scale = ts.tile.rsqrt(ts.tile.row_sum(d * d) / N + eps)
            Y[m : m + 2, :] = d * scale[:, None] * W[:] + B[:]
            mean[m : m + 2] = mu
        return Y

    return kernel


def _layernorm(x: Any, w: Any, b: Any, y: Any, mean: Any, eps: float) -> tuple[Close, Close]:
    wide = x.astype(np.float32).astype(np.float64)
    mu = wide.mean(1, keepdims=True)
    d = wide - mu
    out = d / np.sqrt((d * d).mean(1, keepdims=True) + eps) * w + b
    size = np.abs(wide).max(1, keepdims=True) / np.sqrt((d * d).mean(1, keepdims=True) + eps)
    return Close(out, (size + np.abs(out)) * (np.abs(w) + 1)), Close(mu[:, 0], np.abs(wide).mean(1))


@conformance(
    [
        Case(
            f"layernorm-{name}-{m}x{n}",
            layernorm(dtype(name)),
            lambda rng, name=name, m=m, n=n: [
                normal(rng, (m, n), dtype(name)),
                normal(rng, (n,), ts.f32),
                normal(rng, (n,), ts.f32),
                Output((m, n), dtype(name)),
                Output((m,), ts.f32),
                1e-5,
            ],
            _layernorm,
            [NEAR.plus(of_rounding(dtype(name))), NEAR],
        )
        for name, m, n in (("f32", 5, 129), ("bf16", 3, 768), ("f16", 4, 100), ("f32", 1, 7))
    ]
)
def test_layernorm_over_odd_rows(case, backend):
    check(case, backend)


def rope(X: ts.Tensor["S", "H", "D", ts.f32], Y: ts.Tensor["S", "H", "D", ts.f32], BS: ts.constexpr = 8):
    for s, h in ts.tile.grid((S, BS), (H, 1)):
        half = D // 2
        lane = ts.tile.arange(half, dtype=ts.f32)
        angle = (s + ts.tile.arange(BS)).to(ts.f32)[:, None] * 100.0 ** (lane * (-2.0 / D))
        a, b = X[s : s + BS, h, 0:half], X[s : s + BS, h, half:D]
        c, sn = ts.tile.cos(angle), ts.tile.sin(angle)
        Y[s : s + BS, h, 0:half] = a * c - b * sn
        Y[s : s + BS, h, half:D] = a * sn + b * c
    return Y


def _rope(x: Any, y: Any) -> Close:
    half = x.shape[2] // 2
    angle = np.arange(x.shape[0])[:, None, None] * 100.0 ** (-2.0 * np.arange(half) / x.shape[2])
    a, b = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    out = np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], 2)
    # The angle has an error of its own: three roundings of a number as large as itself.
    return Close(out, np.concatenate([np.hypot(a, b) * (1 + angle)] * 2, 2))


@conformance(
    [
        Case(
            f"rope-{s}x{h}x{d}",
            rope,
            lambda rng, size=(s, h, d): [normal(rng, size, ts.f32), Output(size, ts.f32)],
            _rope,
            Tolerance(relative=1e-6, scaled=2e-6),
        )
        for s, h, d in ((11, 2, 16), (8, 1, 64), (3, 3, 6))
    ]
)
def test_rope(case, backend):
    check(case, backend)


def bias_gelu(
    X: ts.Tensor["M", "N", ts.bf16],
    b: ts.Tensor["N", ts.bf16],
    R: ts.Tensor["M", "N", ts.bf16],
    Y: ts.Tensor["M", "N", ts.bf16],
):
    for m, n in ts.tile.grid((M, 16), (N, 48)):
        v = X[m : m + 16, n : n + 48].to(ts.f32) + b[n : n + 48]
        Y[m : m + 16, n : n + 48] = ts.tile.gelu(v) + R[m : m + 16, n : n + 48]
    return Y


def _bias_gelu(x: Any, b: Any, r: Any, y: Any) -> Close:
    x, b, r = (v.astype(np.float32).astype(np.float64) for v in (x, b, r))
    v = x + b
    gelu = 0.5 * v * (1 + np.vectorize(math.erf)(v / math.sqrt(2)))
    return Close(gelu + r, np.abs(v) + np.abs(r))


@conformance(
    [
        Case(
            f"bias-gelu-{m}x{n}",
            bias_gelu,
            lambda rng, m=m, n=n: [
                normal(rng, (m, n), ts.bf16),
                normal(rng, (n,), ts.bf16),
                normal(rng, (m, n), ts.bf16),
                Output((m, n), ts.bf16),
            ],
            _bias_gelu,
            NEAR.plus(of_rounding(ts.bf16)),
        )
        for m, n in ((16, 48), (33, 100), (2, 7))
    ]
)
def test_bias_gelu_residual(case, backend):
    check(case, backend)


def attention(dt: Any) -> Any:
    def kernel(
        Q: ts.Tensor["B*H", "S", "D", dt],
        K: ts.Tensor["B*H", "T", "D", dt],
        V: ts.Tensor["B*H", "T", "D", dt],
        O: ts.Tensor["B*H", "S", "D", dt],  # noqa: E741
        L: ts.Tensor["B*H", "S", ts.f32],
        causal: ts.constexpr[bool],
        BM: ts.constexpr,
        BN: ts.constexpr,
    ):
        for bh, q in ts.tile.grid((Q.shape[0], 1), (S, BM)):
            queries = Q[bh, q : q + BM, :]
            acc = ts.tile.zeros((BM, D), ts.f32)
            m_i = ts.tile.full((BM,), -math.inf, ts.f32)
            l_i = ts.tile.zeros((BM,), ts.f32)
            for kv in ts.tile.range(0, T, BN):
                s = ts.tile.mma(queries, K[bh, kv : kv + BN, :].T) * (1.0 / math.sqrt(D))
                s = ts.tile.where(kv + ts.tile.arange(BN) < T, s, -math.inf)
                if causal:
                    s = ts.tile.causal_mask(s, q, kv)
                m_new = ts.tile.maximum(m_i, ts.tile.row_max(s))
                alpha = ts.tile.exp(m_i - m_new)
                p = ts.tile.exp(s - m_new[:, None])
                l_i = alpha * l_i + ts.tile.row_sum(p)
                acc = alpha[:, None] * acc + ts.tile.mma(p.to(dt), V[bh, kv : kv + BN, :])
                m_i = m_new
            O[bh, q : q + BM, :] = acc / l_i[:, None]
            L[bh, q : q + BM] = m_i + ts.tile.log(l_i)
        return O

    return kernel


def _attention(causal: bool) -> Any:
    def reference(q: Any, k: Any, v: Any, o: Any, lse: Any) -> tuple[Close, Close]:
        q, k, v = (x.astype(np.float32).astype(np.float64) for x in (q, k, v))
        s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
        if causal:
            s = np.where(np.arange(k.shape[1]) <= np.arange(q.shape[1])[:, None], s, -np.inf)
        top = s.max(-1, keepdims=True)
        e = np.exp(s - top)
        p = e / e.sum(-1, keepdims=True)
        return Close(p @ v, p @ np.abs(v)), Close(
            (top + np.log(e.sum(-1, keepdims=True)))[..., 0], np.abs(top[..., 0]) + 1
        )

    return reference


@conformance(
    [
        Case(
            f"attention-{name}-{heads}x{s}x{t}x{d}-by-{bm}x{bn}{'-causal' if causal else ''}",
            attention(dtype(name)),
            lambda rng, name=name, shapes=((heads, s, d), (heads, t, d)): [
                normal(rng, shapes[0], dtype(name)),
                normal(rng, shapes[1], dtype(name)),
                normal(rng, shapes[1], dtype(name)),
                Output(shapes[0], dtype(name)),
                Output(shapes[0][:2], ts.f32),
            ],
            _attention(causal),
            # The weights round to the operand's dtype before the second product: one unit roundoff of each.
            [
                of_rounding(dtype(name)).plus(Tolerance(scaled=2.0 ** -(dtype(name).mantissa + 1) + 4e-6)),
                Tolerance(scaled=4e-6),
            ],
            dict(causal=causal, BM=bm, BN=bn),
        )
        for name, (heads, s, t, d), (bm, bn), causal in (
            ("bf16", (3, 37, 37, 16), (16, 16), True),
            ("bf16", (2, 64, 96, 64), (64, 32), False),
            ("f16", (1, 33, 70, 40), (16, 32), False),
            ("f32", (2, 20, 20, 8), (16, 8), True),
            ("bf16", (1, 128, 128, 64), (64, 64), True),
            ("f16", (2, 5, 9, 24), (8, 16), False),
            ("bf16", (1, 333, 333, 64), (128, 64), True),
            ("bf16", (2, 130, 450, 128), (128, 128), False),
        )
    ]
)
def test_attention(case, backend):
    check(case, backend)


def mlp(
    X: ts.Tensor["M", 32, ts.bf16],
    U: ts.Tensor[32, "H", ts.bf16],
    W: ts.Tensor["H", 48, ts.bf16],
    Y: ts.Tensor["M", 48, ts.f32],
):
    """A fused two-layer perceptron: a product in the loop feeds another that is carried."""
    for m in ts.tile.grid((M, 32)):
        x = X[m : m + 32, :]
        acc = ts.tile.zeros((32, 48), ts.f32)
        for h in ts.tile.range(0, H, 32):
            hidden = ts.tile.silu(ts.tile.mma(x, U[:, h : h + 32]))
            acc = ts.tile.mma(hidden.to(ts.bf16), W[h : h + 32, :], acc)
        Y[m : m + 32, :] = acc
    return Y


def _mlp(x: Any, u: Any, w: Any, y: Any) -> Close:
    x, u, w = (v.astype(np.float32).astype(np.float64) for v in (x, u, w))
    hidden = x @ u
    silu = hidden / (1 + np.exp(-hidden))
    return Close(silu @ w, (np.abs(x) @ np.abs(u)) @ np.abs(w))


@conformance(
    [
        Case(
            f"mlp-{m}-{h}",
            mlp,
            lambda rng, m=m, h=h: [
                normal(rng, (m, 32), ts.bf16),
                normal(rng, (32, h), ts.bf16),
                normal(rng, (h, 48), ts.bf16),
                Output((m, 48), ts.f32),
            ],
            _mlp,
            Tolerance(scaled=2.0**-8),
        )
        for m, h in ((40, 96), (32, 50))
    ]
)
def test_fused_perceptron(case, backend):
    check(case, backend)
