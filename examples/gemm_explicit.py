"""Matrix products on the explicit memory level: shared buffers, asynchronous copies and barriers by hand.

`gemm_explicit` is the seed's kernel. Mended: a grid and a K loop give the undefined `tile_m`, `tile_n` and
`tile_k`, and a second barrier keeps the next copies from overwriting buffers that are still read.

`gemm_ring` keeps one stage in flight while another is multiplied; `gemm_roles` names who copies and who computes, with
a barrier for each stage. All add to C, as the seed does. Plain slices (gemm.py) need none of this, and are scheduled
alike.
"""

from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@ts.kernel
def gemm_explicit(
    A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]
) -> ts.Tensor["M", "N", ts.f32]:
    """C += A @ B, one buffer per operand."""
    for tile_m, tile_n in ts.tile.grid((M, 64), (N, 64)):
        smem_a = ts.tile.alloc_shared((64, 32), ts.bf16, swizzle="xor")
        smem_b = ts.tile.alloc_shared((32, 64), ts.bf16, swizzle="xor")
        acc = ts.tile.zeros((64, 64), ts.f32)
        for tile_k in ts.tile.range(0, K, 32):
            ts.tile.cp_async(smem_a, A[tile_m : tile_m + 64, tile_k : tile_k + 32])
            ts.tile.cp_async(smem_b, B[tile_k : tile_k + 32, tile_n : tile_n + 64])
            ts.tile.barrier()
            acc = ts.tile.mma(smem_a, smem_b, acc)
            ts.tile.barrier()
        C[tile_m : tile_m + 64, tile_n : tile_n + 64] += acc
    return C


@ts.kernel
def gemm_ring(
    A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]
) -> ts.Tensor["M", "N", ts.f32]:
    """C += A @ B, two buffers per operand: the copies of step k + 1 run while step k is multiplied."""
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        smem_a = ts.tile.alloc_shared((2, 64, 32), ts.bf16, swizzle="xor")
        smem_b = ts.tile.alloc_shared((2, 32, 64), ts.bf16, swizzle="xor")
        acc = ts.tile.zeros((64, 64), ts.f32)
        ts.tile.cp_async(smem_a[0], A[m : m + 64, 0:32])
        ts.tile.cp_async(smem_b[0], B[0:32, n : n + 64])
        ts.tile.commit_group()
        stage = 0
        for k in ts.tile.range(0, K, 32):
            ts.tile.cp_async(smem_a[1 - stage], A[m : m + 64, k + 32 : k + 64])
            ts.tile.cp_async(smem_b[1 - stage], B[k + 32 : k + 64, n : n + 64])
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            acc = ts.tile.mma(smem_a[stage], smem_b[stage], acc)
            ts.tile.barrier()
            stage = 1 - stage
        ts.tile.wait_group(0)
        C[m : m + 64, n : n + 64] += acc
    return C


@ts.kernel
def gemm_roles(
    A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]
) -> ts.Tensor["M", "N", ts.f32]:
    """C += A @ B: a producer copies, consumers multiply. On Hopper these are warps of their own."""
    for m, n in ts.tile.grid((M, 128), (N, 128)):
        smem_a = ts.tile.alloc_shared((2, 128, 64), ts.bf16, swizzle="xor")
        smem_b = ts.tile.alloc_shared((2, 64, 128), ts.bf16, swizzle="xor")
        full = ts.tile.mbarrier.alloc(2)
        acc = ts.tile.zeros((128, 128), ts.f32)
        slot = 0
        for k in ts.tile.range(0, K, 64):
            with ts.tile.role("producer", registers=24):
                ts.tile.async_copy_2d(smem_a[slot], A[m : m + 128, k : k + 64])
                ts.tile.async_copy_2d(smem_b[slot], B[k : k + 64, n : n + 128])
                ts.tile.mbarrier.arrive(full[slot])
            with ts.tile.role("consumer", warps=8, registers=240):
                ts.tile.mbarrier.wait(full[slot])
                acc = ts.tile.mma(smem_a[slot], smem_b[slot], acc)
                slot = ts.tile.pipeline.swap(slot, 2)
        C[m : m + 128, n : n + 128] += acc
    return C


def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the result in float64."""
    return c + a @ b


def case(place: Place, m: int = 200, n: int = 137, k: int = 300, kernel: Any = gemm_explicit) -> Case:
    """Return a call and its expected result."""
    a, b = place.normal(m, k, dtype=ts.bf16), place.normal(k, n, dtype=ts.bf16)
    c = place.normal(m, n, dtype=ts.f32)
    expected = reference(host(a), host(b), host(c))
    # Products of bf16 are exact in f32, so only the sums round.
    return Case(f"{kernel.__name__} {m}x{n}x{k}", place, lambda: kernel(a, b, c), expected, TOLERANCE["f32"])


if __name__ == "__main__":
    raise SystemExit(
        main(
            case,
            lambda place: case(place, kernel=gemm_ring),
            lambda place: case(place, kernel=gemm_roles),
        )
    )
