"""Images enlarged by whole numbers: PyTorch takes them apart into scattered sums, here blocks are added up."""

from __future__ import annotations

from importlib import import_module
from math import prod
from typing import Any, cast

import numpy as np

from tessera.torch.compiled.resized import RANKS, resized

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_Function: Any = torch.autograd.Function

MOST = 16
"""Pixels of the largest block."""


def enlarged(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: bool = False,
) -> Any:
    """Return what `torch.nn.functional.interpolate` gives."""
    if mode in RANKS and not antialias:
        found = resized(x, size, scale_factor, mode, align_corners, recompute_scale_factor)
        if found is not None:
            return found
    times = _times(x, size, scale_factor) if mode == "nearest" and x.is_contiguous() else None
    if times is None:
        how = align_corners, recompute_scale_factor, antialias
        return _functional.interpolate(x, size, scale_factor, mode, *how)
    return _Enlarged.apply(x, times)


def _times(x: Any, size: Any, scale: Any) -> tuple[int, ...] | None:
    """Return how many times larger an image becomes along each dimension; None for other than small whole numbers."""
    own = tuple(x.shape[2:])
    if size is None:
        found = _several(scale, len(own))
    else:
        sizes = _several(size, len(own))
        if not all(isinstance(one, int) for one in (*own, *sizes)):
            return None
        found = tuple(one / other for one, other in zip(sizes, own, strict=True))
    if not all(isinstance(one, int | float) and one >= 1 and one == int(one) for one in found):
        return None
    times = tuple(map(int, found))
    exact = all(_is_exact(one, many) for one, many in zip(own, times, strict=True))
    return times if exact and 1 < prod(times) <= MOST else None


def _several(value: Any, count: int) -> tuple[Any, ...]:
    return tuple(cast("tuple[Any, ...]", value)) if isinstance(value, tuple | list) else (value,) * count


def _is_exact(size: Any, times: int) -> bool:
    """Return whether PyTorch, which computes places in f32, takes blocks of equal pixels."""
    if times & (times - 1) == 0:
        return True
    places = np.arange(size * times) if isinstance(size, int) else None
    if places is None:
        return False
    found = (places.astype(np.float32) * np.float32(1 / times)).astype(np.int64)
    return bool((np.minimum(found, size - 1) == places // times).all())


class _Enlarged(_Function):
    @staticmethod
    def forward(ctx: Any, x: Any, times: tuple[int, ...]) -> Any:
        """Return each pixel as a block."""
        ctx.times = times
        thin, wide, shape = list(x.shape[:2]), list(x.shape[:2]), list(x.shape[:2])
        for size, count in zip(x.shape[2:], times, strict=True):
            thin += [size, 1]
            wide += [size, count]
            shape.append(size * count)
        return x.reshape(thin).expand(wide).reshape(shape)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, None]:
        """Return the sum of each block."""
        shape = list(g.shape[:2])
        for size, count in zip(g.shape[2:], ctx.times, strict=True):
            shape += [size // count, count]
        return g.reshape(shape).sum(tuple(range(3, len(shape), 2))), None
