"""Products of which an operand is loaded in a branch, or before the loop: threads copy it, as it lies in its tensor."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.harness import Case, Output, check, conformance, dtype

T = ts.tile
M = 64
DEPTH = 128


def in_a_branch(
    dt: Any, out: Any, left: tuple[int, int], right: tuple[int, int], turned: tuple[bool, bool], wide: int, cols: int
) -> Any:
    def kernel(x: ts.Tensor[*left, dt], y: ts.Tensor[*right, dt], o: ts.Tensor[M, wide, out], n: int):
        for i, j in T.grid((M, 64), (wide, cols)):
            total = T.zeros((64, cols), out)
            for k in T.range(0, DEPTH, 64):
                a = x[k : k + 64, i : i + 64].T if turned[0] else x[i : i + 64, k : k + 64]
                if k < n:
                    b = y[j : j + cols, k : k + 64].T if turned[1] else y[k : k + 64, j : j + cols]
                    total = T.mma(a, b, total)
            o[i : i + 64, j : j + cols] = total

    return kernel


def before_the_loop(
    dt: Any, out: Any, left: tuple[int, int], right: tuple[int, int], turned: tuple[bool, bool], wide: int, cols: int
) -> Any:
    def kernel(x: ts.Tensor[*left, dt], y: ts.Tensor[*right, dt], o: ts.Tensor[M, wide, out], n: int):
        for i, j in T.grid((M, 64), (wide, cols)):
            total = T.zeros((64, cols), out)
            b = y[j : j + cols, 0:64].T if turned[1] else y[0:64, j : j + cols]
            for k in T.range(0, DEPTH, 64):
                a = x[k : k + 64, i : i + 64].T if turned[0] else x[i : i + 64, k : k + 64]
                total = T.mma(a, b, total)
            o[i : i + 64, j : j + cols] = total

    return kernel


def case_of(name: str, make: Callable[..., Any], of: str, turned: tuple[bool, bool], wide: int, cols: int = 64) -> Case:
    dt = dtype(of)
    out = dtype("i32" if dt.is_int else "f32")
    left, right = (DEPTH, M) if turned[0] else (M, DEPTH), (wide, DEPTH) if turned[1] else (DEPTH, wide)

    def expected(x: np.ndarray, y: np.ndarray, o: np.ndarray, n: int) -> np.ndarray:
        a = (x.T if turned[0] else x).astype(np.float64)
        b = (y.T if turned[1] else y).astype(np.float64)
        if name == "branch":
            return (a[:, :n] @ b[:n]).astype(o.dtype)
        return ((a[:, :64] + a[:, 64:]) @ b[:64]).astype(o.dtype)

    def arguments(rng: np.random.Generator) -> list[Any]:
        low = 0 if of == "u8" else -3
        x, y = (rng.integers(low, 4, shape).astype(dt.numpy()) for shape in (left, right))
        return [x, y, Output((M, wide), out), 64]

    words = f"{name}-{of}-{'t' if turned[0] else 'n'}{'t' if turned[1] else 'n'}-{wide}-{cols}"
    kernel = make(dt, out, left, right, turned, wide, cols)
    return Case(
        words, kernel, arguments, expected, backends=("cpu", "scheduled-sm_90a", "ptx-sm_90a", "ptx-sm_80", "cuda")
    )


@conformance(
    [
        case_of(name, make, of, turned, wide)
        for name, make in (("branch", in_a_branch), ("before", before_the_loop))
        for of in ("fp8_e4m3", "i8", "u8", "bf16")
        for turned, wide in (
            ((False, False), 64),
            ((False, True), 64),
            ((True, False), 80),
            ((True, True), 1),
            ((False, False), 1),
        )
    ]
)
def test_operands_that_threads_copy_are_read_as_they_lie(case: Case, backend: str) -> None:
    check(case, backend)


@conformance(
    [
        case_of(name, make, of, turned, 64, cols)
        for name, make in (("branch", in_a_branch), ("before", before_the_loop))
        for of, turned in (("bf16", (False, False)), ("f16", (True, False)), ("i8", (False, True)))
        for cols in (8, 40)
    ]
)
def test_operands_that_threads_copy_have_rows_that_instructions_read(case: Case, backend: str) -> None:
    check(case, backend)


def again_behind_the_branch(dt: Any, first: str) -> Any:
    def kernel(x: ts.Tensor[M, DEPTH, dt], y: ts.Tensor[DEPTH, 64, dt], o: ts.Tensor[M, 64, ts.f32], n: int):
        for i, j in T.grid((M, 64), (64, 64)):
            one, two = T.zeros((64, 64), ts.f32), T.zeros((64, 64), ts.f32)
            for k in T.range(0, DEPTH, 64):
                a = T.where(x[i : i + 64, k : k + 64] > 0, x[i : i + 64, k : k + 64], 1)
                b = T.maximum(y[k : k + 64, j : j + 64], 0)
                if k < n:
                    one = T.mma(a, y[k : k + 64, j : j + 64] if first == "left" else b, one)
                two = T.mma(a if first == "left" else x[i : i + 64, k : k + 64], b, two)
            o[i : i + 64, j : j + 64] = one - two

    return kernel


def again_case(of: str, first: str) -> Case:
    dt = dtype(of)

    def expected(x: np.ndarray, y: np.ndarray, o: np.ndarray, n: int) -> np.ndarray:
        a, b = x.astype(np.float64), y.astype(np.float64)
        chosen, positive = np.where(a > 0, a, 1), np.maximum(b, 0)
        one = chosen[:, :n] @ (b if first == "left" else positive)[:n]
        return (one - (chosen if first == "left" else a) @ positive).astype(np.float32)

    def arguments(rng: np.random.Generator) -> list[Any]:
        x, y = (rng.integers(-3, 4, shape).astype(dt.numpy()) for shape in ((M, DEPTH), (DEPTH, 64)))
        return [x, y, Output((M, 64), ts.f32), 64]

    kernel = again_behind_the_branch(dt, first)
    return Case(f"again-{of}-{first}", kernel, arguments, expected, backends=("cpu", "ptx-sm_90a", "ptx-sm_80", "cuda"))


@conformance([again_case(of, first) for of in ("bf16", "f16", "f32") for first in ("left", "right")])
def test_operands_are_packed_again_behind_a_branch(case: Case, backend: str) -> None:
    check(case, backend)
