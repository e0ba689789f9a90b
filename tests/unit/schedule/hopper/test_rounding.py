"""Operands of tf32 products on Hopper: rounded by the copy engine or by threads, and for products alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DeviceError
from tessera.interp import interpret
from tessera.ir.text import parse_module, text_of
from tessera.ir.tile import roles, shared
from tessera.ir.tile.elementwise import RoundTf32Op
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import KernelOp
from tests.unit.schedule.hopper.kernels import has_roles, note, scheduled

BM, BN, BK = 128, 64, 32
Array = np.ndarray[Any, Any]


def rounded(x: Array) -> Array:
    """Round to tf32's 11 significant bits, ties to even, in float64."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, 11)), exponent - 11)


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def ops(module: Any, kind: type[Any]) -> list[Any]:
    return [op for op in module.walk() if isinstance(op, kind)]


def nn(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", "N", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc


def nt(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["N", "K", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[n : n + BN, k : k + BK].T, acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc


def tn(a: ts.Tensor["K", "M", ts.f32], b: ts.Tensor["K", "N", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[k : k + BK, m : m + BM].T, b[k : k + BK, n : n + BN], acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc


def tt(a: ts.Tensor["K", "M", ts.f32], b: ts.Tensor["N", "K", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[k : k + BK, m : m + BM].T, b[n : n + BN, k : k + BK].T, acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc


LAYOUTS = {
    nn: (lambda m, n, k: (random(m, k), random(k, n)), lambda a, b: (a, b)),
    nt: (lambda m, n, k: (random(m, k), random(n, k)), lambda a, b: (a, b.T)),
    tn: (lambda m, n, k: (random(k, m), random(k, n)), lambda a, b: (a.T, b)),
    tt: (lambda m, n, k: (random(k, m), random(n, k)), lambda a, b: (a.T, b.T)),
}


def run(kernel: Any, sizes: dict[str, int], arrays: list[Array], shape: tuple[int, ...], **knobs: int) -> Any:
    """Return what a kernel stores, and its schedule, which must have roles."""
    module = scheduled(kernel, sizes, **knobs)
    assert has_roles(module), note(module)
    out = np.full(shape, np.nan, np.float32)
    interpret(module, [*arrays, out])
    return out, module


def copied(module: Any) -> dict[str, bool]:
    """Return which tensors the copy engine fetches from, and whether it rounds."""
    (kernel,) = ops(module, KernelOp)
    return {kernel.info_of(op.tensor).name: op.tf32 is not None for op in ops(module, roles.BulkCopyOp)}


def close(out: Array, expected: Array) -> None:
    """Only the order of f32 sums may differ."""
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("knobs", [{}, {"stages": 2}, {"cluster": 2}, {"split_k": 2}], ids=str)
@pytest.mark.parametrize("size", [(128, 64, 32), (200, 112, 144), (16, 80, 400)], ids=str)
@pytest.mark.parametrize("kernel", LAYOUTS, ids=lambda kernel: kernel.__name__)
def test_products_of_rounded_operands(kernel: Any, size: tuple[int, int, int], knobs: dict[str, int]) -> None:
    m, n, k = size
    make, turn = LAYOUTS[kernel]
    arrays = make(m, n, k)
    out, _ = run(kernel, dict(M=m, N=n, K=k), list(arrays), (m, n), **knobs)
    a, b = turn(*arrays)
    close(out, rounded(a) @ rounded(b))


@pytest.mark.parametrize(
    ("kernel", "by_copies", "by_threads", "staged"),
    [(nt, 2, 0, 0), (nn, 1, 1, 0), (tt, 1, 1, 0), (tn, 0, 2, 1)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_who_rounds(kernel: Any, by_copies: int, by_threads: int, staged: int) -> None:
    module = scheduled(kernel, dict(M=256, N=128, K=512), bulk_stores=0)
    copies = ops(module, roles.BulkCopyOp)
    assert len(copies) == 2
    assert sum(op.tf32 is not None for op in copies) == by_copies
    assert len(ops(module, RoundTf32Op)) == by_threads
    assert len(ops(module, shared.SharedStoreOp)) == staged
    (product,) = ops(module, MmaOp)
    # What the instruction reads from shared memory is contiguous along K: it is the last axis as stored.
    for operand, along_k in ((product.a, 1), (product.b, 0)):
        if isinstance(operand.type, shared.SharedType):
            assert operand.type.permutation[along_k] == 1
    assert text_of(parse_module(text_of(module))) == text_of(module)


def test_an_operand_that_nobody_rounds_loses_bits() -> None:
    arrays = LAYOUTS[nt][0](128, 64, 32)
    module = scheduled(nt, dict(M=128, N=64, K=32))
    for copy in ops(module, roles.BulkCopyOp):
        copy.properties.pop("tf32")
    out = np.full((128, 64), np.nan, np.float32)
    interpret(module, [*arrays, out])
    exact = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64).T
    right = rounded(arrays[0]) @ rounded(arrays[1]).T
    assert np.linalg.norm(out - exact) > 1.5 * np.linalg.norm(right - exact)


def also_summed(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["N", "K", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        total = ts.tile.zeros((BM,), ts.f32)
        for k in ts.tile.range(0, K, BK):
            left = a[m : m + BM, k : k + BK]
            total = total + ts.tile.row_sum(left)
            acc = ts.tile.mma(left, b[n : n + BN, k : k + BK].T, acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc + total[:, None]


def test_a_tile_that_is_read_otherwise_keeps_its_bits() -> None:
    a, b = random(144, 80), random(48, 80)
    b[:] = 0  # leaves the sums alone
    out, module = run(also_summed, dict(M=144, N=48, K=80), [a, b], (144, 48))
    np.testing.assert_allclose(out[:, 0], a.astype(np.float64).sum(1), rtol=3e-6, atol=3e-6)
    assert sorted(op.tf32 is not None for op in ops(module, roles.BulkCopyOp)) == [False, True]


def with_residual(
    a: ts.Tensor["M", "M", ts.f32], b: ts.Tensor["M", "M", ts.f32], c: ts.Tensor["M", "M", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, BM), (M, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, M, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[n : n + BN, k : k + BK].T, acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc + a[m : m + BM, n : n + BN]


def test_a_tensor_that_is_read_otherwise_keeps_its_bits() -> None:
    a, b = random(144, 144), np.zeros((144, 144), np.float32)
    out, module = run(with_residual, dict(M=144), [a, b], (144, 144))
    np.testing.assert_array_equal(out, a)
    assert all(op.tf32 is not None for op in ops(module, roles.BulkCopyOp))


def read_both_ways(
    a: ts.Tensor["K", "K", ts.f32], b: ts.Tensor["N", "K", ts.f32], c: ts.Tensor["K", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((K, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            square = a[m : m + 64, k : k + 64]
            right = b[n : n + 64, k : k + 64].T
            acc = ts.tile.mma(square, right, acc, compute=ts.tf32)
            acc = ts.tile.mma(square.T, right, acc, compute=ts.tf32)
        c[m : m + 64, n : n + 64] = acc


def test_a_tile_that_products_read_along_both_axes() -> None:
    a, b = random(64, 64), random(96, 64)
    out, module = run(read_both_ways, dict(K=64, N=96), [a, b], (64, 96))
    close(out, (rounded(a) + rounded(a).T) @ rounded(b).T)
    assert copied(module) == {"a": False, "b": True}


def scaled(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", "N", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK] * 1.1, b[k : k + BK, n : n + BN], acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc


def test_what_is_computed_is_rounded_at_the_end() -> None:
    a, b = random(130, 100), random(100, 72)
    out, _ = run(scaled, dict(M=130, N=72, K=100), [a, b], (130, 72))
    close(out, rounded(a * np.float32(1.1)) @ rounded(b))


def attention(
    Q: ts.Tensor["H", "S", 64, ts.f32],
    K: ts.Tensor["H", "S", 64, ts.f32],
    V: ts.Tensor["H", "S", 64, ts.f32],
    out: ts.Tensor["H", "S", 64, ts.f32],
) -> None:
    for h, m in ts.tile.grid((H, 1), (S, 64)):
        q = Q[h, m : m + 64, :]
        acc = ts.tile.zeros((64, 64), ts.f32)
        total = ts.tile.zeros((64,), ts.f32)
        for n in ts.tile.range(0, S, 64):
            p = ts.tile.exp(ts.tile.mma(q, K[h, n : n + 64, :].T, compute=ts.tf32) * 0.125)
            total = total + ts.tile.row_sum(p)
            acc = ts.tile.mma(p, V[h, n : n + 64, :], acc, compute=ts.tf32)
        out[h, m : m + 64, :] = acc / total[:, None]


@pytest.mark.parametrize("pipeline", [0, 1])
def test_products_that_wait_for_each_other(pipeline: int) -> None:
    q, k, v = (random(2, 128, 64) + i for i in range(3))
    out, module = run(attention, dict(H=2, S=128), [q, k, v], (2, 128, 64), pipeline=pipeline)
    p = np.exp(np.einsum("hsd,htd->hst", rounded(q), rounded(k)) * 0.125)
    expected = rounded(p) @ rounded(v) / p.sum(-1, keepdims=True)
    # A tie of p, which was computed in f32, may round the other way.
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert copied(module) == {"Q": True, "K": True, "V": False}


def narrow(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", "N", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 32), (N, 32)):
        acc = ts.tile.zeros((32, 32), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 32, k : k + 32], b[k : k + 32, n : n + 32], acc, compute=ts.tf32)
        c[m : m + 32, n : n + 32] = acc


def test_a_product_that_is_left_to_warps_is_left_as_it_was() -> None:
    module = scheduled(narrow, dict(M=64, N=64, K=64))
    assert not has_roles(module)
    assert "rows in 64s" in note(module)
    assert not ops(module, RoundTf32Op)
    a, b = random(64, 64), random(64, 64)
    out = np.full((64, 64), np.nan, np.float32)
    interpret(module, [a, b, out])
    close(out, rounded(a) @ rounded(b))


def test_a_missing_fence_is_found() -> None:
    module = scheduled(tn, dict(M=128, N=64, K=64))
    (fence,) = ops(module, shared.ProxyFenceOp)
    fence.detach()
    with pytest.raises(DeviceError, match="no proxy fence"):
        interpret(module, [random(64, 128), random(64, 64), np.zeros((128, 64), np.float32)])


def turned_with_residual(
    a: ts.Tensor["M", "M", ts.f32], b: ts.Tensor["M", "M", ts.f32], c: ts.Tensor["M", "M", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, BM), (M, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, M, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc, compute=ts.tf32)
        c[m : m + BM, n : n + BN] = acc + a[m : m + BM, n : n + BN]


def test_a_large_tile_across_the_warps_is_stored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "BM", 256)
    monkeypatch.setitem(globals(), "BN", 128)
    a, b = random(140, 140), random(140, 140)
    out, module = run(turned_with_residual, dict(M=140), [a, b], (140, 140))
    close(out, rounded(a) @ rounded(b) + a)
    (split,) = ops(module, roles.RolesOp)
    assert [op.size_list for op in ops(split.consumer, roles.BulkStoreOp)] == [(32, 128)] * 8
    # What is added comes part by part, to sums that stay where they are.
    assert [op.size_list for op in ops(split.consumer, LoadOp) if op.result.uses.get_length()][-8:] == [(32, 128)] * 8
