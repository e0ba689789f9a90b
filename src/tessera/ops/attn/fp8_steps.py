"""The steps behind attention in 8 bits: rounding, blocks, kernels."""

from __future__ import annotations

from typing import Any

from tessera.numerics.dtypes import BY_NAME, DType, f32, fp8_e4m3
from tessera.ops import arrays, rows
from tessera.ops.attn import fp8_kernels as kernels
from tessera.ops.attn.blocks import Blocks
from tessera.ops.steps import Arguments, Step, like
from tessera.target.records import TargetRecord

CODES = ("fp8_e4m3", "fp8_e5m2")
"""Dtypes of arguments that are rounded already."""
_FEWER = 64
"""Queries and keys of a block where warps multiply: registers hold no more beside operands that are converted."""


def is_rounded(array: Any) -> bool:
    """Return whether an argument is of 8-bit numbers."""
    return arrays.dtype_of(array).name in CODES


def forward_constants(blocks: Blocks) -> dict[str, Any]:
    """Return the constants of the forward kernel that a machine and a call decide."""
    target, found = blocks.target, blocks.forward()
    if target.simt and not target.has("wgmma"):
        return {name: min(rows_of, _FEWER) for name, rows_of in found.items()}
    return found


def blocks_of(
    target: TargetRecord,
    dtype: DType,
    head: tuple[int, int],
    lengths: tuple[int, int],
    heads: tuple[int, int],
    causal: bool,
    block: bool,
) -> Blocks:
    """Return the blocks for a call; none is of queries or keys of two scales where each of their blocks has its own."""
    if block:
        return Blocks(target, dtype, head)
    return Blocks(target, dtype, head, lengths, heads, causal=causal)


def padded(keys: Any) -> Any:
    """Return how many keys turned values have."""
    return -(-keys // kernels.ROWS) * kernels.ROWS


def quantized(x: Any, block: bool, rotates: bool) -> Arguments:
    """Return queries or keys in e4m3, and their scales: `(B, H, 1)`, or one for each block of rows."""
    batch, heads, count, _ = map(int, x.shape)
    blocks = -(-count // kernels.ROWS)
    codes = like(x, x.shape, fp8_e4m3)
    scales = like(x, (batch, heads, blocks if block else 1), f32)
    found = None if block else largest(x, rotates)
    kernels.quantize(x, found, scales, codes, rotates=rotates)
    return codes, scales


def quantized_values(v: Any) -> Arguments:
    """Return values in 8 bits as `(B, G, E, L)`, keys in the kernel's order, and their scales, None as they are."""
    batch, groups, count, wide = map(int, v.shape)
    rounds = not is_rounded(v)
    codes = like(v, (batch, groups, wide, padded(count)), fp8_e4m3 if rounds else None)
    scales = like(v, (batch, groups), f32) if rounds else None
    found = largest(v, False) if rounds else None
    kernels.quantize_values(v, found, scales, codes)
    return codes, scales


def largest(x: Any, rotates: bool) -> Any:
    """Return the largest magnitudes of blocks of rows."""
    batch, heads, count, _ = map(int, x.shape)
    found = like(x, (batch, heads, -(-count // kernels.ROWS)), f32)
    kernels.largest(x, found, rotates=rotates)
    return found


def _results(q: Any, k: Any, v: Any, *others: Any) -> Arguments:
    shape = tuple(q.shape)
    return like(q, (*shape[:3], v.shape[3]), BY_NAME[others[-1]]), like(q, shape[:3], f32)


def _launch(
    results: Arguments,
    q: Any,
    k: Any,
    v: Any,
    q_scale: Any,
    k_scale: Any,
    v_scale: Any,
    scale: float,
    causal: bool,
    block: bool,
    hadamard: bool,
    dtype: str,
) -> None:
    out, lse = results
    if 0 in out.shape[:3]:
        return
    if k.shape[2] == 0:
        arrays.zero(out)
        _fill(lse, -float("inf"))
        return
    if not is_rounded(q):
        q, q_scale = quantized(q, block, hadamard)
        k, k_scale = quantized(k, block, hadamard)
    values, found = quantized_values(v)
    run((out, lse), q, k, values, (q_scale, k_scale, v_scale if found is None else found), scale, causal, block)


def run(results: Arguments, q: Any, k: Any, v: Any, scales: Arguments, scale: float, causal: bool, block: bool) -> None:
    """Compute results of numbers that are rounded, with values as `quantized_values` gives them."""
    head = int(q.shape[3]), int(v.shape[2])
    lengths = int(q.shape[2]), int(k.shape[2])
    heads = int(q.shape[0] * q.shape[1]), int(k.shape[0] * k.shape[1])
    given = forward_constants(blocks_of(rows.record_of(q), arrays.dtype_of(q), head, lengths, heads, causal, block))
    empties = causal and q.shape[2] > k.shape[2]
    (q_scale, k_scale, v_scale), (out, lse) = scales, results
    given |= {"causal": causal, "block": block, "empties": empties}
    kernels.forward(q, k, v, q_scale, k_scale, v_scale, out, lse, scale, **given)


def _fill(array: Any, value: float) -> None:
    """Set an array to a number."""
    if arrays.is_torch(array):
        array.fill_(value)
    else:
        array.fill(value)


def factor(value: Any, beside: Any, shape: tuple[Any, ...]) -> Any:
    """Return a number as an array of scales."""
    found = like(beside, shape, f32)
    _fill(found, value)
    return found


FORWARD = Step(
    "flash_attention_fp8",
    "(Tensor q, Tensor k, Tensor v, Tensor? q_scale, Tensor? k_scale, Tensor? v_scale, float scale, bool causal, "
    "bool block, bool hadamard, str dtype) -> (Tensor, Tensor)",
    _results,
    _launch,
)
