"""Methods of tiles, as the stubs declare them and as kernels compile them."""

from __future__ import annotations

import inspect

import numpy as np

import tessera as ts
from tessera.frontend import registry, values
from tests.unit.frontend.support import built, ops, run


def test_the_stub_has_the_methods_that_kernels_have() -> None:
    registry.load_all()
    for name in registry.attributes_of(values.Tile(None)):  # pyright: ignore[reportArgumentType]
        member = inspect.getattr_static(ts.tile.Tile, name)
        assert inspect.getdoc(member), name
    declared = {name for name in vars(ts.tile.Tile) if not name.startswith("_")}
    assert declared == set(registry.attributes_of(values.Tile(None)))  # pyright: ignore[reportArgumentType]


def test_methods_take_the_arguments_of_their_functions() -> None:
    for name in ("sum", "max", "min", "prod", "any", "all", "mean", "var", "cumsum"):
        method = list(inspect.signature(getattr(ts.tile.Tile, name)).parameters.values())[1:]
        function = list(inspect.signature(getattr(ts.tile, name)).parameters.values())[1:]
        assert [(p.name, p.default) for p in method] == [(p.name, p.default) for p in function], name


def test_neighbouring_axes_are_reduced_at_once() -> None:
    def kernel(x: ts.Tensor[4, 8, 16, ts.f32], y: ts.Tensor[4, ts.f32], z: ts.Tensor[8, ts.f32]):
        y[:] = x[:, :, :].sum((1, 2))
        z[:] = x[:, :, :].sum((0, -1))

    shapes = [op.operands[0].type.shape for op in ops(built(kernel), "reduce")]
    assert shapes == [(4, 128), (4, 8, 16), (4, 8)]


def test_sizes_that_are_known_stay_known() -> None:
    def kernel(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32]):
        block = min(N, 32)
        for m, n in ts.tile.grid((M, 8), (N, block)):
            y[m : m + 8, n : n + block] = x[m : m + 8, n : n + min(block, 2**6)]

    assert [op.result.type.shape for op in ops(built(kernel, {"M": 64, "N": 24}), "load")] == [(8, 24)]


def test_numbers_known_at_compile_time_are_cast_as_others_are():
    def kernel(x: ts.Tensor["n", 3, "m", ts.f32], r: ts.Tensor["n", 5, ts.f32], k: ts.constexpr):
        for i in ts.tile.grid((n, 1)):
            r[i, 0] = x[i, 0, 0] * m.to(ts.f16)
            r[i, 1] = k.to(ts.i32)
            r[i, 2] = k.astype(ts.f64)
            r[i, 3] = (k > 1).to(ts.f32)
            r[i, 4] = x.shape[1].to(ts.f32)

    r = np.zeros((2, 5), np.float32)
    run(kernel, np.full((2, 3, 7), 0.5, np.float32), r, constexprs={"k": 2.5})
    np.testing.assert_array_equal(r, np.tile(np.float32([3.5, 2, 2.5, 1, 3]), (2, 1)))
