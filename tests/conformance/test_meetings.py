"""Threads that part at both sides of a branch meet again: the barriers after it find whole warps."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

M, N = 30, 50
"""Smaller than the tile, so that some threads of a warp have nothing to update."""


def _updating(update: Callable[..., Any], of: DType) -> Callable[..., Any]:
    def kernel(k: int, into: ts.Tensor["M", "N", of], x: ts.Tensor["M", "N", of], sums: ts.Tensor["N", ts.f32]):
        for i in ts.tile.grid((M, 32)):
            tile = x[i : i + 32, 0:64]
            if k > 3:
                update(into[i : i + 32, 0:64], tile)
            else:
                update(into[i : i + 32, 0:64], tile + tile)
            sums[0:64] = ts.tile.sum(tile.to(ts.f32), axis=0)

    return kernel


def _arguments(rng: np.random.Generator, k: int, of: DType) -> list[Any]:
    old, x = (rng.integers(-9, 10, (M, N)).astype(of.numpy()) for _ in range(2))
    return [k, Updated(old), x, Output((N,), ts.f32)]


def _updated(k: int, old: np.ndarray, x: np.ndarray, combine: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
    return combine(old, x if k > 3 else x + x).astype(old.dtype), x.astype(np.float32).sum(0)


@conformance(
    [
        Case(
            f"{name}-{of}-{k}",
            _updating(getattr(ts.tile, f"atomic_{name}"), dtype(of)),
            lambda rng, k=k, of=of: _arguments(rng, k, dtype(of)),
            lambda k, old, x, _sums, combine=combine: _updated(k, old, x, combine),
            knobs={"num_warps": 4},
            backends=("cpu", "cuda"),
        )
        for name, of, combine in [
            ("max", "f16", np.maximum),
            ("min", "bf16", np.minimum),
            ("add", "i16", np.add),
            ("add", "bf16", np.add),
            ("max", "i32", np.maximum),
            ("exchange", "f16", lambda _old, new: new),
        ]
        for k in (2, 5)
    ]
)
def test_updates_in_both_arms_of_a_branch(case, backend):
    check(case, backend)
