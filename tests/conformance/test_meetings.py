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


# One condition again and again: prints and updates of one element are the first thread's


@ts.function
def _printed(into):
    print("here")


@ts.function
def _added(into):
    ts.tile.atomic_add(into[0], 1)


@ts.function
def _stored(into):
    into[1] = 3


def _repeating(first: Any, second: Any, then: int, otherwise: int, after: int) -> Callable[..., Any]:
    def kernel(k: int, x: ts.Tensor["N", ts.f32], into: ts.Tensor[2, ts.i32], sums: ts.Tensor["N", ts.f32]):
        for _ in ts.tile.grid((1, 1)):
            if k > 3:
                for _ in ts.tile.static_range(then):
                    first(into)
            else:
                for _ in ts.tile.static_range(otherwise):
                    second(into)
            for _ in ts.tile.static_range(after):
                first(into)
            sums[0:64] = ts.tile.cumsum(x[0:64], 0)

    return kernel


def _repeated(k: int, first: str, second: str, times: tuple[int, int, int], into: np.ndarray) -> np.ndarray:
    acts = [first] * times[0] if k > 3 else [second] * times[1]
    acts += [first] * times[2]
    stored = 3 if "stored" in acts else into[1]
    return np.array([into[0] + acts.count("added"), stored], np.int32)


_ACTS = {"printed": _printed, "added": _added, "stored": _stored}


@conformance(
    [
        Case(
            f"{first}-{second}-{'-'.join(map(str, times))}-{k}",
            _repeating(_ACTS[first], _ACTS[second], *times),
            lambda rng, k=k: [
                k,
                rng.integers(-9, 10, N).astype(np.float32),
                Updated(np.array([5, 7], np.int32)),
                Output((N,), ts.f32),
            ],
            lambda k, x, into, _sums, first=first, second=second, times=times: (
                _repeated(k, first, second, times, into),
                x.cumsum(),
            ),
            knobs={"num_warps": 4},
            backends=("ptx-sm_80", "ptx-sm_90a"),
        )
        for first in _ACTS
        for second in _ACTS
        for times in ((1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 0, 1))
        for k in (2, 5)
    ]
)
def test_acts_of_the_first_thread_one_after_the_other(case, backend):
    check(case, backend)
