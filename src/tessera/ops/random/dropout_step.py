"""The kernel and the steps behind dropout: a gradient drops what the call dropped, by the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tessera as ts
from tessera.ops import arrays, rows
from tessera.ops.annotations import F32, I64, Constant
from tessera.ops.random.masks import dropped
from tessera.ops.steps import Arguments, Gradient, Step, like

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
M, N = ts.dims("M N")


@ts.kernel
def drop(
    x: ts.Tensor[M, N, T],
    out: ts.Tensor[M, N, T],
    p: F32,
    seed: I64,
    acc: Constant,
    BM: Constant = 1,
    BN: Constant = 2048,
):
    """Drop elements of rows; `N` is divisible by 4 where there are several."""
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        first = (m + ts.tile.arange(BM, dtype=ts.i64)) * N + n
        out[m : m + BM, n : n + BN] = dropped(x[m : m + BM, n : n + BN].to(acc), first, p, seed, True)


def _results(x: Any, p: float, seed: int) -> Arguments:
    return (like(x, x.shape),)


def _launch(results: Arguments, x: Any, p: float, seed: int) -> None:
    if 0 not in x.shape:
        drop(x, results[0], p, seed, acc=rows.accumulator(arrays.dtype_of(x)))


SCHEMA = "(Tensor x, float p, SymInt seed) -> Tensor"
BACKWARD = Step("dropout_backward", SCHEMA, _results, _launch)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    return given[1:]


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    return 0, None, None


FORWARD = Step("dropout", SCHEMA, _results, _launch, Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of))
