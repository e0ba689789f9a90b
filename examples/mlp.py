"""A two-layer network from library ops, and a gated layer of one's own that takes the same epilogue chains.

`op.linalg.linear` fuses bias, GELU, dropout and residual into the products; `gated` is plain tile code whose
`Epilogue` parameter accepts any chain.
"""

import functools
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts
from tessera import ops as op

E = op.epilogue
SPACE = dict(BM=[128, 64], BN=[64], BK=[64, 32], num_warps=[8])


@functools.cache
def gated_for(dtype: ts.DType) -> Any:
    """Return the kernel for an element type."""

    @ts.kernel.autotune(space=SPACE, key=("M", "N", "K"))
    def gated(
        X: ts.Tensor["M", "K", dtype],
        G: ts.Tensor["K", "N", dtype],
        U: ts.Tensor["K", "N", dtype],
        epilogue: E.Epilogue["M", "N"],
        Y: ts.Tensor["M", "N", dtype],
    ):
        ctx = ts.tile.context()
        for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
            gate = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
            up = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
            for k in ts.tile.range(0, K, ctx.BK):
                x = X[m : m + ctx.BM, k : k + ctx.BK]
                gate = ts.tile.mma(x, G[k : k + ctx.BK, n : n + ctx.BN], gate)
                up = ts.tile.mma(x, U[k : k + ctx.BK, n : n + ctx.BN], up)
            Y[m : m + ctx.BM, n : n + ctx.BN] = epilogue(ts.tile.silu(gate) * up, m, n)
        return Y

    return gated


def case(place: Place, rows: int = 100, width: int = 77, hidden: int = 203) -> Case:
    """Return a call of the two-layer network and its expected result."""
    x, w1, b1 = place.normal(rows, width), place.normal(hidden, width), place.normal(hidden)
    w2, b2 = place.normal(width, hidden), place.normal(width)
    gelu = E.chain([E.gelu("tanh"), E.scale(0.1)])
    rest = E.chain([E.dropout(0.1, seed=5), E.residual(x)])
    middle = op.linalg.linear.reference(*map(host, (x, w1, b1)), gelu)
    middle = host(place.array(middle.astype(np.float32)))  # rounded to the element type between the layers
    expected = op.linalg.linear.reference(middle, host(w2), host(b2), rest)
    return Case(
        f"mlp {place.dtype} {rows}x{width}x{hidden}",
        place,
        lambda: op.linalg.linear(op.linalg.linear(x, w1, b1, epilogue=gelu), w2, b2, epilogue=rest),
        expected,
        TOLERANCE[place.dtype.name],
    )


def gated_case(place: Place, rows: int = 100, width: int = 77, hidden: int = 203) -> Case:
    """Return a call of the gated layer and its expected result."""
    x, g, u = place.normal(rows, width), place.normal(width, hidden), place.normal(width, hidden)
    bias, y = place.normal(hidden), place.empty(rows, hidden)
    chain = E.chain([E.scale(0.5), E.bias(bias)])
    gate, up = host(x) @ host(g), host(x) @ host(u)
    return Case(
        f"gated {place.dtype} {rows}x{width}x{hidden}",
        place,
        lambda: gated_for(place.dtype)(x, g, u, chain, y),
        chain.reference(gate / (1 + np.exp(-gate)) * up),
        TOLERANCE[place.dtype.name],
    )


if __name__ == "__main__":
    raise SystemExit(main(case, gated_case))
