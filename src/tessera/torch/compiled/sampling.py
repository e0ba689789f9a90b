"""Images sampled between their pixels, and where.

PyTorch's gradient of a sample has no parts, here pixels are read and weighted by ops that have gradients; its gradient
of a grid takes no sizes that are symbols.
"""

from __future__ import annotations

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
    if image.ndim != 4 or mode not in _MODES or padding_mode not in _OUTSIDE:
        return _sample(image, grid, mode, padding_mode, align_corners)
    if mode != "bilinear" or padding_mode == "reflection":
        how = _MODES.index(mode), _OUTSIDE.index(padding_mode), bool(align_corners)
        found = _parts._grid_sampler_2d(image.to(wide), grid.to(wide), *how, False)
        # PyTorch's gradient of places is 0 where the nearest pixels are taken.
        return torch.where(torch.ones_like(found, dtype=torch.bool), found, grid[:, None, ..., 0]).to(image.dtype)
    sizes = image.shape[3], image.shape[2]
    at = [_pixel(grid[..., axis].to(wide), size, bool(align_corners)) for axis, size in enumerate(sizes)]
    if padding_mode == "border":
        # PyTorch takes the first pixel where a place is NaN.
        at = [torch.where(one.isnan(), 0.0, one).clamp(0, size - 1) for one, size in zip(at, sizes, strict=True)]
    first = [one.detach().floor() for one in at]
    number = torch.arange(image.shape[0], device=image.device)[:, None, None]
    total: Any = None
    for x_more, y_more in product(range(2), repeat=2):
        places = first[0] + x_more, first[1] + y_more
        # A pixel weighs as much as the place is near to it.
        weight = (1 - (places[0] - at[0]).abs()) * (1 - (places[1] - at[1]).abs())
        inside = _is_inside(places[0], sizes[0]) & _is_inside(places[1], sizes[1])
        x, y = (place.clamp(0, size - 1).long() for place, size in zip(places, sizes, strict=True))
        pixels = torch.where(inside[..., None], image[number, :, y, x].to(wide), 0.0)
        part = pixels * weight[..., None]
        total = part if total is None else total + part
    return total.permute(0, 3, 1, 2).to(image.dtype).contiguous()


def _pixel(place: Any, size: Any, corners: bool) -> Any:
    """Return a place from -1 to 1 in pixels."""
    return (place + 1) / 2 * (size - 1) if corners else ((place + 1) * size - 1) / 2


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
