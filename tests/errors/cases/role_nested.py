"""A role in a role."""

import tessera as ts


def kernel(x: ts.Tensor["n", "m", ts.f32], y: ts.Tensor["n", "m", ts.f32]):
    for i in ts.tile.grid((n, 16)):
        with ts.tile.role("consumer"):
            with ts.tile.role("producer"):
                ts.tile.commit_group()
