"""Attention and layers of encoders as formulas: outside of training PyTorch has one op for each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tessera.torch.compiled.attention import attended

torch: Any = import_module("torch")
_functional: Any = torch.nn.functional
_OF_PLACES, _OF_KEYS = 0, 1
"""What a mask is for: `(T, S)`, or `(B, S)`; others have all dimensions of scores."""


def several_heads(
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    w_in: Any,
    b_in: Any,
    w_out: Any,
    b_out: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """Return what `torch._native_multi_head_attention` gives: `(B, T, C)`, and weights if they are wanted."""
    if query is key is value:
        parts = _functional.linear(query, w_in, b_in).chunk(3, -1)
    else:
        given = zip((query, key, value), w_in.chunk(3), b_in.chunk(3), strict=True)
        parts = [_functional.linear(*each) for each in given]
    q, k, v = (one.unflatten(-1, (heads, width // heads)).transpose(1, 2) for one in parts)
    weights = None
    if mask is None and not need_weights:
        found = attended(q, k, v)
    else:
        weights = _weights(q, k, mask, mask_type)
        found = weights @ v
    out = _functional.linear(found.transpose(1, 2).flatten(2), w_out, b_out)
    if not need_weights or weights is None:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _weights(q: Any, k: Any, mask: Any, mask_type: int | None) -> Any:
    """Return how much each key counts: a mask hides those where it is not 0, and rows without any are NaN."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        wide = mask[:, None, None] if mask_type == _OF_KEYS else mask[None, None] if mask_type == _OF_PLACES else mask
        scores = scores.masked_fill(wide.to(torch.bool), float("-inf"))
    return scores.softmax(-1)


def encoded(
    x: Any,
    width: int,
    heads: int,
    w_in: Any,
    b_in: Any,
    w_out: Any,
    b_out: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    w_1: Any,
    b_1: Any,
    w_2: Any,
    b_2: Any,
    w_up: Any,
    b_up: Any,
    w_down: Any,
    b_down: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Return what `torch._transformer_encoder_layer_fwd` gives: `(B, T, C)`."""

    def normed(value: Any, weight: Any, bias: Any) -> Any:
        return _functional.layer_norm(value, (width,), weight, bias, eps)

    given = normed(x, w_1, b_1) if norm_first else x
    x = x + several_heads(given, given, given, width, heads, w_in, b_in, w_out, b_out, mask, False, True, mask_type)[0]
    x = x if norm_first else normed(x, w_1, b_1)
    given = normed(x, w_2, b_2) if norm_first else x
    gate = _functional.gelu if use_gelu else _functional.relu
    x = x + _functional.linear(gate(_functional.linear(given, w_up, b_up)), w_down, b_down)
    return x if norm_first else normed(x, w_2, b_2)
