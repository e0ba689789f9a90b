"""How norms are taken apart: group norms for one kernel, layer norms of single elements to what is exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tessera.torch.compiled.layouts import is_empty

torch: Any = import_module("torch")
_computation_dtype: Callable[[Any], Any] = import_module("torch._prims_common").get_computation_dtype

LAYER_NORM = torch.ops.aten.native_layer_norm_backward.default
GROUP_NORM = torch.ops.aten.native_group_norm.default
GROUP_NORM_BACKWARD = torch.ops.aten.native_group_norm_backward.default


def table(usual: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return how norms are taken apart, from how they usually are."""
    return {
        LAYER_NORM: over_one_element(usual[LAYER_NORM]),
        GROUP_NORM: group_norm,
        GROUP_NORM_BACKWARD: of_rows(usual[GROUP_NORM_BACKWARD]),
    }


def group_norm(
    x: Any, weight: Any, bias: Any, samples: Any, channels: Any, size: Any, groups: int, eps: float
) -> tuple[Any, Any, Any]:
    """Return a group norm of `(samples, channels, …)` with means and reciprocal deviations of groups.

    All of it works on groups, channels of a group and elements of a channel, so that nothing is reshaped between the
    reductions and what reads their results.
    """
    each = channels // groups
    rows = x.reshape(samples, groups, each, size).to(_computation_dtype(x.dtype))
    variance, mean = torch.var_mean(rows, (2, 3), correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    found = (rows - mean) * rstd
    if weight is not None:
        found = found * weight.reshape(1, groups, each, 1)
    if bias is not None:
        found = found + bias.reshape(1, groups, each, 1)
    statistics = [one.reshape(samples, groups).to(x.dtype) for one in (mean, rstd)]
    return found.to(x.dtype).reshape(x.shape), statistics[0], statistics[1]


def of_rows(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return how the gradient of a group norm is taken apart: the usual way, of arrays whose channels are rows.

    Both of its sums then go along the same dimensions of the same arrays.
    """

    def parts(grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, samples: Any, channels: Any, size: Any, *rest: Any):
        if is_empty(x):  # the usual way divides by how many elements a group has
            return _of_nothing(x, rstd, channels, *rest)
        rows = [one.reshape(samples, channels, size) for one in (grad, x)]
        first, *others = usual(*rows, mean, rstd, weight, samples, channels, size, *rest)
        return (None if first is None else first.reshape(x.shape), *others)

    return parts


def _of_nothing(x: Any, rstd: Any, channels: Any, groups: int, wanted: Sequence[bool]) -> tuple[Any, Any, Any]:
    """Return the gradient of a group norm without elements: by weights, NaN where groups without elements are."""
    zeros = (rstd * 0).sum(0)[:, None].expand(groups, channels // groups).reshape(channels)
    return torch.zeros_like(x), zeros if wanted[1] else None, torch.zeros_like(zeros) if wanted[2] else None


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
