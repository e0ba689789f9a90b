"""Images and volumes sampled between their pixels, and where.

PyTorch's gradient of a sample has no parts, here pixels are read and weighted by ops that have gradients; its gradient
of a grid takes no sizes that are symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from itertools import product
from typing import Any

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_sample = _functional.grid_sample
_grid = _functional.affine_grid
_parts: Any = import_module("torch._decomp.decompositions")
_MODES = ("bilinear", "nearest", "bicubic")
_OUTSIDE = ("zeros", "border", "reflection")


def sampled(
    image: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Any:
    """Return what `torch.nn.functional.grid_sample` gives."""
    wide = torch.float64 if image.dtype == torch.float64 else torch.float32
    is_volume = image.ndim == 5 and mode != "bicubic"
    if not (image.ndim == 4 or is_volume) or mode not in _MODES or padding_mode not in _OUTSIDE:
        return _sample(image, grid, mode, padding_mode, align_corners)
    if not is_volume and mode != "bilinear":
        how = _MODES.index(mode), _OUTSIDE.index(padding_mode), bool(align_corners)
        found = _parts._grid_sampler_2d(image.to(wide), grid.to(wide), *how, False)
        return _without_slope(found, grid).to(image.dtype)
    sizes = image.shape[:1:-1]
    at = [_pixel(grid[..., axis].to(wide), size, bool(align_corners)) for axis, size in enumerate(sizes)]
    if padding_mode == "reflection":
        at = [_reflected(one, size, bool(align_corners)) for one, size in zip(at, sizes, strict=True)]
    if padding_mode != "zeros":
        at = [_clipped(one, size) for one, size in zip(at, sizes, strict=True)]
    if mode == "nearest":
        found = _pixels(image, [one.detach().round() for one in at], wide)
        return _without_slope(found.movedim(-1, 1), grid).to(image.dtype).contiguous()
    return _weighted(image, at, wide).movedim(-1, 1).to(image.dtype).contiguous()


def _without_slope(found: Any, grid: Any) -> Any:
    """Return samples whose gradient by their places is 0, as PyTorch's is where the nearest pixels are taken."""
    return torch.where(torch.ones_like(found, dtype=torch.bool), found, grid[:, None, ..., 0])


def _weighted(image: Any, at: Sequence[Any], wide: Any) -> Any:
    """Return the pixels around places, each of which weighs as much as the place is near to it: `(N, …, C)`.

    The slope at a pixel is that towards the next one, as PyTorch's is.
    """
    first = [one.detach().floor() for one in at]
    behind = [one - whole for one, whole in zip(at, first, strict=True)]
    total: Any = None
    for more in product(range(2), repeat=len(at)):
        places = [one + step for one, step in zip(first, more, strict=True)]
        weights = [rest if step else 1 - rest for rest, step in zip(behind, more, strict=True)]
        part = _pixels(image, places, wide) * _product(weights)[..., None]
        total = part if total is None else total + part
    return total


def _pixels(image: Any, places: Sequence[Any], wide: Any) -> Any:
    """Return the pixels at places, the last dimension's first, and 0 outside of the image: `(N, …, C)`."""
    sizes = image.shape[:1:-1]
    number = torch.arange(image.shape[0], device=image.device).reshape(-1, *[1] * len(places))
    inside = _product([_is_inside(place, size) for place, size in zip(places, sizes, strict=True)])
    whole = [place.clamp(0, size - 1).long() for place, size in zip(places, sizes, strict=True)]
    return torch.where(inside[..., None], image[number, :, *whole[::-1]].to(wide), 0.0)


def _pixel(place: Any, size: Any, corners: bool) -> Any:
    """Return a place from -1 to 1 in pixels."""
    return (place + 1) / 2 * (size - 1) if corners else ((place + 1) * size - 1) / 2


def _product(factors: Sequence[Any]) -> Any:
    """Return the product of numbers, or where all of several truth values are."""
    return reduce(lambda a, b: a * b, factors)


def _reflected(place: Any, size: Any, corners: bool) -> Any:
    """Return where a place is after reflections at the first and the last pixel, or at their outer edges."""
    low, span = (0.0, size - 1) if corners else (-0.5, size)
    if size == 1 and corners:
        return torch.zeros_like(place)
    place = torch.where(place < low, low - place, place - low)
    times = (place / span).detach().floor()
    rest = place - times * span
    return torch.where(times % 2 == 0, rest, span - rest) + low


def _clipped(place: Any, size: Any) -> Any:
    """Return a place in the image, whose slope is 0 from the outer pixels on; the first pixel where it is NaN."""
    within = torch.where(place.isnan(), 0.0, place.detach()).clamp(0, size - 1)
    return torch.where((place > 0) & (place < size - 1), place, within)


def _is_inside(place: Any, size: Any) -> Any:
    return (place >= 0) & (place < size)


def placed(theta: Any, size: Any, align_corners: bool | None = None) -> Any:
    """Return what `torch.nn.functional.affine_grid` gives: places from -1 to 1 that matrices map.

    Args:
        theta: matrices `(N, 2, 3)` or `(N, 3, 4)`.
        size: of the images, `(N, C, H, W)` or `(N, C, D, H, W)`; places are `(x, y)` or `(x, y, z)`.
        align_corners: whether -1 and 1 are the centres of the outer pixels, and not their outer edges.
    """
    sizes = [*size][2:]
    if len(sizes) not in (2, 3) or tuple(theta.shape[1:]) != (len(sizes), len(sizes) + 1):
        return _grid(theta, size, align_corners)
    like = {"dtype": theta.dtype, "device": theta.device}
    steps = [_centres(one, bool(align_corners), like) for one in sizes]
    spread = [*torch.meshgrid(*steps, indexing="ij")]
    places = torch.stack([*reversed(spread), torch.ones_like(spread[0])], -1).flatten(0, -2)
    return (places.unsqueeze(0) @ theta.mT).view(-1, *sizes, len(sizes))


def _centres(size: Any, corners: bool, like: dict[str, Any]) -> Any:
    """Return the places of pixels along a dimension, from -1 to 1."""
    steps = torch.linspace(-1, 1, size, **like)
    if corners:
        return steps if size > 1 else steps * 0
    return steps * ((size - 1) / size)
