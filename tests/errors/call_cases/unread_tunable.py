"""A name in a tuning space that nothing reads."""

import numpy as np

import tessera as ts


@ts.function
def of_one_branch(x):
    ctx = ts.tile.context()
    return x * ctx.FACTOR if ctx.SCALED else x


def fill(x: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        x[i : i + 64] = of_one_branch(x[i : i + 64])


def call():
    x = np.ones(64, np.float32)
    ts.kernel.autotune(space={"SCALED": [0], "FACTOR": [3.0]})(fill)(x)
    ts.kernel.autotune(space={"SCALED": [0], "FACTOR": [3.0], "UNROLL": [4]})(fill)(x)
