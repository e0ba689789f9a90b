"""A name in a tuning space that is a misspelt knob."""

import tessera as ts


@ts.kernel.autotune(space={"num_warp": [4]})
def fill(y: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 64)):
        y[m : m + 64] = 1.0


def call():
    ts.compile(fill, target="sm_80")
