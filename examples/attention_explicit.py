"""Flash attention on the explicit memory level: the seed's kernel, with its shared buffers, copies and barriers.

Mended as flash_attention.py says, and with a second barrier, so that no copy overwrites keys and values that are still
read. On every target its products are scheduled as those of plain slices are.
"""

import functools
import math
from typing import Any

from flash_attention import reference
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@functools.cache
def attention_explicit_for(dtype: ts.DType, block_m: int = 64, block_n: int = 64) -> Any:
    """Return the kernel for an element type and a block of queries and keys."""

    @ts.kernel
    def attention_explicit(
        Q: ts.Tensor["B*H", "S", "D", dtype],
        K: ts.Tensor["B*H", "S", "D", dtype],
        V: ts.Tensor["B*H", "S", "D", dtype],
        OUT: ts.Tensor["B*H", "S", "D", dtype],
        BM: ts.constexpr = block_m,
        BN: ts.constexpr = block_n,
    ) -> ts.Tensor["B*H", "S", "D", dtype]:
        ctx = ts.tile.context()
        for head, q_block in ts.tile.grid((B * H, 1), (S, BM)):
            smem_q = ts.tile.alloc_shared((BM, ctx.D), dtype)
            smem_k = ts.tile.alloc_shared((BN, ctx.D), dtype)
            smem_v = ts.tile.alloc_shared((BN, ctx.D), dtype)
            ts.tile.cp_async(smem_q, Q[head, q_block : q_block + BM, :])
            acc = ts.tile.zeros((BM, ctx.D), ts.f32)
            m_i = ts.tile.full((BM,), -float("inf"), ts.f32)
            l_i = ts.tile.zeros((BM,), ts.f32)
            for kv_block in ts.tile.range(0, ts.tile.minimum(S, q_block + BM), BN):
                ts.tile.cp_async(smem_k, K[head, kv_block : kv_block + BN, :])
                ts.tile.cp_async(smem_v, V[head, kv_block : kv_block + BN, :])
                ts.tile.barrier()
                scores = ts.tile.mma(smem_q, smem_k.T) * (1.0 / math.sqrt(ctx.D))
                scores = ts.tile.causal_mask(scores, q_block, kv_block)
                m_new = ts.tile.maximum(m_i, ts.tile.row_max(scores))
                alpha = ts.tile.exp(m_i - m_new)
                p = ts.tile.exp(scores - m_new[:, None])
                l_i = alpha * l_i + ts.tile.row_sum(p)
                acc = ts.tile.mma(ts.tile.cast(p, dtype), smem_v, alpha[:, None] * acc)
                ts.tile.barrier()
                m_i = m_new
            OUT[head, q_block : q_block + BM, :] = acc / l_i[:, None]
        return OUT

    return attention_explicit


def case(place: Place, heads: int = 3, s: int = 333, d: int = 64) -> Case:
    """Return a call and its expected result."""
    kernel = attention_explicit_for(place.dtype)
    q, k, v = (place.normal(heads, s, d) for _ in range(3))
    out = place.empty(heads, s, d)
    return Case(
        f"explicit attention {place.dtype} {heads}x{s}x{d}",
        place,
        lambda: kernel(q, k, v, out),
        reference(host(q), host(k), host(v), True),
        TOLERANCE[place.dtype.name],
    )


if __name__ == "__main__":
    raise SystemExit(main(case))
