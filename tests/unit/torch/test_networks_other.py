"""Networks of `benchmarks/networks_other.py` in their small sizes, both ways, beside eager PyTorch in float64."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import networks_other  # noqa: E402 - only where PyTorch is

from tessera.torch.compiled import backend as compiled  # noqa: E402

NETWORKS = {one.name: one for one in networks_other.networks()}
LIGHT = (
    *("arcface", "autoencoder", "contrast", "coupling", "deep sets", "detector", "dlrm", "edge convolution"),
    *("factorization machine", "factors", "gmlp", "graph attention", "graph convolution", "mixer"),
    *("mixture density", "neural ode", "policy", "quantised", "siren", "spatial", "tcn", "wavenet"),
)
"""Those of few kernels."""


def step(run: Any, module: Any, given: Any, dtype: Any) -> list[Any]:
    """Return the result, and the gradients of parameters and floating point arguments."""
    given = [one.to(dtype).requires_grad_() if one.is_floating_point() else one for one in given]
    found = run(*given)
    torch.manual_seed(1)
    weights = torch.rand(found.shape, dtype=torch.float64).to(found)
    leaves = [one for one in (*given, *module.parameters()) if one.requires_grad]
    return [found, *torch.autograd.grad(found, leaves, weights, allow_unused=True)]


@pytest.mark.parametrize("name", LIGHT)
def test_networks_are_as_exact_as_eager(name):
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)
    module, given = NETWORKS[name].build("small"), NETWORKS[name].inputs("small", 0)
    wide = copy.deepcopy(module).double()
    exact = step(wide, wide, given, torch.float64)
    eager = step(module, module, given, torch.float32)
    got = step(torch.compile(module, backend=compiled.backend), module, given, torch.float32)
    for one, own, other in zip(exact, eager, got, strict=True):
        if one is None:
            assert other is None or not other.any()
            continue
        allowed = 2 * (own - one).abs().max() + 1e-5 * (1 + one.abs().max())
        assert (other - one).abs().max() <= allowed
    left = {op for report in compiled.reports for op in (*report.left, *filter(None, [report.reason]))}
    assert not {op for op in left if "convolution" not in op}
