"""Kernels whose tensors may be missing and whose dtypes a call decides, as their users write them."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import of_rounding
from tests.conformance.data import normal
from tests.conformance.harness import Output, Updated, check, conformance, dtype
from tests.conformance.workloads import NEAR, case, wide

T = ts.dtype_var("T")
S = ts.dtype_var("S", ts.f32, ts.bf16)


def norm(
    x: ts.Tensor["M", "N", T],
    weight: ts.Tensor["N", S] | None,
    bias: ts.Tensor["N", S] | None,
    residual: ts.Tensor["M", "N", T] | None,
    y: ts.Tensor["M", "N", T],
    inverse: ts.Tensor["M", ts.f32] | None,
    eps: ts.f32,
):
    for m in ts.tile.grid((M, 4)):
        row = x[m : m + 4, :].to(ts.f32)
        if residual is not None:
            row += residual[m : m + 4, :].to(ts.f32)
            residual[m : m + 4, :] = row.to(T)
        scale = ts.tile.rsqrt(ts.tile.sum(row * row, 1) / N + eps)
        if inverse is not None:
            inverse[m : m + 4] = scale
        row *= scale[:, None]
        if weight is not None:
            row *= weight[:].to(ts.f32)
        if bias is not None:
            row += bias[:].to(ts.f32)
        y[m : m + 4, :] = row.to(T)


def _norm(x: Any, weight: Any, bias: Any, residual: Any, y: Any, inverse: Any, eps: float) -> Any:
    row = wide(x) + (0 if residual is None else wide(residual))
    scale = 1 / np.sqrt((row * row).mean(1) + np.float32(eps))
    out = row * scale[:, None] * (1 if weight is None else wide(weight)) + (0 if bias is None else wide(bias))
    return tuple(v for v, there in ((row, residual), (out, y), (scale, inverse)) if there is not None)


def _arguments(rng: np.random.Generator, of: ts.DType, side: ts.DType, there: str) -> list[Any]:
    return [
        normal(rng, (7, 33), of),
        normal(rng, (33,), side) if "w" in there else None,
        normal(rng, (33,), side) if "b" in there else None,
        Updated(normal(rng, (7, 33), of)) if "r" in there else None,
        Output((7, 33), of),
        Output((7,), ts.f32) if "i" in there else None,
        1e-5,
    ]


@conformance(
    [
        case(
            f"norm-{of}-{side}-{there}",
            norm,
            lambda rng, of=of, side=side, there=there: _arguments(rng, dtype(of), dtype(side), there),
            _norm,
            NEAR if of == "f32" else of_rounding(dtype(of), 2),
        )
        for of, side in (("f32", "f32"), ("bf16", "f32"), ("f16", "bf16"))
        for there in ("", "i", "w", "wb", "br", "wri", "wbri")
    ]
)
def test_norms_with_what_is_there(case, backend):
    check(case, backend)
