"""How gradients of norms are taken apart: PyTorch's way, but for norms over one element, which are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")

LAYER_NORM = torch.ops.aten.native_layer_norm_backward.default


def over_one_element(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return how the gradient of a layer norm is taken apart, from how it usually is.

    A number is its own mean: whatever it is, the result is the bias, and its gradient 0, or NaN where something is not
    finite. The usual parts subtract equal products from each other, of which a GPU rounds one, and multiply what is
    left by up to `1 / sqrt(eps)`.
    """

    def parts(
        grad: Any, x: Any, sizes: Sequence[Any], mean: Any, rstd: Any, weight: Any, bias: Any, wanted: Sequence[bool]
    ) -> Any:
        found = usual(grad, x, sizes, mean, rstd, weight, bias, wanted)
        if not wanted[0] or not all(type(size) is int and size == 1 for size in sizes):
            return found
        nothing = (x - mean) * rstd * grad  # NaN where one of them is not finite
        return ((nothing if weight is None else nothing * weight).to(x.dtype), *found[1:])

    return parts
