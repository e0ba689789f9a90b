"""What happens to a tile of results before it is stored: bias, activation, residual, scale, dropout, casts.

A chain is a kernel argument. Any kernel may take one and apply it to a tile of results while that is in registers::

    @ts.kernel
    def changed(
        x: ts.Tensor["M", "N", ts.f32], epilogue: op.epilogue.Epilogue["M", "N"], y: ts.Tensor["M", "N", ts.f32]
    ):
        for m, n in ts.tile.grid((M, 64), (N, 64)):
            y[m:m+64, n:n+64] = epilogue(x[m:m+64, n:n+64], m, n)

    changed(x, op.epilogue.chain([op.epilogue.bias(b), op.epilogue.gelu()]), y)

The steps, their constants and the dtypes of their tensors are compiled in; the tensors and numbers are arguments.
"""

from tessera.ops.epilogue.chain import Epilogue, Step, chain
from tessera.ops.epilogue.reductions import col_max, col_sum, reduction, row_max, row_sum
from tessera.ops.epilogue.steps import bias, cast, dequant, dropout, gelu, relu, residual, scale, silu, step

__all__ = [
    "Epilogue",
    "Step",
    "bias",
    "cast",
    "chain",
    "col_max",
    "col_sum",
    "dequant",
    "dropout",
    "gelu",
    "reduction",
    "relu",
    "residual",
    "row_max",
    "row_sum",
    "scale",
    "silu",
    "step",
]
