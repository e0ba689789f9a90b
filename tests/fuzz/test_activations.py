"""Activations that the library has in the language, against what the fuzzer says that they mean."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.tools.fuzz.functions import ACTIVATIONS, FUNCTIONS, GATES
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.meaning_elementwise import apply
from tessera.tools.fuzz.meaning_values import Val
from tessera.tools.fuzz.tree import Apply, walk
from tests.conformance.harness import dtype

NAMES = (*ACTIVATIONS, *GATES)
COUNT = 1024


def kernel_of(dt: Any) -> Any:
    @ts.kernel
    def kernel(x: ts.Tensor[COUNT, dt], g: ts.Tensor[COUNT, dt], y: ts.Tensor[11, COUNT, dt]):
        v, w = x[:], g[:]
        y[0, :] = ts.tile.mish(v)
        y[1, :] = ts.tile.elu(v)
        y[2, :] = ts.tile.elu(v, 0.5)
        y[3, :] = ts.tile.selu(v)
        y[4, :] = ts.tile.leaky_relu(v)
        y[5, :] = ts.tile.leaky_relu(v, slope=0.125)
        y[6, :] = ts.tile.hardsigmoid(v)
        y[7, :] = ts.tile.hardswish(v)
        y[8, :] = ts.tile.swiglu(v, w)
        y[9, :] = ts.tile.geglu(v, w)
        y[10, :] = ts.tile.geglu(v, w, approximate=True)

    return kernel


def numbers(name: str) -> np.ndarray:
    """Return numbers of all sizes: near the corners of the formulas, huge, tiny, not finite."""
    rng, kind = np.random.default_rng(5), dtype(name).numpy()
    largest = {"f32": 3.4e38, "f64": 1.7e308, "f16": 6.5e4, "bf16": 3.3e38}[name]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, largest / 6, -3.0, 3.0, 20.0, 1e-30, -1e-30]
    wide = rng.choice([-1, 1], 300) * 2.0 ** rng.uniform(-60, np.log2(largest), 300)
    near = rng.choice([-3.0, 0.0, 3.0, -1.19, 20.0], 211) + rng.normal(size=211) * 2.0 ** rng.uniform(-20, 0, 211)
    with np.errstate(over="ignore"):
        return np.concatenate([special, wide, near, rng.uniform(-30, 30, COUNT - 524)]).astype(kind)


@pytest.mark.parametrize("interpreted", [False, True], ids=["cpu", "interp"])
@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_they_are_as_near_as_the_bounds_say(name: str, interpreted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if interpreted:
        monkeypatch.setenv("TESSERA_INTERPRET", "1")
    x = numbers(name)
    g = np.roll(np.clip(x.astype(np.float64), -1e4, 1e4), 77).astype(x.dtype)
    y = np.zeros((len(NAMES), COUNT), x.dtype)
    kernel_of(dtype(name))(x, g, y)
    for row, fn in zip(y.astype(np.float64), NAMES, strict=True):
        args = [Val(name, each.astype(np.float64)) for each in (x, g)[: FUNCTIONS[fn].arity]]
        means = apply(fn, args, name, "fast")
        with np.errstate(invalid="ignore"):
            near = (
                (np.abs(row - means.data) <= means.errors())
                | (row == means.data)
                | (np.isnan(row) & np.isnan(means.data))
            )
        wrong = means.mask() & ~near
        assert not wrong.any(), (fn, x[wrong][:4], g[wrong][:4], row[wrong][:4], means.data[wrong][:4])
        assert means.mask().mean() > 0.85, fn


def test_programs_draw_them_all() -> None:
    drawn = Options(approximate=1.0, activations=0.9)
    found = {node.fn for seed in range(400) for node in walk(generate(seed, drawn)) if isinstance(node, Apply)}
    assert set(NAMES) <= found
