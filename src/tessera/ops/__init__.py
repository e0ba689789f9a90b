"""Library ops, written in the public language only. `from tessera import ops as op`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.ops import activation, attn, epilogue, linalg, loss, norm, optim, reduce
    from tessera.ops.attn import (
        append_kv,
        flash_attention,
        flash_attention_fp8,
        flash_attention_varlen,
        paged_attention,
    )
    from tessera.ops.counting import bincount, histogram, unique_consecutive
    from tessera.ops.linalg import matmul, specialize
    from tessera.ops.lookup import embedding
    from tessera.ops.loss import mse
    from tessera.ops.ordering import sort, topk
    from tessera.ops.random import dropout
    from tessera.ops.recurrent import gated_delta_rule, linear_attention, ssd
    from tessera.ops.running import cummax, cummin, cumprod, cumsum
    from tessera.ops.sequence import conv1d, scan
    from tessera.ops.softmaxes import log_softmax, logsumexp, softmax
    from tessera.ops.transforms import hadamard

FAMILIES = ("activation", "attn", "epilogue", "linalg", "loss", "norm", "optim", "reduce")
"""Modules of ops, one a family."""

OPS = {
    "append_kv": "attn",
    "bincount": "counting",
    "conv1d": "sequence",
    "cummax": "running",
    "cummin": "running",
    "cumprod": "running",
    "cumsum": "running",
    "dropout": "random",
    "embedding": "lookup",
    "flash_attention": "attn",
    "flash_attention_fp8": "attn",
    "flash_attention_varlen": "attn",
    "gated_delta_rule": "recurrent",
    "hadamard": "transforms",
    "histogram": "counting",
    "linear_attention": "recurrent",
    "log_softmax": "softmaxes",
    "logsumexp": "softmaxes",
    "matmul": "linalg",
    "mse": "loss",
    "paged_attention": "attn",
    "scan": "sequence",
    "softmax": "softmaxes",
    "sort": "ordering",
    "specialize": "linalg",
    "ssd": "recurrent",
    "topk": "ordering",
    "unique_consecutive": "counting",
}
"""Ops that are asked for by name, without a family, and the modules they are in: one of an op's name would hide it."""

MODULES = tuple(sorted({*FAMILIES, *OPS.values()}))
"""All modules that ops are in."""

__all__ = [
    "activation",
    "append_kv",
    "attn",
    "bincount",
    "conv1d",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dropout",
    "embedding",
    "epilogue",
    "flash_attention",
    "flash_attention_fp8",
    "flash_attention_varlen",
    "gated_delta_rule",
    "hadamard",
    "histogram",
    "linalg",
    "linear_attention",
    "log_softmax",
    "logsumexp",
    "loss",
    "matmul",
    "mse",
    "norm",
    "optim",
    "paged_attention",
    "reduce",
    "scan",
    "softmax",
    "sort",
    "specialize",
    "ssd",
    "topk",
    "unique_consecutive",
]


def __getattr__(name: str) -> Any:
    """Import a family of ops, or an op, when it is first asked for."""
    if name in FAMILIES:
        return import_module(f"tessera.ops.{name}")
    if name in OPS:
        globals()[name] = found = getattr(import_module(f"tessera.ops.{OPS[name]}"), name)
        return found
    raise AttributeError(f"module 'tessera.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
