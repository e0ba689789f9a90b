"""Kernels whose warps the schedule splits into roles, and their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.structure import GridOp
from tessera.schedule.gpu.copies import StageCopiesPass
from tessera.schedule.gpu.full_boxes import FullBoxesPass
from tessera.schedule.gpu.late_reductions import LateReductionsPass
from tessera.schedule.gpu.split_tiles import SplitTilesPass
from tessera.schedule.gpu.sums_of_products import SumsOfProductsPass
from tessera.schedule.gpu.warps import ChooseWarpsPass
from tessera.schedule.hopper.deepen_steps import DeepenStepsPass
from tessera.schedule.hopper.fit_blocks import FitBlocksPass
from tessera.schedule.hopper.late_waits import LateWaitsPass
from tessera.schedule.hopper.pair_tiles import PairTilesPass
from tessera.schedule.hopper.ping_pong import GroupBuffersPass
from tessera.schedule.hopper.pipeline_products import PipelineProductsPass
from tessera.schedule.hopper.skip_masks import SkipMasksPass
from tessera.schedule.hopper.split_k import SplitKPass
from tessera.schedule.hopper.start_together import StartTogetherPass
from tessera.schedule.hopper.stores import BulkStoresPass
from tessera.schedule.hopper.stream_k import StreamKPass
from tessera.schedule.hopper.warp_specialize import WarpSpecializePass
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned


def gemm(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def product_of(bm: int, bn: int, bk: int, end: str = "") -> Callable[..., None]:
    """Return a product in blocks of a size, with a bias; `end` adds what forbids other blocks."""

    def kernel(
        a: ts.Tensor["M", "K", ts.bf16],
        b: ts.Tensor["K", "N", ts.bf16],
        bias: ts.Tensor["N", ts.bf16],
        c: ts.Tensor["M", "N", ts.bf16],
    ):
        for m, n in ts.tile.grid((M, bm), (N, bn)):
            acc = ts.tile.zeros((bm, bn), ts.f32)
            for k in ts.tile.range(0, K, bk):
                acc = ts.tile.mma(a[m : m + bm, k : k + bk], b[k : k + bk, n : n + bn], acc)
            if end == "columns":
                acc = acc - ts.tile.max(acc, 0)[None, :]
            elif end == "number":
                acc = acc * m + n
            c[m : m + bm, n : n + bn] = acc + bias[n : n + bn].to(ts.f32)[None, :]

    return kernel


def gemm_wide(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 128)):
        acc = ts.tile.zeros((64, 128), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 128], acc)
        c[m : m + 64, n : n + 128] = acc


def gemm_transposed(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["N", "K", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[n : n + 64, k : k + 64].T, acc)
        c[m : m + 64, n : n + 64] = acc


def gemm_stored_transposed(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["N", "M", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[n : n + 64, m : m + 64] = acc.T


def gemm_scaled(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64] * 2, b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def attention(
    Q: ts.Tensor["H", "S", 64, ts.bf16],
    K: ts.Tensor["H", "S", 64, ts.bf16],
    V: ts.Tensor["H", "S", 64, ts.bf16],
    out: ts.Tensor["H", "S", 64, ts.f32],
) -> None:
    for h, m in ts.tile.grid((H, 1), (S, 64)):
        q = Q[h, m : m + 64, :]
        acc = ts.tile.zeros((64, 64), ts.f32)
        top = ts.tile.full((64,), -float("inf"), ts.f32)
        total = ts.tile.zeros((64,), ts.f32)
        for n in ts.tile.range(0, ts.tile.minimum(S, m + 64), 64):
            scores = ts.tile.causal_mask(ts.tile.mma(q, K[h, n : n + 64, :].T) * 0.125, m, n)
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            alpha = ts.tile.exp(top - new)
            p = ts.tile.exp(scores - new[:, None])
            total = alpha * total + ts.tile.row_sum(p)
            acc = ts.tile.mma(ts.tile.cast(p, ts.bf16), V[h, n : n + 64, :], alpha[:, None] * acc)
            top = new
        out[h, m : m + 64, :] = acc / total[:, None]


def slopes_of_keys(size: int, rows: int, columns: int) -> Any:
    """Return attention's gradients of keys and values without a scale: two sums, and statistics of each query."""

    def kernel(
        K: ts.Tensor["H", "S", size, ts.bf16],
        V: ts.Tensor["H", "S", size, ts.bf16],
        Q: ts.Tensor["H", "S", size, ts.bf16],
        G: ts.Tensor["H", "S", size, ts.bf16],
        lse: ts.Tensor["H", "S", ts.f32],
        delta: ts.Tensor["H", "S", ts.f32],
        of_k: ts.Tensor["H", "S", size, ts.f32],
        of_v: ts.Tensor["H", "S", size, ts.f32],
    ) -> None:
        for h, n in ts.tile.grid((H, 1), (S, rows)):
            keys = K[h, n : n + rows, :]
            values = V[h, n : n + rows, :]
            total_k = ts.tile.zeros((rows, size), ts.f32)
            total_v = ts.tile.zeros((rows, size), ts.f32)
            for m in ts.tile.range(0, S, columns):
                q = Q[h, m : m + columns, :]
                g = G[h, m : m + columns, :]
                scores = ts.tile.mma(keys, q.T)
                inside = (m + ts.tile.arange(columns) < S)[None, :]
                weights = ts.tile.where(inside, ts.tile.exp(scores - lse[h, m : m + columns][None, :]), 0.0)
                total_v = ts.tile.mma(weights.to(ts.bf16), g, total_v)
                slopes = weights * (ts.tile.mma(values, g.T) - delta[h, m : m + columns][None, :])
                total_k = ts.tile.mma(slopes.to(ts.bf16), q, total_k)
            of_k[h, n : n + rows, :] = total_k
            of_v[h, n : n + rows, :] = total_v

    return kernel


def attention_of(size: int, rows: int, columns: int, causal: bool) -> Any:
    """Return attention over heads of a size, in blocks of so many queries and keys."""
    scale = 1.4426950408889634 / size**0.5

    def kernel(
        Q: ts.Tensor["H", "S", size, ts.bf16],
        K: ts.Tensor["H", "S", size, ts.bf16],
        V: ts.Tensor["H", "S", size, ts.bf16],
        out: ts.Tensor["H", "S", size, ts.f32],
    ) -> None:
        for h, m in ts.tile.grid((H, 1), (S, rows)):
            q = Q[h, m : m + rows, :]
            acc = ts.tile.zeros((rows, size), ts.f32)
            top = ts.tile.full((rows,), -float("inf"), ts.f32)
            total = ts.tile.zeros((rows,), ts.f32)
            end = ts.tile.minimum(S, m + rows) if causal else S
            for n in ts.tile.range(0, end, columns):
                scores = ts.tile.mma(q, K[h, n : n + columns, :].T)
                if causal:
                    scores = ts.tile.causal_mask(scores, m, n)
                else:
                    scores = ts.tile.where(n + ts.tile.arange(columns) < S, scores, -float("inf"))
                new = ts.tile.maximum(top, ts.tile.row_max(scores))
                alpha = ts.tile.exp2((top - new) * scale)
                p = ts.tile.exp2(scores * scale - (new * scale)[:, None])
                total = alpha * total + ts.tile.row_sum(p)
                acc = ts.tile.mma(ts.tile.cast(p, ts.bf16), V[h, n : n + columns, :], alpha[:, None] * acc)
                top = new
            out[h, m : m + rows, :] = acc / total[:, None]

    return kernel


def gated_chain(
    x: ts.Tensor["M", 64, ts.bf16],
    g: ts.Tensor["F", 64, ts.bf16],
    u: ts.Tensor["F", 64, ts.bf16],
    d: ts.Tensor["F", 128, ts.bf16],
    y: ts.Tensor["M", 128, ts.f32],
) -> None:
    for m in ts.tile.grid((M, 64)):
        rows = x[m : m + 64, :]
        acc = ts.tile.zeros((64, 128), ts.f32)
        for f in ts.tile.range(0, F, 64):
            gate = ts.tile.mma(rows, g[f : f + 64, :].T)
            up = ts.tile.mma(rows, u[f : f + 64, :].T)
            hidden = ts.tile.cast(gate * ts.tile.sigmoid(gate) * up, ts.bf16)
            acc = ts.tile.mma(hidden, d[f : f + 64, :], acc)
        y[m : m + 64, :] = acc


def specialized(
    function: Any,
    sizes: dict[str, int],
    *,
    stages: int | None = None,
    num_warps: int | None = None,
    target: str = "sm_90a",
) -> ModuleOp:
    """Return a kernel with its warps split into roles, and nothing else scheduled."""
    module = aligned(function, sizes)
    WarpSpecializePass(target_named(target), Knobs(stages=stages, num_warps=num_warps)).apply(module)
    module.verify()
    return module


PASSES = (
    SumsOfProductsPass,
    FitBlocksPass,
    DeepenStepsPass,
    SplitTilesPass,
    SplitKPass,
    StreamKPass,
    PairTilesPass,
    WarpSpecializePass,
    LateReductionsPass,
    FullBoxesPass,
    StageCopiesPass,
    BulkStoresPass,
    ChooseWarpsPass,
    SkipMasksPass,
    PipelineProductsPass,
    LateWaitsPass,
    StartTogetherPass,
    GroupBuffersPass,
)


def scheduled(function: Any, sizes: dict[str, int], *, on: str = "sm_90a", **knobs: int | None) -> ModuleOp:
    """Return a kernel after all scheduling passes for a GPU, Hopper unless another is named."""
    module, target = aligned(function, sizes), target_named(on)
    for step in PASSES:
        step(target, Knobs(**knobs)).apply(module)
    module.verify()
    return module


def has_roles(module: ModuleOp) -> bool:
    return any(isinstance(op, RolesOp) for op in module.walk())


def note(module: ModuleOp, kind: str = "roles") -> str:
    """Return what the only grid of a module says of a kind first; empty when nothing is noted."""
    (grid,) = [op for op in module.walk() if isinstance(op, GridOp)]
    found: Any = grid.attributes.get(f"tessera_notes.{kind}")
    return "" if found is None else found.data[0].data


def random(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)
