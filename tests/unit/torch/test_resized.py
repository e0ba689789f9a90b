"""Gradients of resized images that add up what was computed of each pixel: eager PyTorch says what they are."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import resized  # noqa: E402

SHAPES = {"linear": (2, 3, 11), "bilinear": (2, 3, 7, 9), "trilinear": (1, 2, 4, 5, 6), "bicubic": (2, 1, 7, 9)}
HOW = {
    "twice": {"scale_factor": 2},
    "twice, corners": {"scale_factor": 2, "align_corners": True},
    "more": {"scale_factor": 1.5},
    "fewer": {"scale_factor": 0.6},
    "by sizes that follow": {"scale_factor": 1.3, "recompute_scale_factor": True},
    "to a size": {"size": (13, 8, 5)},
    "to a size, corners": {"size": (13, 8, 5), "align_corners": True},
    "to one": {"size": (1, 1, 1)},
    "each otherwise": {"scale_factor": (3, 0.4, 1)},
    "many times": {"scale_factor": 7},
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)
    monkeypatch.setattr(resized, "FASTER", ["cpu"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("mode", SHAPES)
def test_gradients_of_resized_images(mode: str, how: str, dtype: Any) -> None:
    shape = SHAPES[mode]
    given = {name: one[: len(shape) - 2] if isinstance(one, tuple) else one for name, one in HOW[how].items()}

    def resize(x: Any) -> Any:
        return F.interpolate(x * 1.5, mode=mode, **given)

    x = torch.randn(shape).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    run = torch.compile(resize, backend=compiled.backend)
    results = [run(x), resize(x), resize(wide)]
    by = torch.randn(results[0].shape, dtype=torch.float64)
    pairs = zip(results, (x, x, wide), strict=True)
    found, allowed, exact = (torch.autograd.grad(one, of, by.to(one.dtype))[0].double() for one, of in pairs)
    eps = 1e-12 if dtype == torch.float64 else 2**-6
    torch.testing.assert_close(results[0].double(), results[2], rtol=eps, atol=eps)
    least = float(exact.abs().max()) * eps / 4
    assert (found - exact).abs().max() <= max(2 * (allowed - exact).abs().max(), least)
    assert not any(report.left for report in compiled.reports)


def test_gradients_of_gradients_of_resized_images() -> None:
    def slope(x: Any) -> Any:
        found = F.interpolate(x.square(), scale_factor=2, mode="bilinear")
        return torch.autograd.grad(found.pow(3).sum(), x, create_graph=True)[0]

    x = torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert resized.resized(x, None, 2, "bilinear", None, None) is not None
    again = [torch.autograd.grad(one(x).square().sum(), x)[0] for one in (slope, _ours)]
    torch.testing.assert_close(*again)


def _ours(x: Any) -> Any:
    found = resized.resized(x.square(), None, 2, "bilinear", None, None)
    return torch.autograd.grad(found.pow(3).sum(), x, create_graph=True)[0]


def test_images_of_any_size_are_resized() -> None:
    def twice(x: Any) -> Any:
        return F.interpolate(x, scale_factor=2, mode="bilinear")

    run = torch.compile(twice, backend=compiled.backend, dynamic=True)
    for size in (3, 5, 8):
        x = torch.randn(1, 2, size, size + 1, requires_grad=True)
        torch.testing.assert_close(run(x), twice(x))
        torch.testing.assert_close(*(torch.autograd.grad(one(x).square().sum(), x)[0] for one in (run, twice)))
