"""Images resized with a filter that is as wide as an output pixel: products with matrices of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_aten: Any = torch.ops.aten
_REACH = {"bilinear": 1.0, "bicubic": 2.0}
"""How far a filter reaches to each side, in pixels of the smaller image."""
_SHARPNESS = -0.5
"""The parameter of the cubic filter.

Source: Keys, Cubic convolution interpolation for digital image processing, 1981.
"""


def table() -> dict[Any, Callable[..., Any]]:
    """Return how such ops are taken apart, and their gradients."""
    found: dict[Any, Callable[..., Any]] = {}
    for mode in _REACH:
        found[getattr(_aten, f"_upsample_{mode}2d_aa").default] = partial(_smoothed, mode)
        found[getattr(_aten, f"_upsample_{mode}2d_aa_backward").default] = partial(_smoothed_back, mode)
    return found


def _smoothed(mode: str, x: Any, sizes: Sequence[Any], corners: bool, *scales: Any) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    down, across = _both(mode, x, x.shape[2:], sizes, corners, scales)
    return (down @ (x.to(down.dtype) @ across.mT)).to(x.dtype)


def _smoothed_back(mode: str, g: Any, sizes: Sequence[Any], shape: Sequence[Any], corners: bool, *scales: Any) -> Any:
    down, across = _both(mode, g, shape[2:], sizes, corners, scales)
    return (down.mT @ g.to(down.dtype) @ across).to(g.dtype)


def _both(mode: str, like: Any, own: Sequence[Any], new: Sequence[Any], corners: bool, scales: Sequence[Any]) -> Any:
    """Return the weights along both dimensions, in the dtype that sums are computed in."""
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    scales = scales or (None, None)
    return [_weights(*each, mode, corners, like.device).to(wide) for each in zip(own, new, scales, strict=True)]


def _weights(own: Any, new: Any, scale: Any, mode: str, corners: bool, device: Any) -> Any:
    """Return how much each pixel of a row counts in each of a resized row, `(new, own)`."""
    if corners:
        step = (own - 1) / (new - 1) if new > 1 else 0.0
    else:
        step = 1 / scale if scale else own / new
    width = step if step >= 1 else 1.0
    reach = _REACH[mode] * width
    centre = (torch.arange(new, device=device, dtype=torch.float64)[:, None] + 0.5) * step
    pixel = torch.arange(own, device=device, dtype=torch.float64)
    inside = (pixel >= (centre - reach + 0.5).trunc()) & (pixel < (centre + reach + 0.5).trunc())
    found = torch.where(inside, _FILTERS[mode](((pixel - centre + 0.5) / width).abs()), 0.0)
    return found / found.sum(1, keepdim=True)


def _linear(x: Any) -> Any:
    return (1 - x).clamp(min=0)


def _cubic(x: Any) -> Any:
    a = _SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


_FILTERS = {"bilinear": _linear, "bicubic": _cubic}
