"""Bags of embeddings in traced graphs: rows are taken and combined by ops that have gradients of their own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional


def bagged(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: Any = None,
) -> Any:
    """Return what `torch.nn.functional.embedding_bag` gives."""
    apart = input.dim() == 2
    takes = mode in ("sum", "mean") or (mode == "max" and apart and padding_idx is None and input.shape[1] > 0)
    if max_norm is not None or scale_grad_by_freq or sparse or not takes:
        more = max_norm, norm_type, scale_grad_by_freq, mode, sparse
        rest = per_sample_weights, include_last_offset, padding_idx
        return _functional.embedding_bag(input, weight, offsets, *more, *rest)
    rows = _functional.embedding(input, weight, padding_idx)
    if mode == "max":
        return _largest(rows)
    counted = None if padding_idx is None else input != padding_idx % weight.shape[0]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if counted is not None:
        rows = torch.where(counted.unsqueeze(-1), rows, 0)
    if apart:
        total = rows.sum(1)
        many = torch.full_like(input[:, 0], input.shape[1]) if counted is None else counted.sum(1)
    else:
        total, many = _in_bags(rows, counted, offsets, include_last_offset)
    return total if mode == "sum" else total / many.clamp(min=1).unsqueeze(-1).to(total.dtype)


def _in_bags(rows: Any, counted: Any, offsets: Any, ends: bool) -> tuple[Any, Any]:
    """Return the sum of the rows of each bag, and how many there are."""
    count = offsets.shape[0]
    place = torch.arange(rows.shape[0], device=rows.device)
    bag = (offsets[None, :] <= place[:, None]).sum(1) - 1
    ones = torch.ones_like(place) if counted is None else counted.to(place.dtype)
    total = rows.new_zeros(count, rows.shape[1]).index_add(0, bag, rows)
    many = place.new_zeros(count).index_add(0, bag, ones)
    # What lies behind the last offset is in no bag.
    return (total[:-1], many[:-1]) if ends else (total, many)


def _largest(rows: Any) -> Any:
    """Return the largest elements of bags; NaN counts where it comes first, as nothing is larger."""
    first = rows[:, :1].detach().isnan()
    return torch.where(rows.isnan() & ~first, float("-inf"), rows).max(1).values
