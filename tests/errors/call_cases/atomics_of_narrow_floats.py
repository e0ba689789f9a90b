"""An atomic that the target lacks."""

import tessera as ts


@ts.kernel
def count(y: ts.Tensor["n", ts.fp8_e4m3]):
    for m in ts.tile.grid((n, 4)):
        ts.tile.atomic_add(y[m : m + 4], 1.0)


def call():
    ts.compile(count, target="sm_80")
