"""Ops along a dimension of a tensor that has none: PyTorch takes it for a row of one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_aten: Any = torch.ops.aten
_ALONG = (
    *(_aten.cumsum.default, _aten.cumprod.default, _aten.cummax.default, _aten.cummin.default),
    *(_aten.logcumsumexp.default, _aten.sort.default, _aten.sort.stable, _aten.topk.default, _aten.kthvalue.default),
    *(_aten.median.dim, _aten.nanmedian.dim, _aten.mode.default, _aten.argmax.default, _aten.argmin.default),
    *(_aten.gather.default, _aten.index_select.default, _aten.index_reduce.default, _aten.masked_scatter.default),
    *(_aten.scatter.value, _aten.scatter.src, _aten.scatter_add.default, _aten.scatter_reduce.two),
)
"""Ops that take a dimension, and operands that have as many as the first one."""


def table(usual: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return how ops of tensors without dimensions are taken apart, others as they are in a table."""
    return {op: _over_a_row(op, usual.get(op)) for op in _ALONG}


def _over_a_row(op: Any, usual: Callable[..., Any] | None) -> Callable[..., Any]:
    def parts(x: Any, *given: Any, **named: Any) -> Any:
        if x.ndim:
            return NotImplemented if usual is None else usual(x, *given, **named)
        shape = given[1].shape if op is _aten.gather.default else x.shape
        found = op(*map(_as_row, (x, *given)), **named)
        if isinstance(found, torch.Tensor):
            return found.reshape(shape)
        return tuple([one.reshape(shape) for one in found])

    return parts


def _as_row(given: Any) -> Any:
    return given.reshape(1) if isinstance(given, torch.Tensor) and not given.ndim else given
