"""The explicit memory level: shared buffers, asynchronous copies, groups, barriers, rings of stages."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT, of_matmul, of_sum
from tests.conformance.data import integers, normal
from tests.conformance.harness import BACKENDS, Case, Close, Output, check, conformance, dtype


def staged(dt: DType, swizzle: str, kind: str) -> Callable[..., Any]:
    """Return a kernel that copies a tensor by way of a shared buffer, plain and transposed."""

    def plain(
        x: ts.Tensor["m", "n", dt],
        y: ts.Tensor["m", "n", dt],
        z: ts.Tensor["n", "m", dt],
        B: ts.constexpr,
        C: ts.constexpr,
    ):
        for i, j in ts.tile.grid((m, B), (n, C)):
            buffer = ts.tile.alloc_shared((B, C), dt, swizzle=swizzle)
            buffer[...] = x[i : i + B, j : j + C]
            ts.tile.barrier()
            y[i : i + B, j : j + C] = buffer
            z[j : j + C, i : i + B] = ts.tile.load(buffer.T)

    def copied(
        x: ts.Tensor["m", "n", dt],
        y: ts.Tensor["m", "n", dt],
        z: ts.Tensor["n", "m", dt],
        B: ts.constexpr,
        C: ts.constexpr,
    ):
        for i, j in ts.tile.grid((m, B), (n, C)):
            buffer = ts.tile.alloc_shared((B, C), dt, swizzle=swizzle)
            ts.tile.cp_async(buffer, x[i : i + B, j : j + C])
            ts.tile.commit_group()
            ts.tile.wait_group(0)
            ts.tile.barrier()
            y[i : i + B, j : j + C] = ts.tile.load(buffer)
            z[j : j + C, i : i + B] = ts.tile.load(ts.tile.transpose(buffer, (1, 0)))

    return plain if kind == "stored" else copied


STAGED = (
    ("f32", "xor", (40, 72), (16, 32)),
    ("bf16", "xor", (33, 65), (32, 64)),
    ("f16", "none", (16, 16), (16, 16)),
    ("i8", "xor", (50, 130), (16, 128)),
    ("f64", "none", (9, 20), (8, 16)),
    ("i32", "xor", (24, 40), (12, 20)),
    ("fp8_e4m3", "xor", (64, 64), (64, 64)),
    ("bool", "none", (17, 33), (16, 32)),
)


@conformance(
    [
        Case(
            f"{kind}-{name}-{swizzle}",
            staged(dtype(name), swizzle, kind),
            lambda rng, name=name, size=size: [
                integers(rng, size, dtype(name)) if dtype(name).is_int else normal(rng, size, dtype(name)),
                Output(size, dtype(name)),
                Output(size[::-1], dtype(name)),
            ],
            lambda x, y, z: (x, x.T),
            constexprs=dict(B=block[0], C=block[1]),
        )
        for name, swizzle, size, block in STAGED
        for kind in ("stored", "copied")
    ]
)
def test_buffers_hold_what_is_put_there(case, backend):
    check(case, backend)


def gemm_barriers(dt: Any) -> Callable[..., Any]:
    """The seed's form: copies and barriers, no groups."""

    def kernel(A: ts.Tensor["M", "K", dt], B: ts.Tensor["K", "N", dt], C: ts.Tensor["M", "N", ts.f32]):
        for m, n in ts.tile.grid((M, 32), (N, 16)):
            smem_a = ts.tile.alloc_shared((32, 32), dt, swizzle="xor")
            smem_b = ts.tile.alloc_shared((32, 16), dt, swizzle="xor")
            acc = ts.tile.zeros((32, 16), ts.f32)
            for k in ts.tile.range(0, K, 32):
                ts.tile.cp_async(smem_a, A[m : m + 32, k : k + 32])
                ts.tile.cp_async(smem_b, B[k : k + 32, n : n + 16])
                ts.tile.barrier()
                acc = ts.tile.mma(smem_a, smem_b, acc)
                ts.tile.barrier()
            C[m : m + 32, n : n + 16] = acc
        return C

    return kernel


def gemm_ring(dt: Any, stages: int) -> Callable[..., Any]:
    """Rings of two and three stages, with groups; B is stored transposed."""

    def kernel(A: ts.Tensor["M", "K", dt], B: ts.Tensor["N", "K", dt], C: ts.Tensor["M", "N", ts.f32]):
        for m, n in ts.tile.grid((M, 32), (N, 32)):
            a = ts.tile.alloc_shared((stages, 32, 16), dt, swizzle="xor")
            b = ts.tile.alloc_shared((stages, 32, 16), dt, swizzle="xor")
            acc = ts.tile.zeros((32, 32), ts.f32)
            for s in ts.tile.static_range(stages - 1):
                ts.tile.cp_async(a[s], A[m : m + 32, s * 16 : s * 16 + 16])
                ts.tile.cp_async(b[s], B[n : n + 32, s * 16 : s * 16 + 16])
                ts.tile.commit_group()
            stage = 0
            for k in ts.tile.range(0, K, 16):
                ts.tile.wait_group(stages - 2)
                ts.tile.barrier()
                acc = ts.tile.mma(a[stage], b[stage].T, acc)
                ts.tile.barrier()
                later = (stage + stages - 1) % stages
                ahead = k + (stages - 1) * 16
                ts.tile.cp_async(a[later], A[m : m + 32, ahead : ahead + 16])
                ts.tile.cp_async(b[later], B[n : n + 32, ahead : ahead + 16])
                ts.tile.commit_group()
                stage = (stage + 1) % stages
            ts.tile.wait_group(0)
            C[m : m + 32, n : n + 32] = acc
        return C

    return kernel


def _product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Close:
    a, b = (v.astype(np.float32).astype(np.float64) for v in (a, b))
    return Close(a @ b, np.abs(a) @ np.abs(b))


def stored_product(dt: Any, depth: int) -> Callable[..., Any]:
    """A computed tile, no element of whose padding is zero, times its own transpose."""

    def kernel(A: ts.Tensor["M", depth, dt], C: ts.Tensor["M", "M", ts.f32]):
        for _m in ts.tile.grid((M, M)):
            buffer = ts.tile.alloc_shared((24, depth), dt, swizzle="xor")
            buffer[...] = A[0:24, :] + 1
            ts.tile.barrier()
            acc = ts.tile.mma(buffer, buffer.T, ts.tile.zeros((24, 24), ts.f32))
            C[0:24, 0:24] = acc
        return C

    return kernel


@conformance(
    [
        Case(
            f"stored-{name}-{depth}",
            stored_product(dtype(name), depth),
            lambda rng, name=name, depth=depth: [
                rng.integers(-3, 4, (24, depth)).astype(dtype(name).numpy()),
                Output((24, 24), ts.f32),
            ],
            lambda a, c: (a.astype(np.float64) + 1) @ (a.astype(np.float64) + 1).T,
            EXACT,
        )
        for name, depth in (("f16", 3), ("bf16", 5), ("f16", 24), ("f32", 3), ("f32", 20), ("bf16", 40))
    ]
    + [
        Case(
            f"barriers-{name}-{m}x{n}x{k}",
            gemm_barriers(dtype(name)),
            lambda rng, name=name, m=m, n=n, k=k: [
                normal(rng, (m, k), dtype(name)),
                normal(rng, (k, n), dtype(name)),
                Output((m, n), ts.f32),
            ],
            _product,
            of_matmul(dtype(name), ts.f32, k),
        )
        for name, (m, n, k) in (
            ("bf16", (64, 32, 64)),
            ("f16", (40, 20, 70)),
            ("f32", (33, 17, 45)),
            ("f16", (1, 1, 1)),
        )
    ]
    + [
        Case(
            f"ring-{name}-{stages}",
            gemm_ring(dtype(name), stages),
            lambda rng, name=name: [
                normal(rng, (50, 75), dtype(name)),
                normal(rng, (40, 75), dtype(name)),
                Output((50, 40), ts.f32),
            ],
            lambda a, b, c: _product(a, b.T, c),
            of_matmul(dtype(name), ts.f32, 75),
        )
        for name, stages in (("bf16", 2), ("f16", 3), ("f32", 2), ("bf16", 4))
    ]
)
def test_explicit_pipelines(case, backend):
    check(case, backend)


def running(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.f32], z: ts.Tensor["m", 32, ts.f32]):
    """A buffer that programs read and write in turns, and one that a branch rewrites."""
    for i in ts.tile.grid((m, 8)):
        partial = ts.tile.alloc_shared((8, 32), ts.f32)
        partial[...] = 0.0
        ts.tile.barrier()
        for j in ts.tile.range(0, n, 32):
            sum_ = partial + x[i : i + 8, j : j + 32]
            ts.tile.barrier()
            partial[...] = sum_
            ts.tile.barrier()
        y[i : i + 8] = ts.tile.row_sum(partial)
        ts.tile.barrier()
        if x[i : i + 8, 0:32] > 0:
            partial[...] = -1.0
        ts.tile.barrier()
        z[i : i + 8, :] = partial


def _running(x: Any, y: Any, z: Any) -> tuple[Close, Close]:
    pad = np.zeros((x.shape[0], -(-x.shape[1] // 32) * 32))
    pad[:, : x.shape[1]] = x
    parts = pad.reshape(x.shape[0], -1, 32)
    first = parts[:, 0]
    size = np.abs(parts).sum(1)
    return Close(pad.sum(1), np.abs(pad).sum(1)), Close(np.where(first > 0, -1, parts.sum(1)), size)


@conformance(
    [
        Case(
            f"running-{m}x{n}",
            running,
            lambda rng, m=m, n=n: [
                normal(rng, (m, n), ts.f32),
                Output((m,), ts.f32),
                Output((m, 32), ts.f32),
            ],
            _running,
            [of_sum(ts.f32, n), of_sum(ts.f32, n)],
        )
        for m, n in ((8, 64), (13, 100), (3, 20))
    ]
)
def test_buffers_change_between_barriers(case, backend):
    check(case, backend)


def copies3(x: ts.Tensor["a", "b", "c", ts.f32], y: ts.Tensor["a", "b", "c", ts.f32]):
    for i, j in ts.tile.grid((a, 2), (b, 8)):
        buffer = ts.tile.alloc_shared((2, 8, 16), ts.f32)
        for k in ts.tile.range(0, c, 16):
            ts.tile.async_copy_3d(buffer, x[i : i + 2, j : j + 8, k : k + 16])
            ts.tile.barrier()
            y[i : i + 2, j : j + 8, k : k + 16] = buffer
            ts.tile.barrier()


def row_copies(x: ts.Tensor["a", "n", ts.f16], y: ts.Tensor["n", ts.f32], i: int):
    """Integers inside the copied slice, and a vector buffer."""
    for j in ts.tile.grid((n, 64)):
        line = ts.tile.alloc_shared((64,), ts.f16)
        ts.tile.cp_async(line, x[i, j : j + 64])
        ts.tile.barrier()
        y[j : j + 64] = line * 2.0


@conformance(
    [
        Case(
            "copies-3d",
            copies3,
            lambda rng: [normal(rng, (3, 11, 40), ts.f32), Output((3, 11, 40), ts.f32)],
            lambda x, y: x,
        ),
        Case(
            "copied-row",
            row_copies,
            lambda rng: [normal(rng, (5, 150), ts.f16), Output((150,), ts.f32), 3],
            lambda x, y, i: x[i].astype(np.float64) * 2,
            EXACT,
        ),
    ]
)
def test_copies_of_other_ranks(case, backend):
    check(case, backend)


def _stages(of: DType) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", 32, of], y: ts.Tensor["m", 32, of]):
        for i in ts.tile.grid((m, 1)):
            ring = ts.tile.alloc_shared((2, 32), of)
            ring[0] = x[i, :]
            ring[1] = x[i, :]
            ts.tile.barrier()
            y[i, :] = ts.tile.load(ring[i])

    return kernel


@conformance(
    [
        Case(
            f"stages-{of}",
            _stages(dtype(of)),
            lambda rng, of=of: [rng.integers(1, 2, (5, 32)).astype(dtype(of).numpy()), Output((5, 32), dtype(of))],
            lambda x, _y: np.where(np.arange(5)[:, None] < 2, x, np.zeros_like(x)),
            backends=tuple(backend for backend in BACKENDS if backend != "interp"),  # which says that it is an error
        )
        for of in ("bool", "u8", "i64", "fp8_e4m3", "fp8_e5m2", "bf16", "f64")
    ]
)
def test_a_stage_that_does_not_exist_reads_as_zeros(case, backend):
    check(case, backend)
