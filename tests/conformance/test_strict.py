"""The `strict` profile gives the same bits everywhere: those of the order of operations that this file spells out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.conformance.harness import Case, Output, Updated, bits_of, check, conformance, run
from tests.conformance.test_elementwise import SPECIAL
from tests.conformance.test_elementwise import _case as elementwise_case

CPUS = ("cpu", "cpu-x86-64", "cpu-x86-64-v3")
GPUS = ("threads-sm_80", "ptx-sm_80", "ptx-sm_90a", "cuda")


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return numbers of many magnitudes, whose sums depend on their order, with some zeros of both signs."""
    values = rng.standard_normal(shape) * 10.0 ** rng.uniform(-5, 5, shape)
    return np.where(rng.random(shape) < 0.1, np.copysign(0.0, values), values).astype(dtype)


def tree(x: np.ndarray, axis: int, combine: Callable[..., np.ndarray] = np.add, pad: float = -0.0) -> np.ndarray:
    """Return a reduction in the given order: the second half of a power of two of elements is added to the first."""
    x = np.moveaxis(x, axis, 0)
    count = 1 << (len(x) - 1).bit_length()
    x = np.concatenate([x, np.full((count - len(x), *x.shape[1:]), pad, x.dtype)])
    while len(x) > 1:
        x = combine(x[: len(x) // 2], x[len(x) // 2 :])
    return x[0]


def running(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """Return running sums in the given order: blocks of 1, 2, 4, ... elements are joined with their neighbours."""
    x = np.moveaxis(x, axis, 0).copy()
    length = 1
    while length < len(x):
        for first in range(0, len(x) - length, 2 * length):
            second = first + length
            if reverse:
                x[first:second] = x[second] + x[first:second]
            else:
                x[second : second + length] = x[second - 1] + x[second : second + length]
        length *= 2
    return np.moveaxis(x, 0, axis)


def _reduction(
    name: str, shape: tuple[int, ...], axis: Any, dtype: Any = ts.f32, fn: str = "sum", **options: Any
) -> Case:
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    kept = tuple(1 if a in axes else size for a, size in enumerate(shape))

    def kernel(X, Y):
        for _ in ts.tile.grid((1, 1)):
            Y[:] = ts.tile.reduce(X[:], axis, fn, keepdims=True)

    kernel.__annotations__ = {"X": ts.Tensor[(*shape, dtype)], "Y": ts.Tensor[(*kept, dtype)]}

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        flat = x.reshape(*shape[: axes[0]], -1, *shape[axes[-1] + 1 :])  # neighbouring axes count as one
        found = tree(flat, axes[0]) if fn == "sum" else tree(flat, axes[0], np.multiply, 1.0)
        return found.reshape(kept)

    return Case(
        name,
        kernel,
        lambda rng: [numbers(rng, shape, dtype.numpy()), Output(kept, dtype)],
        reference,
        profile="strict",
        backends=("interp", *CPUS, *GPUS),
        signed_zeros=True,
        **options,
    )


REDUCTIONS = [
    _reduction("one", (1,), 0),
    _reduction("five", (5,), 0),
    _reduction("row", (1000,), 0, knobs={"num_warps": 8}),
    _reduction("long-row", (4096,), 0),
    _reduction("rows", (33, 70), 1),
    _reduction("columns", (33, 70), 0, knobs={"num_warps": 2}),
    _reduction("squares", (64, 256), 1),
    _reduction("middle", (3, 37, 5), 1),
    _reduction("two-axes", (4, 9, 11), (1, 2)),
    _reduction("all-axes", (12, 33), None, ts.f64),
    _reduction("f64-rows", (6, 300), 1, ts.f64),
    _reduction("product", (7, 50), 1, fn="prod"),
]


@conformance(REDUCTIONS)
def test_reductions_take_one_order(case, backend):
    check(case, backend)


def _scan(name: str, shape: tuple[int, ...], axis: int, reverse: bool, **options: Any) -> Case:
    def kernel(X, Y):
        for _ in ts.tile.grid((1, 1)):
            Y[:] = ts.tile.cumsum(X[:], axis, reverse=reverse)

    kernel.__annotations__ = {"X": ts.Tensor[(*shape, ts.f32)], "Y": ts.Tensor[(*shape, ts.f32)]}

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return running(x, axis, reverse)

    return Case(
        name,
        kernel,
        lambda rng: [numbers(rng, shape, np.float32), Output(shape, ts.f32)],
        reference,
        profile="strict",
        backends=("interp", "cpu", "cpu-x86-64", *GPUS),
        signed_zeros=True,
        **options,
    )


SCANS = [
    _scan("scan-row", (300,), 0, False, knobs={"num_warps": 4}),
    _scan("scan-reversed", (5, 77), 1, True),
    _scan("scan-columns", (41, 20), 0, False),
    _scan("scan-rows-back", (3, 300), 1, True),
]


@conformance(SCANS)
def test_running_sums_take_one_order(case, backend):
    check(case, backend)


@ts.function
def joined(a, x, b, y):
    """Of numbers with weights, the weighted mean and the weight: neither exact nor commutative in the last bits."""
    weight = x + y
    return a + (b - a) * (y / weight), weight


def mean_of(left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return what `joined` does."""
    (a, x), (b, y) = left, right
    return a + (b - a) * (y / (x + y)), x + y


def means(
    X: ts.Tensor[6, 90, ts.f32], W: ts.Tensor[6, 90, ts.f32], Y: ts.Tensor[6, ts.f32], Z: ts.Tensor[6, 90, ts.f32]
):
    for _ in ts.tile.grid((1, 1)):
        mean, _weight = ts.tile.reduce((X[:], W[:]), 1, joined)
        Y[:] = mean
        so_far, _weights = ts.tile.associative_scan((X[:], W[:]), 1, joined)
        Z[:] = so_far


def _means(x: np.ndarray, w: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    parts = [(x[:, i], w[:, i]) for i in range(x.shape[1])]
    results = list(parts)
    length = 1
    while length < len(results):
        for at in range(len(results)):
            if at & length:
                results[at] = mean_of(results[(at & -length) - 1], results[at])
        length *= 2
    while len(parts) > 1:
        half = (1 << (len(parts) - 1).bit_length()) // 2
        parts = [mean_of(p, parts[i + half]) if i + half < len(parts) else p for i, p in enumerate(parts[:half])]
    return parts[0][0], np.stack([mean for mean, _ in results], 1)


MEANS = Case(
    "means",
    means,
    lambda rng: [
        rng.standard_normal((6, 90)).astype(np.float32),
        rng.uniform(0.5, 2, (6, 90)).astype(np.float32),
        Output((6,), ts.f32),
        Output((6, 90), ts.f32),
    ],
    _means,
    profile="strict",
    backends=("interp", "cpu", "cpu-x86-64", *GPUS),
)


@conformance([MEANS])
def test_combiners_take_one_order(case, backend):
    check(case, backend)


def fused(a: float, b: float, c: float, kind: Any) -> Any:
    """Return `a * b + c`, rounded once."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if kind is np.float64:
        return np.float64(float(exact))
    wide = float(exact)  # to odd, so that rounding again gives the nearest f32
    if Fraction(wide) != exact and np.float64(wide).view(np.int64) % 2 == 0:
        wide = float(np.nextafter(wide, np.inf if exact > Fraction(wide) else -np.inf))
    return np.float32(wide)


def chain(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return `total + a @ b`, product by product."""
    result, kind = total.copy(), total.dtype.type
    for i, j in np.ndindex(result.shape):
        for k in range(a.shape[1]):
            result[i, j] = fused(a[i, k], b[k, j], result[i, j], kind)
    return result


def _product(
    name: str,
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    dtype: Any,
    turned: bool = False,
    **options: Any,
) -> Case:
    (m, n, k), (bm, bn, bk) = sizes, block
    total = ts.f64 if dtype is ts.f64 else ts.f32

    def kernel(A, B, C):
        for i, j in ts.tile.grid((m, bm), (n, bn)):
            acc = C[i : i + bm, j : j + bn]
            for s in ts.tile.range(0, k, bk):
                right = B[j : j + bn, s : s + bk].T if turned else B[s : s + bk, j : j + bn]
                acc = ts.tile.mma(A[i : i + bm, s : s + bk], right, acc)
            C[i : i + bm, j : j + bn] = acc

    right = (n, k) if turned else (k, n)
    kernel.__annotations__ = {
        "A": ts.Tensor[m, k, dtype],
        "B": ts.Tensor[(*right, dtype)],
        "C": ts.Tensor[m, n, total],
    }

    def arguments(rng: np.random.Generator) -> list[Any]:
        a, b = (rng.standard_normal(shape).astype(dtype.numpy()) for shape in ((m, k), right))
        return [a, b, Updated(rng.standard_normal((m, n)).astype(total.numpy()))]

    return Case(
        name,
        kernel,
        arguments,
        lambda a, b, c: chain(a, b.T if turned else b, c),
        profile="strict",
        backends=("interp", *CPUS, *GPUS),
        **options,
    )


PRODUCTS = [
    _product("product-f32", (9, 20, 37), (8, 16, 16), ts.f32, knobs={"num_warps": 8, "stages": 3}),
    _product("product-bf16", (16, 40, 33), (16, 32, 33), ts.bf16),
    _product("product-turned", (2, 17, 150), (2, 16, 150), ts.f32, True),
    _product("product-row", (1, 40, 21), (1, 64, 8), ts.f32, knobs={"split_k": 2}),
    _product("product-f16", (5, 18, 24), (16, 16, 24), ts.f16, True),
    _product("product-f64", (6, 10, 19), (6, 10, 8), ts.f64),
]


@conformance(PRODUCTS)
def test_products_are_one_chain(case, backend):
    check(case, backend)


def _softmax(X, Y):
    for i in ts.tile.grid((5, 2)):
        Y[i : i + 2, :] = ts.tile.softmax(X[i : i + 2, :], 1)


_softmax.__annotations__ = {"X": ts.Tensor[5, 333, ts.f32], "Y": ts.Tensor[5, 333, ts.f32]}

ALIKE = [
    *(
        replace(elementwise_case(SPECIAL[first::3], kind, kind, (11, 23), (8, 32), "strict", specials=True), name=name)
        for kind in (ts.f32, ts.f64, ts.bf16)
        for first in (range(3) if kind is ts.f32 else (0,))
        for name in [f"functions-{kind}-{first}"]
    ),
    Case(
        "softmax",
        _softmax,
        lambda rng: [rng.standard_normal((5, 333)).astype(np.float32) * 4, Output((5, 333), ts.f32)],
        lambda x, y: np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True),
        profile="strict",
    ),
]


@pytest.mark.parametrize("case", ALIKE, ids=lambda case: case.name)
def test_functions_have_the_interpreters_bits(case):
    wanted = run(case, "interp")
    all_of_f32 = ("cpu-x86-64", "cpu-x86-64-v3", "cpu-x86-64-v4", "ptx-sm_80")
    for backend in {"functions-f64-0": all_of_f32[2:], "functions-bf16-0": all_of_f32[1:3]}.get(case.name, all_of_f32):
        for number, (got, want) in enumerate(zip(run(case, backend), wanted, strict=True)):
            both_nan = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
            wrong = (bits_of(got) != bits_of(want)) & ~both_nan
            assert not wrong.any(), (backend, number, got[wrong][:3], want[wrong][:3])


@ts.kernel
def halves(A: ts.Tensor[64, 64, ts.bf16], B: ts.Tensor[64, 64, ts.bf16], C: ts.Tensor[64, 64, ts.f32]):
    for _ in ts.tile.grid((1, 1)):
        C[:] = ts.tile.mma(A[:], B[:])


@pytest.mark.parametrize("kind", ["wgmma", "mma_sync"])
def test_matrix_instructions_are_refused(kind):
    tuned = ts.kernel.autotune(space={"mma_kind": [kind]})(halves.__wrapped__)
    with ts.numerics.profile("strict"), pytest.raises(ts.TesseraError, match="an order of its own") as caught:
        ts.compile(tuned, target="sm_90a")
    assert caught.value.code == "no-instruction"


@pytest.mark.parametrize("target", ["sapphirerapids", "aarch64", "x86-64-v4"])
def test_cpus_take_no_instruction_that_sums_apart(target):
    with ts.numerics.profile("strict"):
        assembly = ts.compile(halves, target=target, dump=["asm"]).dumps["asm"]
    assert re.search(r"vfmadd|fmla", assembly)
    assert not re.search(r"tdpbf16ps|vdpbf16ps|bfdot|bfmmla", assembly)


def test_the_librarys_products_are_one_chain_too():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 700)).astype(np.float32), rng.standard_normal((700, 9)).astype(np.float32)
    with ts.numerics.profile("strict"):
        np.testing.assert_array_equal(ts.ops.linalg.gemm(a, b), chain(a, b, np.zeros((3, 9), np.float32)))
