"""Under `strict` +0 is the larger of two zeros: in reductions, running extremes and loops, as between two numbers."""

from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.harness import Output, check, conformance
from tests.conformance.workloads import case


def extremes(element: Any) -> Any:
    def kernel(
        x: ts.Tensor["n", 48, element],
        largest: ts.Tensor["n", element],
        least: ts.Tensor["n", element],
        running: ts.Tensor["n", 48, element],
        back: ts.Tensor["n", 48, element],
        whole: ts.Tensor[3, element],
    ):
        for i in ts.tile.grid((n, 16)):
            t = x[i : i + 16, :]
            largest[i : i + 16] = t.max(1)
            least[i : i + 16] = t.min(1)
            running[i : i + 16, :] = ts.tile.cummax(t, axis=1)
            back[i : i + 16, :] = ts.tile.cummin(t, axis=0, reverse=True)
        for _ in ts.tile.grid((1, 1)):
            t = x[0:16, :]
            whole[0] = t.max(0).max()
            whole[1] = t.min()
            m = t[:, 0]
            for k in ts.tile.range(1, 48):
                m = ts.tile.minimum(m, x[0:16, k])
            whole[2] = m.min()

    return kernel


def zeros(rng: np.random.Generator, rows: int, element: Any) -> np.ndarray:
    """Return zeros of both signs: rows of one, of the other, and of both."""
    share = np.resize([0.0, 0.03, 0.5, 0.97, 1.0], (rows, 1))
    return np.where(rng.random((rows, 48)) < share, -0.0, 0.0).astype(element.numpy())


def _extremes(x: np.ndarray, *_: np.ndarray) -> Any:
    negative = np.signbit(x.astype(np.float64))

    def signed(value: Any) -> np.ndarray:
        return np.where(value, -0.0, 0.0).astype(x.dtype)

    blocks = [negative[i : i + 16] for i in range(0, len(x), 16)]
    back = np.concatenate([np.logical_or.accumulate(block[::-1])[::-1] for block in blocks])
    whole = [blocks[0].all(), blocks[0].any(), blocks[0].any()]
    return tuple(
        map(signed, (negative.all(1), negative.any(1), np.logical_and.accumulate(negative, 1), back, np.array(whole)))
    )


@conformance(
    [
        case(
            f"extremes-{element.name}",
            extremes(element),
            lambda rng, element=element: [
                zeros(rng, 32, element),
                Output((32,), element),
                Output((32,), element),
                Output((32, 48), element),
                Output((32, 48), element),
                Output((3,), element),
            ],
            _extremes,
            profile="strict",
            signed_zeros=True,
        )
        for element in (ts.f32, ts.f64, ts.bf16, ts.fp8_e5m2)
    ]
)
def test_zeros_have_signs(case, backend):
    check(case, backend)
