"""Gradients of images resized by linear and cubic filters: each pixel adds up the few that were computed of it.

PyTorch takes such an image apart into pixels that are read at places, whose gradients are sums scattered to them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_Function: Any = torch.autograd.Function

FASTER = ["cuda"]
"""Devices on which pixels are added up faster than sums are scattered; CPUs scatter as fast, or faster."""
_MOST = 8
"""Pixels along a dimension that are added up."""
_SHARPNESS = -0.75
"""The parameter of PyTorch's cubic filter."""


class _Axis(NamedTuple):
    """A dimension that is resized.

    Args:
        axis: which.
        own: its size.
        new: what it becomes.
        step: how far apart the places of neighbours are that are computed.
        corners: whether the first and last are those of the image.
        cubic: whether the filter is.
        before: how far the first pixel that counts is before `i * new // own`, at most.
        pixels: how many count.
    """

    axis: int
    own: int
    new: int
    step: float
    corners: bool
    cubic: bool
    before: int = 0
    pixels: int = 0


def resized(x: Any, size: Any, scale: Any, mode: str, corners: Any, recompute: Any) -> Any:
    """Return what `torch.nn.functional.interpolate` gives for one of `FILTERS`, None where that is left to PyTorch."""
    if not x.requires_grad or x.device.type not in FASTER or x.dim() != RANKS.get(mode):
        return None
    own = tuple(x.shape[2:])
    if not all(isinstance(one, int) and one for one in own) or (size is None) == (scale is None):
        return None
    given = _each(size if scale is None else scale, len(own))
    new = given if scale is None else [int(one * factor) for one, factor in zip(own, given, strict=True)]
    if not all(isinstance(one, int) and one > 0 for one in new):
        return None
    exact = [None] * len(own) if scale is None or recompute else given
    axes: list[_Axis] = []
    for number, (one, other, factor) in enumerate(zip(own, new, exact, strict=True)):
        found = _reach(
            _Axis(number + 2, one, other, _step(one, other, factor, corners), bool(corners), "cubic" in mode)
        )
        if found.pixels > _MOST:
            return None
        axes.append(found)
    return _Resized.apply(x, (size, scale, mode, corners, recompute), axes)


RANKS = {"linear": 3, "bilinear": 4, "trilinear": 5, "bicubic": 4}
"""Dimensions of what filters resize."""


def _each(value: Any, count: int) -> list[Any]:
    return [*value] if isinstance(value, tuple | list) else [value] * count


def _step(own: int, new: int, factor: Any, corners: Any) -> float:
    if corners:
        return (own - 1) / (new - 1) if new > 1 else 0.0
    return 1 / factor if factor else own / new


def _reach(axis: _Axis) -> _Axis:
    """Return a dimension with how many pixels of the result count for one of the image, and where they begin."""
    pixel = np.arange(axis.new)
    place = pixel * axis.step if axis.corners else (pixel + 0.5) * axis.step - 0.5
    near = np.floor(place if axis.cubic else np.maximum(place, 0)).astype(np.int64)
    low, high = (np.clip(near + by, 0, axis.own - 1) for by in ((-1, 2) if axis.cubic else (0, 1)))
    image = np.arange(axis.own)
    first = np.searchsorted(high, image)
    last = np.searchsorted(low, image, "right") - 1
    start = image * axis.new // axis.own
    before = int((start - first).max())
    return axis._replace(before=before, pixels=max(int((last - start).max()) + before + 1, 1))


class _Resized(_Function):
    @staticmethod
    def forward(ctx: Any, x: Any, how: tuple[Any, ...], axes: list[_Axis]) -> Any:
        """Return the image resized."""
        ctx.axes, ctx.dtype = axes, x.dtype
        size, scale, mode, corners, recompute = how
        return _functional.interpolate(x, size, scale, mode, corners, recompute)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        """Return the gradient of the image."""
        found = g.to(torch.promote_types(g.dtype, torch.float32))
        for axis in reversed(ctx.axes):
            if axis.step != 1 or axis.own != axis.new:
                found = _gathered(found, axis)
        return found.to(ctx.dtype), None, None


def _gathered(g: Any, axis: _Axis) -> Any:
    """Return the gradient before a dimension was resized from that after it."""
    pixel = torch.arange(axis.own, device=g.device)
    first = pixel * axis.new // axis.own - axis.before
    total: Any = None
    for number in range(axis.pixels):
        at = first + number
        weight = torch.where((at >= 0) & (at < axis.new), _weight(at, pixel, axis, g.dtype), 0.0)
        part = g.index_select(axis.axis, at.clamp(0, axis.new - 1))
        part = part * weight.reshape(-1, *[1] * (g.dim() - axis.axis - 1))
        total = part if total is None else total + part
    return total


def _weight(at: Any, pixel: Any, axis: _Axis, dtype: Any) -> Any:
    """Return how much pixels of an image count in some of the result."""
    wide = at.to(dtype)
    place = wide * axis.step if axis.corners else (wide + 0.5) * axis.step - 0.5
    place = place if axis.cubic else place.clamp(min=0)
    near = place.floor()
    rest, near = place - near, near.to(torch.int64)
    total: Any = None
    for by, weigh in (_CUBIC if axis.cubic else _LINEAR).items():
        hits = (near + by).clamp(0, axis.own - 1) == pixel
        part = torch.where(hits, weigh(rest), 0.0)
        total = part if total is None else total + part
    return total


def _close(x: Any) -> Any:
    return ((_SHARPNESS + 2) * x - (_SHARPNESS + 3)) * x * x + 1


def _far(x: Any) -> Any:
    return ((_SHARPNESS * x - 5 * _SHARPNESS) * x + 8 * _SHARPNESS) * x - 4 * _SHARPNESS


_LINEAR: dict[int, Callable[[Any], Any]] = {0: lambda rest: 1 - rest, 1: lambda rest: rest}
_CUBIC: dict[int, Callable[[Any], Any]] = {
    -1: lambda rest: _far(rest + 1),
    0: _close,
    1: lambda rest: _close(1 - rest),
    2: lambda rest: _far(2 - rest),
}
"""Weights by how far a pixel is from the one before a place, of how far the place is behind that one.

Source: Keys, Cubic convolution interpolation for digital image processing, 1981.
"""
