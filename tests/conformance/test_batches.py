"""Products of batches: sides that repeat, sums that loops carry, what is computed of them, shared buffers."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import accumulator_of
from tessera.numerics.tolerances import Tolerance, of_matmul
from tests.conformance.data import normal
from tests.conformance.harness import Case, Output, check, conformance, dtype
from tests.conformance.test_mma import operand, product

SIDES = {"both": ((3,), (3,)), "left": ((3,), ()), "right": ((), (3,)), "one": ((1,), (3,)), "single": ((1,), (1,))}


def one_tile(sides: str, name: str) -> Callable[..., Any]:
    """Return a kernel that multiplies whole tensors, by an operator."""
    first, second = SIDES[sides]
    dt, acc, batch = dtype(name), accumulator_of(dtype(name).storage), max(first + second)

    def kernel(a: ts.Tensor[*first, 16, 24, dt], b: ts.Tensor[*second, 24, 8, dt], c: ts.Tensor[batch, 16, 8, acc]):
        c[...] = a[...] @ b[...]

    return kernel


def carried(
    a: ts.Tensor["B", "M", "K", ts.bf16], b: ts.Tensor["B", "N", "K", ts.bf16], c: ts.Tensor["B", "M", "N", ts.f32]
):
    for h, m, n in ts.tile.grid((B, 2), (M, 16), (N, 16)):
        total = ts.tile.zeros((2, 16, 16), ts.f32)
        for k in ts.tile.range(0, K, 16):
            turned = b[h : h + 2, n : n + 16, k : k + 16].transpose(0, 2, 1)
            total = ts.tile.mma(a[h : h + 2, m : m + 16, k : k + 16], turned, total)
        c[h : h + 2, m : m + 16, n : n + 16] = total


def attention(
    q: ts.Tensor["B", "S", 16, ts.f32],
    k: ts.Tensor["B", "T", 16, ts.f32],
    v: ts.Tensor["B", "T", 16, ts.f32],
    o: ts.Tensor["B", "S", 16, ts.f32],
):
    for h, m in ts.tile.grid((B, 2), (S, 16)):
        total, most = ts.tile.zeros((2, 16, 16), ts.f32), ts.tile.full((2, 16), -1e30, ts.f32)
        weight, query = ts.tile.zeros((2, 16), ts.f32), q[h : h + 2, m : m + 16, :]
        for n in ts.tile.range(0, T, 8):
            scores = query @ k[h : h + 2, n : n + 8, :].transpose(0, 2, 1)
            seen = n + ts.tile.arange(8) < T
            scores = ts.tile.where(seen[None, None, :], scores, -1e30)
            now = ts.tile.maximum(most, scores.max(2))
            p, less = ts.tile.exp(scores - now[:, :, None]), ts.tile.exp(most - now)
            weight = weight * less + p.sum(2)
            total = ts.tile.mma(p, v[h : h + 2, n : n + 8, :], total * less[:, :, None])
            most = now
        o[h : h + 2, m : m + 16, :] = total / weight[:, :, None]


def softmax_of(q: np.ndarray, k: np.ndarray, v: np.ndarray, o: Any) -> np.ndarray:
    """Return attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    return weights / weights.sum(2, keepdims=True) @ v


def shared(a: ts.Tensor[2, 16, 16, ts.f16], c: ts.Tensor[2, 16, 16, ts.f32], d: ts.Tensor[16, 16, ts.f32]):
    held = ts.tile.alloc_shared((2, 16, 16), ts.f16)
    held[...] = a[...]
    ts.tile.barrier()
    both = ts.tile.mma(held, held.T, accumulator=ts.f32)
    c[...] = ts.tile.where(both > 0.0, both, 0.5 * both)
    d[:, :] = both.sum(0)


def of_shared(a: np.ndarray, c: Any, d: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what `shared` stores, in float64."""
    both = a.astype(np.float64) @ a.astype(np.float64).transpose(0, 2, 1)
    return np.where(both > 0, both, 0.5 * both), both.sum(0)


CASES = [
    Case(
        f"{sides}-{name}",
        one_tile(sides, name),
        lambda rng, sides=sides, name=name: [
            operand(rng, (*SIDES[sides][0], 16, 24), dtype(name)),
            operand(rng, (*SIDES[sides][1], 24, 8), dtype(name)),
            Output((max(sum(SIDES[sides], ())), 16, 8), accumulator_of(dtype(name).storage)),
        ],
        lambda a, b, c, name=name: product(a, b, accumulator_of(dtype(name).storage)),
        of_matmul(dtype(name), accumulator_of(dtype(name).storage), 24, 1),
    )
    for sides, name in (("both", "bf16"), ("left", "f32"), ("right", "f16"), ("one", "i8"), ("single", "f32"))
] + [
    Case(
        "carried",
        carried,
        lambda rng: [
            operand(rng, (5, 20, 40), ts.bf16),
            operand(rng, (5, 18, 40), ts.bf16),
            Output((5, 20, 18), ts.f32),
        ],
        lambda a, b, c: product(a, b.transpose(0, 2, 1), ts.f32),
        of_matmul(ts.bf16, ts.f32, 40, 3),
    ),
    Case(
        "attention",
        attention,
        lambda rng: [*(normal(rng, (3, size, 16), ts.f32) for size in (20, 30, 30)), Output((3, 20, 16), ts.f32)],
        softmax_of,
        Tolerance(relative=3e-5, absolute=3e-5),
    ),
    Case(
        "shared",
        shared,
        lambda rng: [normal(rng, (2, 16, 16), ts.f16), Output((2, 16, 16), ts.f32), Output((16, 16), ts.f32)],
        of_shared,
        Tolerance(relative=1e-4, absolute=1e-3),
    ),
]


@conformance(CASES)
def test_batches(case, backend):
    check(case, backend)
