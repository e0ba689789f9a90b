"""Products whose operands threads read from rings of copies, which the copy engine fills again."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.harness import Case, Output, check, conformance, dtype

T = ts.tile
M, DEPTH = 96, 6 * 64
K = ts.dims("K")
BACKENDS = ("cpu", "ptx-sm_90a", "cuda")


def computed(dt: Any, both: bool) -> Any:
    def kernel(x: ts.Tensor[M, DEPTH, dt], y: ts.Tensor[DEPTH, 64, ts.bf16], o: ts.Tensor[M, 64, ts.f32]):
        for i, j in T.grid((M, 64), (64, 64)):
            total = T.zeros((64, 64), ts.f32)
            for k in T.range(0, DEPTH, 64):
                a = T.cast(x[i : i + 64, k : k + 64], ts.bf16) * 2
                b = y[k : k + 64, j : j + 64]
                total = T.mma(a, T.maximum(b, 0) if both else b, total)
            o[i : i + 64, j : j + 64] = total

    return kernel


def beside(dt: Any, both: bool) -> Any:
    def kernel(x: ts.Tensor[M, DEPTH, dt], y: ts.Tensor[DEPTH, 64, dt], o: ts.Tensor[M, 64, ts.f32]):
        for i, j in T.grid((M, 64), (64, 64)):
            total, sums = T.zeros((64, 64), ts.f32), T.zeros((64,), ts.f32)
            for k in T.range(0, DEPTH, 64):
                a = x[i : i + 64, k : k + 64]
                total = T.mma(a, y[k : k + 64, j : j + 64], total)
                sums = sums + T.sum(T.cast(a, ts.f32), 1)
            o[i : i + 64, j : j + 64] = total + sums[:, None]

    return kernel


def rounded(dt: Any, both: bool) -> Any:
    def kernel(x: ts.Tensor[DEPTH, M, ts.f32], y: ts.Tensor[DEPTH, 64, ts.f32], o: ts.Tensor[M, 64, ts.f32]):
        for i, j in T.grid((M, 64), (64, 64)):
            total = T.zeros((64, 64), ts.f32)
            for k in T.range(0, DEPTH, 64):
                total = T.mma(x[k : k + 64, i : i + 64].T, y[k : k + 64, j : j + 64], total, compute=ts.tf32)
            o[i : i + 64, j : j + 64] = total

    return kernel


def case_of(make: Callable[..., Any], of: str, both: bool, stages: int) -> Case:
    dt = dtype(of)

    def expected(x: np.ndarray, y: np.ndarray, o: np.ndarray) -> np.ndarray:
        a, b = x.astype(np.float64), y.astype(np.float64)
        if make is computed:
            return (2 * a @ (np.maximum(b, 0) if both else b)).astype(np.float32)
        product = (a.T if make is rounded else a) @ b
        return (product + a.sum(1)[:, None] if make is beside else product).astype(np.float32)

    def arguments(rng: np.random.Generator) -> list[Any]:
        right = ts.bf16 if make is computed else dt
        x = rng.integers(-3, 4, (DEPTH, M) if make is rounded else (M, DEPTH)).astype(dt.numpy())
        return [x, rng.integers(-3, 4, (DEPTH, 64)).astype(right.numpy()), Output((M, 64), ts.f32)]

    name = f"{make.__name__}-{of}-{both}-{stages}"
    return Case(name, make(dt, both), arguments, expected, backends=BACKENDS, knobs={"stages": stages})


@conformance(
    [
        case_of(make, of, both, stages)
        for make, of, both, stages in (
            (computed, "bf16", False, 2),
            (computed, "bf16", True, 3),
            (computed, "f32", True, 2),
            (computed, "i8", False, 2),
            (beside, "bf16", False, 3),
            (beside, "f16", False, 2),
            (rounded, "f32", False, 2),
        )
    ]
)
def test_what_threads_read_is_not_filled_again_before(case: Case, backend: str) -> None:
    check(case, backend)


def clustered(cols: int, depth: int) -> Any:
    def kernel(x: ts.Tensor[256, K, ts.bf16], y: ts.Tensor[48, K, ts.bf16], o: ts.Tensor[256, 48, ts.f32]):
        for i, j in T.grid((256, 64), (48, cols)):
            total = T.zeros((64, cols), ts.f32)
            for k in T.range(0, T.minimum(K, 160), depth):
                total = T.mma(x[i : i + 64, k : k + depth], y[j : j + cols, k : k + depth].T, total)
            o[i : i + 64, j : j + cols] = total

    return kernel


def cluster_case(cols: int, depth: int, programs: int) -> Case:
    def arguments(rng: np.random.Generator) -> list[Any]:
        bf16 = ts.bf16.numpy()
        x, y = (rng.integers(-3, 4, shape).astype(bf16) for shape in ((256, 160), (48, 160)))
        return [x, y, Output((256, 48), ts.f32)]

    def expected(x: np.ndarray, y: np.ndarray, o: np.ndarray) -> np.ndarray:
        return (x.astype(np.float64) @ y.astype(np.float64).T).astype(np.float32)

    name = f"cluster-{cols}-{depth}-{programs}"
    return Case(name, clustered(cols, depth), arguments, expected, backends=BACKENDS, knobs={"cluster": programs})


@conformance(
    [
        cluster_case(cols, depth, programs)
        for cols, depth in ((8, 16), (8, 80), (24, 80), (48, 64))
        for programs in (2, 4)
    ]
)
def test_programs_of_a_cluster_fetch_equal_parts_of_what_they_share(case: Case, backend: str) -> None:
    check(case, backend)
