"""Tessera's attention in place of PyTorch's."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tessera.ops.attn import flash_attention

_DEVICES = ("cpu", "cuda")


@contextmanager
def sdpa() -> Generator[None]:
    """Let `torch.nn.functional.scaled_dot_product_attention` be Tessera's attention inside a `with` block.

    So models compute with it whose source says nothing of it; inside `torch.autocast` in its dtype. Calls that it does
    not take go to PyTorch as before: of other dtypes than f32, bf16, f16 and f64, of fewer than three or more than four
    dimensions or heads without elements, on other devices, with dropout on GPUs, where PyTorch's is faster, inside
    `torch.func` and forward-mode differentiation, and causal ones of other than as many queries as keys, which PyTorch
    aligns to the first key. Masks are added to scores; boolean ones hide. Dropout draws a seed from PyTorch's
    generator, and leaves out other weights than PyTorch does. Gradients of gradients are refused (`no-gradient`). The
    function is replaced for all threads; code that has imported it by name keeps PyTorch's.
    """
    torch: Any = sys.modules["torch"]
    functional, theirs = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention

    def ours(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        *given, attn_mask = in_autocast(torch, (query, key, value, attn_mask))
        drops_here = 0 <= dropout_p <= 1 and not (dropout_p and query.is_cuda)
        if not (drops_here and is_taken(torch, given, attn_mask, is_causal, enable_gqa)):
            options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
            return theirs(*given, **options, enable_gqa=enable_gqa)
        return computed(torch, given, attn_mask, is_causal, scale, dropout_p)

    functional.scaled_dot_product_attention = ours
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = theirs


def in_autocast(torch: Any, given: Sequence[Any]) -> list[Any]:
    """Return arguments, of which the first is a tensor, as autocast has them, if it is on."""
    device = given[0].device.type
    if device not in _DEVICES or not torch.is_autocast_enabled(device):
        return list(given)
    return [_cast(torch, one, torch.get_autocast_dtype(device)) for one in given]


def computed(torch: Any, given: Sequence[Any], mask: Any, causal: bool, scale: float | None, dropout: float) -> Any:
    """Return the attention of queries, keys and values that `is_taken`, with a batch or without."""
    q, k, v = (one if one.dim() == 4 else one[None] for one in given)
    # A tensor: a number would make the host wait for the device, and be the same in each replay of a graph.
    seed = torch.randint(-(2**63), 2**63 - 1, (1,), device=q.device) if dropout else None
    found = flash_attention(q, k, v, causal=causal, scale=scale, bias=mask, dropout_p=dropout, seed=seed)
    return found if given[0].dim() == 4 else found[0]


def _cast(torch: Any, array: Any, kind: Any) -> Any:
    """Return an argument as autocast has it."""
    if array is None or array.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return array
    return array.to(kind)


def is_taken(torch: Any, given: Sequence[Any], mask: Any, is_causal: bool, shares: bool) -> bool:
    """Return whether a call is computed by Tessera."""
    query, key, value = given
    kinds = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
    if any(one.dtype != query.dtype or one.dim() != query.dim() for one in given) or query.dtype not in kinds:
        return False
    if query.device.type not in _DEVICES or torch.autograd.forward_ad._current_level >= 0:
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if not torch.compiler.is_dynamo_compiling() and any(map(wrapped, given)):  # which Dynamo cannot trace
        return False
    if not all(one.shape[-1] for one in given):
        return False
    if query.dim() not in (3, 4) or (is_causal and (mask is not None or query.shape[-2] != key.shape[-2])):
        return False
    if any(one.is_nested for one in given) or query.shape[:-3] != key.shape[:-3]:
        return False
    heads = query.shape[-3] == key.shape[-3] or (shares and key.shape[-3] and query.shape[-3] % key.shape[-3] == 0)
    return bool(heads) and key.shape[:-1] == value.shape[:-1]
