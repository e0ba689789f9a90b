"""Functions that GPUs compute by approximations of their own, over all f32 numbers: errors are within the table's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tessera.numerics.functions import FUNCTIONS

pytestmark = pytest.mark.device
COUNT = 1 << 26


@pytest.fixture(scope="module")
def torch() -> Any:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("no GPU")
    return found


def kernel_of(function: Callable[[Any], Any]) -> Any:
    @ts.kernel
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]) -> None:
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = function(x[i : i + 1024])

    return kernel


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "erf", "exp2", "rsqrt"])
def test_every_f32(torch: Any, name: str) -> None:
    kernel, exact = kernel_of(getattr(ts.tile, name)), getattr(torch, name)
    bound = FUNCTIONS[name].ulp
    assert bound is not None
    y = torch.empty(COUNT, device="cuda")
    for part in range(2**32 // COUNT):
        bits = torch.arange(part * COUNT, (part + 1) * COUNT, device="cuda")
        x = torch.where(bits < 2**31, bits, bits - 2**32).to(torch.int32).view(torch.float32)
        x = torch.where(x.abs() < 2.0**-126, 0.0, x)  # what is no normal number counts as 0
        kernel(x, y)
        wanted = exact(x.double())
        rounded = wanted.float()
        assert torch.equal(y.isnan(), wanted.isnan())
        normal = (rounded.abs() >= 2.0**-125) & (rounded.abs() < 2.0**127)
        ulp = torch.exp2(torch.floor(torch.log2(rounded.abs().double())) - 23)
        # Of the argument of an exponential an error of one unit is allowed.
        allowed = bound[0] + bound[1] * x.double().abs().clamp_max(1e3) * 1.5
        worse = ~((y.double() - wanted).abs() <= allowed * ulp) & normal
        assert not bool(worse.any()), (name, x[worse][:4], y[worse][:4])
