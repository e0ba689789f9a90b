"""The programs of the documentation and the seeds, against NumPy in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.errors import LanguageError
from tessera.frontend.signature import Signature
from tests.unit.frontend.support import built, ops, run

rng = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32) -> ts.Tensor["n", ts.f32]:
    """Simple SAXPY: y = alpha * x + y"""
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


@pytest.mark.parametrize("n", [1, 31, 32, 100])
def test_saxpy(n):
    x, y = normal(n), normal(n)
    expected = 2.5 * x.astype(float) + y
    np.testing.assert_allclose(run(saxpy, x, y, 2.5, linear_block=32), expected, rtol=1e-5, atol=1e-5)


def gemm(A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]):
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):
            acc = ts.tile.mma(A[m : m + ctx.BM, k : k + ctx.BK], B[k : k + ctx.BK, n : n + ctx.BN], acc)
        C[m : m + ctx.BM, n : n + ctx.BN] = acc
    return C


@pytest.mark.parametrize("shape", [(16, 16, 16), (17, 9, 33), (1, 1, 1)])
def test_gemm(shape):
    m, n, k = shape
    a, b = normal(m, k, dtype=ml_dtypes.bfloat16), normal(k, n, dtype=ml_dtypes.bfloat16)
    got = run(gemm, a, b, np.empty((m, n), np.float32), config=dict(BM=16, BN=8, BK=16))
    np.testing.assert_allclose(got, a.astype(float) @ b.astype(float), rtol=1e-5, atol=1e-5)


def test_gemm_keeps_sizes_at_run_time():
    kernel = built(gemm, dict(M=100, N=100, K=100), config=dict(BM=16, BN=8, BK=16))
    assert kernel.fixed_dims == {}
    assert kernel.returns == (2,)
    (loop,) = ops(kernel, "for")
    assert [str(r.type) for r in loop.results] == ["!tessera_tile.tile<16x8xf32>"]
    infos = ops(kernel, "kernel")[0].infos
    assert [info.written for info in infos] == [False, False, True]
    assert infos[0].dims == ("M", "K")


def softmax(X: ts.Tensor["M", "N", ts.f32], Y: ts.Tensor["M", "N", ts.f32], BM: ts.constexpr = 4):
    for m in ts.tile.grid((M, BM)):
        x = X[m : m + BM, :]
        e = ts.tile.exp(x - ts.tile.row_max(x)[:, None])
        Y[m : m + BM, :] = e / ts.tile.row_sum(e)[:, None]
    return Y


def reference_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_softmax_fixes_the_row_length():
    x = normal(10, 33)
    np.testing.assert_allclose(run(softmax, x, np.empty_like(x)), reference_softmax(x.astype(float)), rtol=1e-5)
    kernel = built(softmax, dict(M=10, N=33))
    assert kernel.fixed_dims == {"N": 33}
    assert "tensor<?x33xf32>" in str(kernel.module)


def flash_attention(
    Q: ts.Tensor["B*H", "S", "D", ts.bf16],
    K: ts.Tensor["B*H", "S", "D", ts.bf16],
    V: ts.Tensor["B*H", "S", "D", ts.bf16],
    O: ts.Tensor["B*H", "S", "D", ts.bf16],  # noqa: E741
    is_causal: bool = True,
):
    ctx = ts.tile.context()
    BM, BN = ctx.BLOCK_M, ctx.BLOCK_N
    for bh, q in ts.tile.grid((Q.shape[0], 1), (S, BM)):
        queries = Q[bh, q : q + BM, :]
        acc = ts.tile.zeros((BM, ctx.D), ts.f32)
        m_i = ts.tile.full((BM,), -float("inf"), ts.f32)
        l_i = ts.tile.zeros((BM,), ts.f32)
        for kv in ts.tile.range(0, ctx.S, BN):
            scores = ts.tile.mma(queries, K[bh, kv : kv + BN, :].T) * (1.0 / math.sqrt(ctx.D))
            if is_causal:
                scores = ts.tile.causal_mask(scores, q, kv)
            scores = ts.tile.where(kv + ts.tile.arange(BN) < S, scores, -float("inf"))
            m_new = ts.tile.maximum(m_i, ts.tile.row_max(scores))
            alpha = ts.tile.exp(m_i - m_new)
            p = ts.tile.exp(scores - m_new[:, None])
            l_i = alpha * l_i + ts.tile.row_sum(p)
            acc = alpha[:, None] * acc + ts.tile.mma(p.to(ts.bf16), V[bh, kv : kv + BN, :])
            m_i = m_new
        O[bh, q : q + BM, :] = acc / l_i[:, None]
    return O


@pytest.mark.parametrize("is_causal", [True, False])
def test_flash_attention(is_causal):
    q, k, v = (normal(3, 37, 16, dtype=ml_dtypes.bfloat16) for _ in range(3))
    config = dict(BLOCK_M=16, BLOCK_N=8)
    got = run(flash_attention, q, k, v, np.empty_like(q), config=config, constexprs=dict(is_causal=is_causal))
    scores = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / 4.0
    if is_causal:
        scores = np.where(np.tril(np.ones((37, 37), bool)), scores, -np.inf)
    np.testing.assert_allclose(got.astype(float), reference_softmax(scores) @ v.astype(float), rtol=0.02, atol=0.02)


def gemm_shared(A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        smem_a = ts.tile.alloc_shared((16, 32), ts.bf16, swizzle="xor")
        smem_b = ts.tile.alloc_shared((32, 16), ts.bf16, swizzle="xor")
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 32):
            ts.tile.cp_async(smem_a, A[m : m + 16, k : k + 32])
            ts.tile.cp_async(smem_b, B[k : k + 32, n : n + 16])
            ts.tile.barrier()
            acc = ts.tile.mma(smem_a, smem_b, acc)
            ts.tile.barrier()
        C[m : m + 16, n : n + 16] += acc
    return C


def test_explicit_gemm():
    a, b, c = (
        normal(40, 70, dtype=ml_dtypes.bfloat16),
        normal(70, 20, dtype=ml_dtypes.bfloat16),
        normal(40, 20),
    )
    expected = c + a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(run(gemm_shared, a, b, c), expected, rtol=1e-5, atol=1e-5)


def test_barrier_commits_and_waits_for_the_copies_before_it():
    kernel = built(gemm_shared, dict(M=40, N=20, K=70))
    names = [op.name.split(".")[1] for op in ops(kernel, "for")[0].body.block.ops]
    order = [n for n in names if n in ("cp_async", "commit_group", "wait_group", "barrier", "mma")]
    assert order == ["cp_async", "cp_async", "commit_group", "wait_group", "barrier", "mma", "barrier"]


def pipelined(A: ts.Tensor["M", "K", ts.f16], B: ts.Tensor["K", "N", ts.f16], C: ts.Tensor["M", "N", ts.f32]):
    """Two stages, explicit groups."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        a = ts.tile.alloc_shared((2, 16, 16), ts.f16)
        b = ts.tile.alloc_shared((2, 16, 16), ts.f16)
        acc = ts.tile.zeros((16, 16), ts.f32)
        ts.tile.cp_async(a[0], A[m : m + 16, 0:16])
        ts.tile.cp_async(b[0], B[0:16, n : n + 16])
        ts.tile.commit_group()
        stage = 0
        for k in ts.tile.range(0, K, 16):
            ts.tile.cp_async(a[1 - stage], A[m : m + 16, k + 16 : k + 32])
            ts.tile.cp_async(b[1 - stage], B[k + 16 : k + 32, n : n + 16])
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            acc = ts.tile.mma(a[stage], b[stage], acc)
            ts.tile.barrier()
            stage = (stage + 1) % 2
        ts.tile.wait_group(0)
        C[m : m + 16, n : n + 16] = acc
    return C


def test_explicit_pipeline():
    a, b = normal(20, 50, dtype=np.float16), normal(50, 20, dtype=np.float16)
    got = run(pipelined, a, b, np.empty((20, 20), np.float32))
    np.testing.assert_allclose(got, a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-4)


def two_phases(X: ts.Tensor["M", "N", ts.f32], P: ts.Tensor["M", ts.f32], Y: ts.Tensor["M", "N", ts.f32]):
    half = 0.5 * 2
    for m in ts.tile.grid((M, 4)):
        P[m : m + 4] = ts.tile.row_sum(X[m : m + 4, :]) * half
    for m in ts.tile.grid((M, 2)):
        Y[m : m + 2, :] = X[m : m + 2, :] / P[m : m + 2][:, None]
    return P, Y


def test_two_grids_run_in_order():
    x = np.abs(normal(7, 12)) + 1
    p, y = run(two_phases, x, np.empty(7, np.float32), np.empty_like(x))
    np.testing.assert_allclose(p, x.sum(1), rtol=1e-5)
    np.testing.assert_allclose(y, x / x.sum(1, keepdims=True), rtol=1e-5)
    assert len(ops(built(two_phases, dict(M=7, N=12)), "grid")) == 2


def by_columns(X: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 4), (N, 2), order=(1, 0)):
        X[m : m + 4, n : n + 2] = ts.tile.full((4, 2), 100 * m + n, ts.f32)
    return X


def test_the_first_dimension_of_a_grid_varies_fastest():
    x = run(by_columns, normal(5, 3))
    np.testing.assert_array_equal(x, 100 * (np.arange(5) // 4 * 4)[:, None] + np.arange(3) // 2 * 2)
    (grid,) = ops(built(by_columns, dict(M=5, N=3)), "grid")
    assert grid.block_sizes == (2, 4)


@pytest.mark.parametrize("order", [(0, 0), (1,), (0, 1, 2), 0, ("m", "n")])
def test_an_order_names_each_dimension_once(order):
    def kernel(X: ts.Tensor["M", "N", ts.f32]):
        for m, n in ts.tile.grid((M, 4), (N, 2), order=order):
            X[m, n] = 1.0

    with pytest.raises(LanguageError, match="order"):
        built(kernel, dict(M=5, N=3))


def rope(X: ts.Tensor["S", "D", ts.f32], Y: ts.Tensor["S", "D", ts.f32], BS: ts.constexpr[int] = 8):
    for s in ts.tile.grid((S, BS)):
        half = D // 2
        lane = ts.tile.arange(half, dtype=ts.f32)
        angle = (s + ts.tile.arange(BS)).to(ts.f32)[:, None] * 10000.0 ** (lane * (-2.0 / D))
        a, b = X[s : s + BS, 0:half], X[s : s + BS, half:D]
        c, sn = ts.tile.cos(angle), ts.tile.sin(angle)
        Y[s : s + BS, 0:half] = a * c - b * sn
        Y[s : s + BS, half:D] = a * sn + b * c
    return Y


def test_rope_slices_by_parts_of_a_dimension():
    x = normal(11, 16)
    angle = np.arange(11)[:, None] * 10000.0 ** (-2.0 * np.arange(8) / 16)
    a, b = x[:, :8].astype(float), x[:, 8:].astype(float)
    expected = np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], 1)
    np.testing.assert_allclose(run(rope, x, np.empty_like(x)), expected, rtol=1e-4, atol=1e-5)


def single_program(X: ts.Tensor["n", ts.f32], Y: ts.Tensor[1, ts.f32]):
    total = ts.tile.zeros((8,), ts.f32)
    for i in ts.tile.range(0, n, 8):
        total += X[i : i + 8]
    Y[0] = ts.tile.sum(total)
    return Y


def test_a_kernel_without_grid_is_one_program():
    x = normal(29)
    np.testing.assert_allclose(run(single_program, x, np.zeros(1, np.float32)), [x.sum()], rtol=1e-5)


def dropout(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], p: float, seed: int):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = ts.tile.dropout(x[i], p, seed, i)
    return y


def test_dropout_scales_what_it_keeps():
    x = np.ones(4000, np.float32)
    y = run(dropout, x, np.empty_like(x), 0.25, 7)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.03


B, H = ts.dims("B H")
T = ts.dims("T")


def symbols(x: ts.Tensor[B * H, T, ts.f32], y: ts.Tensor[B, H, T, ts.f32]):
    for b, h in ts.tile.grid((B, 1), (H, 1)):
        for t in ts.tile.range(0, T, 4):
            y[b, h, t : t + 4] = x[b * H + h, t : t + 4] + 1
    return y


def test_dimension_symbols():
    x = normal(6, 9)
    np.testing.assert_array_equal(run(symbols, x, np.empty((2, 3, 9), np.float32)), x.reshape(2, 3, 9) + 1)


def product_only(x: ts.Tensor["B*H", ts.f32], y: ts.Tensor["H", ts.f32]):
    for h in ts.tile.grid((H, 1)):
        for b in ts.tile.range(B):
            y[h] = x[b * H + h]
    return y


def test_a_factor_is_divided_out_of_a_product():
    x = normal(6)
    np.testing.assert_array_equal(run(product_only, x, np.empty(3, np.float32)), x[3:])


def powers(x: ts.Tensor[2**3, 1 << 2, ts.f32], y: ts.Tensor[2**3, ts.f32]):
    for i in ts.tile.grid((8, 8)):
        y[i : i + 8] = ts.tile.sum(x[i : i + 8, 0:4], axis=1)
    return y


def endless(x: ts.Tensor[2 ** (2**70), ts.f32]):
    for i in ts.tile.grid((8, 8)):
        x[i : i + 8] = 0.0


def test_sizes_are_powers():
    x = normal(8, 4)
    np.testing.assert_allclose(run(powers, x, np.empty(8, np.float32)), x.sum(1), rtol=1e-6, atol=1e-6)
    with pytest.raises(LanguageError, match="cannot be understood") as caught:
        Signature.of(endless)
    assert caught.value.code == "bad-annotation"
