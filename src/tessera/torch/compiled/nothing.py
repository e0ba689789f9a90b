"""Gradients of mean losses over no elements: PyTorch's parts divide by how many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tessera.torch.compiled.layouts import is_empty

torch: Any = import_module("torch")
_aten: Any = torch.ops.aten
_MEANS = (
    _aten.mse_loss_backward.default,
    _aten.smooth_l1_loss_backward.default,
    _aten.huber_loss_backward.default,
)


def table(usual: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return how gradients of such losses are taken apart, others as they are in a table."""
    return {op: _of_some(usual[op]) for op in _MEANS}


def _of_some(usual: Callable[..., Any]) -> Callable[..., Any]:
    def parts(grad: Any, x: Any, *given: Any) -> Any:
        return torch.zeros_like(x) if is_empty(x) else usual(grad, x, *given)

    return parts
