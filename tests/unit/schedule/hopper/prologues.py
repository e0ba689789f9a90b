"""Products whose operands are computed from what the loop loads, with their values in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tessera as ts

BM, BN, BK = 128, 64, 64
Arrays = list[np.ndarray[Any, Any]]


def int8_left(a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK].to(ts.bf16), b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc


def int8_left_transposed(
    a: ts.Tensor["K", "M", ts.i8], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[k : k + BK, m : m + BM].T.to(ts.bf16), b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc


def u8_left(a: ts.Tensor["M", "K", ts.u8], b: ts.Tensor["N", "K", ts.f16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK].to(ts.f16), b[n : n + BN, k : k + BK].T, acc)
        c[m : m + BM, n : n + BN] = acc


def fp8_left(
    a: ts.Tensor["M", "K", ts.fp8_e4m3], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK].to(ts.bf16), b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc


def scaled_left(
    a: ts.Tensor["M", "K", ts.i8],
    scale: ts.Tensor["M", "S", ts.f32],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            factor = scale[m : m + BM, k // 128]
            left = (a[m : m + BM, k : k + BK].to(ts.f32) * factor[:, None]).to(ts.bf16)
            acc = ts.tile.mma(left, b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc


def int8_right(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.i8], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN].to(ts.bf16), acc)
        c[m : m + BM, n : n + BN] = acc


def int8_right_transposed(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["N", "K", ts.i8], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[n : n + BN, k : k + BK].to(ts.bf16).T, acc)
        c[m : m + BM, n : n + BN] = acc


def int8_both(a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["K", "N", ts.i8], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            left = a[m : m + BM, k : k + BK].to(ts.bf16)
            acc = ts.tile.mma(left, b[k : k + BK, n : n + BN].to(ts.bf16), acc)
        c[m : m + BM, n : n + BN] = acc


def int8_both_transposed(
    a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["N", "K", ts.i8], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            left = a[m : m + BM, k : k + BK].to(ts.bf16)
            acc = ts.tile.mma(left, b[n : n + BN, k : k + BK].T.to(ts.bf16), acc)
        c[m : m + BM, n : n + BN] = acc


def masked_by_a_tile(
    a: ts.Tensor["M", "K", ts.bf16],
    keep: ts.Tensor["M", "K", ts.u8],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            tile, kept = a[m : m + BM, k : k + BK], keep[m : m + BM, k : k + BK]
            left = ts.tile.where(kept > 0, tile, ts.tile.zeros((BM, BK), ts.bf16))
            acc = ts.tile.mma(left, b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc


def summed_rows(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    """An operand that is also used for something else."""
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        total = ts.tile.zeros((BM,), ts.f32)
        for k in ts.tile.range(0, K, BK):
            tile = a[m : m + BM, k : k + BK]
            total = total + ts.tile.row_sum(tile.to(ts.f32))
            acc = ts.tile.mma(tile, b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc + total[:, None]


def int8_right_with_row_sums(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["N", "K", ts.i8], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            part = ts.tile.mma(a[m : m + BM, k : k + BK], b[n : n + BN, k : k + BK].to(ts.bf16).T)
            acc = acc + part + ts.tile.row_sum(2.0 * part)[:, None]
        c[m : m + BM, n : n + BN] = acc


@dataclass(frozen=True)
class Case:
    """A kernel, how many tiles a stage copies, how many right operands it stages, and what it computes.

    Args:
        kernel: the kernel; its last argument is the result.
        copies: tiles that the copy engine fetches in an iteration.
        staged: right operands written to shared memory.
        arrays: makes the inputs for sizes M, N, K.
        expected: their product in float64.
    """

    kernel: Any
    copies: int
    staged: int
    arrays: Callable[[np.random.Generator, int, int, int], Arrays]
    expected: Callable[..., np.ndarray[Any, Any]]

    def __str__(self) -> str:
        return str(self.kernel.__name__)


def _floats(r: np.random.Generator, *shape: int, dtype: Any = ml_dtypes.bfloat16) -> Any:
    return r.standard_normal(shape).astype(dtype)


def _bytes(r: np.random.Generator, *shape: int, dtype: Any = np.int8) -> Any:
    info = np.iinfo(dtype)
    return r.integers(info.min, info.max + 1, shape).astype(dtype)


def _scaled(a: Any, s: Any, b: Any) -> Any:
    factor = np.repeat(s, 128, axis=1)[:, : a.shape[1]]
    return (a.astype(np.float32) * factor).astype(ml_dtypes.bfloat16).astype(np.float64) @ b


def _with_row_sums(a: Any, b: Any) -> Any:
    blocks = [a @ b[n : n + BN].T for n in range(0, len(b), BN)]
    return np.concatenate([block + 2.0 * block.sum(1, keepdims=True) for block in blocks], 1)


CASES = [
    Case(int8_left, 2, 0, lambda r, m, n, k: [_bytes(r, m, k), _floats(r, k, n)], lambda a, b: a @ b),
    Case(int8_left_transposed, 2, 0, lambda r, m, n, k: [_bytes(r, k, m), _floats(r, k, n)], lambda a, b: a.T @ b),
    Case(
        u8_left,
        2,
        0,
        lambda r, m, n, k: [_bytes(r, m, k, dtype=np.uint8), _floats(r, n, k, dtype=np.float16)],
        lambda a, b: a @ b.T,
    ),
    Case(
        fp8_left,
        2,
        0,
        lambda r, m, n, k: [_floats(r, m, k, dtype=ml_dtypes.float8_e4m3fn), _floats(r, k, n)],
        lambda a, b: a @ b,
    ),
    Case(
        scaled_left,
        2,
        0,
        lambda r, m, n, k: [_bytes(r, m, k), _floats(r, m, -(-k // 128), dtype=np.float32), _floats(r, k, n)],
        _scaled,
    ),
    Case(int8_right, 2, 0, lambda r, m, n, k: [_floats(r, m, k), _bytes(r, k, n)], lambda a, b: a @ b),
    Case(int8_right_transposed, 2, 0, lambda r, m, n, k: [_floats(r, m, k), _bytes(r, n, k)], lambda a, b: a @ b.T),
    Case(int8_right_with_row_sums, 2, 1, lambda r, m, n, k: [_floats(r, m, k), _bytes(r, n, k)], _with_row_sums),
    Case(int8_both, 2, 1, lambda r, m, n, k: [_bytes(r, m, k), _bytes(r, k, n)], lambda a, b: a @ b),
    Case(int8_both_transposed, 2, 1, lambda r, m, n, k: [_bytes(r, m, k), _bytes(r, n, k)], lambda a, b: a @ b.T),
    Case(
        masked_by_a_tile,
        3,
        0,
        lambda r, m, n, k: [_floats(r, m, k), r.integers(0, 2, (m, k)).astype(np.uint8), _floats(r, k, n)],
        lambda a, keep, b: (a * keep) @ b,
    ),
    Case(
        summed_rows,
        2,
        0,
        lambda r, m, n, k: [_floats(r, m, k), _floats(r, k, n)],
        lambda a, b: a @ b + a.sum(1, keepdims=True),
    ),
]


def reference(case: Case, arrays: Arrays) -> np.ndarray[Any, Any]:
    """Return what a case computes, in float64; scales stay what they are."""
    return case.expected(*(x if x.dtype == np.float32 else x.astype(np.float64) for x in arrays))
