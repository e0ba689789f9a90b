"""Flash attention: softmax(Q Kᵀ / sqrt(D)) V by an online softmax over blocks of keys.

Mended against the seed: the grid runs over heads and query blocks, p is taken against the new maximum (so no
sum is scaled twice), keys past the end are hidden, and every query block is stored.
"""

import functools
import math
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts

# The first point that fits the target is used, so the best one of the largest GPUs stands first: 128 keys at a time, or
# 64 of heads larger than 144, of which shared memory holds no more: fewer keys cost less than fewer warps. Longer
# blocks gain nothing on a CPU, and compute more beyond the ends and the diagonal.
SPACES = {
    "cuda": dict(BLOCK_M=[128, 64], num_warps=[8, 4], BLOCK_N=[128, 64, 32], num_stages=[2]),
    "cpu": dict(BLOCK_M=[128], BLOCK_N=[128]),
}


@functools.cache
def flash_attention_for(dtype: ts.DType, device: str = "cuda") -> Any:
    """Return the kernel for an element type; scores, sums and the accumulator are f32 for all of them.

    Args:
        dtype: the element type.
        device: whose blocks are used, a key of `SPACES`.
    """

    @ts.kernel.autotune(space=SPACES[device], key=("S", "D"))
    def flash_attention(
        Q: ts.Tensor["B*H", "S", "D", dtype],
        K: ts.Tensor["B*H", "S", "D", dtype],
        V: ts.Tensor["B*H", "S", "D", dtype],
        OUT: ts.Tensor["B*H", "S", "D", dtype],
        is_causal: bool = True,
    ) -> ts.Tensor["B*H", "S", "D", dtype]:
        ctx = ts.tile.context()
        BM, BN = ctx.BLOCK_M, ctx.BLOCK_N
        for head, q_block in ts.tile.grid((B * H, 1), (S, BM)):
            q = Q[head, q_block : q_block + BM, :]
            acc = ts.tile.zeros((BM, ctx.D), ts.f32)
            m_i = ts.tile.full((BM,), -float("inf"), ts.f32)
            l_i = ts.tile.zeros((BM,), ts.f32)
            # A causal block sees no key after its last query.
            end = ts.tile.minimum(S, q_block + BM) if is_causal else S
            for kv_block in ts.tile.range(0, end, BN):
                scores = ts.tile.mma(q, K[head, kv_block : kv_block + BN, :].T) * (1.0 / math.sqrt(ctx.D))
                if is_causal:
                    scores = ts.tile.causal_mask(scores, q_block, kv_block)
                else:
                    scores = ts.tile.where(kv_block + ts.tile.arange(BN) < S, scores, -float("inf"))
                m_new = ts.tile.maximum(m_i, ts.tile.row_max(scores))
                alpha = ts.tile.exp(m_i - m_new)
                p = ts.tile.exp(scores - m_new[:, None])
                l_i = alpha * l_i + ts.tile.row_sum(p)
                v = V[head, kv_block : kv_block + BN, :]
                acc = ts.tile.mma(ts.tile.cast(p, dtype), v, alpha[:, None] * acc)
                m_i = m_new
            OUT[head, q_block : q_block + BM, :] = acc / l_i[:, None]
        return OUT

    return flash_attention


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, is_causal: bool) -> np.ndarray:
    """Return the result in float64."""
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return p @ v / p.sum(axis=-1, keepdims=True)


def case(place: Place, heads: int = 3, s: int = 333, d: int = 64, is_causal: bool = True) -> Case:
    """Return a call and its expected result."""
    kernel = flash_attention_for(place.dtype, place.device)
    q, k, v = (place.normal(heads, s, d) for _ in range(3))
    out = place.empty(heads, s, d)
    return Case(
        f"{'causal ' if is_causal else ''}attention {place.dtype} {heads}x{s}x{d}",
        place,
        lambda: kernel(q, k, v, out, is_causal),
        reference(host(q), host(k), host(v), is_causal),
        TOLERANCE[place.dtype.name],
    )


if __name__ == "__main__":
    raise SystemExit(main(case, lambda place: case(place, is_causal=False)))
