"""Attention in traced graphs: a step of the library where it has the same meaning, else products and a softmax."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tessera.torch.attention import computed, in_autocast, is_taken

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional


def attended(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return what `torch.nn.functional.scaled_dot_product_attention` gives.

    A mask by places is aligned to the first key, as PyTorch has it.
    """
    query, key, value, attn_mask = in_autocast(torch, (query, key, value, attn_mask))
    if is_causal and (attn_mask is not None or query.shape[-2] != key.shape[-2]):
        attn_mask, is_causal = _also_earlier(query, key, attn_mask), False
    if not (0 <= dropout_p <= 1 and is_taken(torch, (query, key, value), attn_mask, is_causal, enable_gqa)):
        return _in_parts(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return computed(torch, (query, key, value), attn_mask, is_causal, scale, dropout_p)


def _earlier(query: Any, key: Any) -> Any:
    """Return which keys are at the place of a query or before it."""
    rows, columns = (torch.arange(one.shape[-2], device=query.device) for one in (query, key))
    return columns <= rows[:, None]


def _also_earlier(query: Any, key: Any, mask: Any) -> Any:
    """Return a mask that hides later keys, too."""
    earlier = _earlier(query, key)
    if mask is None:
        return earlier
    return mask & earlier if mask.dtype == torch.bool else mask.masked_fill(~earlier, float("-inf"))


def _in_parts(
    query: Any, key: Any, value: Any, mask: Any, rate: float, causal: bool, scale: float | None, shares: bool
) -> Any:
    """Return attention whose scores are in memory."""
    if shares:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if causal:
        mask = _earlier(query, key)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = torch.ops.aten._safe_softmax(scores, -1)
    return _functional.dropout(weights, rate) @ value
