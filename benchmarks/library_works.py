"""The works of `library.py`: a library op, what PyTorch writes for the same, and the bytes both have to move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera import ops as op


@dataclass(frozen=True)
class Work:
    """An op on rows.

    Args:
        ours: the library's.
        eager: the same of PyTorch, which `torch.compile` takes too.
        inputs: what both are called with; the first ones have a row each.
        forward_bytes: read and written by a call.
        backward_bytes: read and written by the gradients.
    """

    ours: Callable[..., Any]
    eager: Callable[..., Any]
    inputs: Sequence[Any]
    forward_bytes: int
    backward_bytes: int


def _random(torch: Any, *shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_()


def rms(torch: Any, rows: int, width: int) -> Work:
    """RMSNorm with weights."""
    x, w = _random(torch, rows, width), _random(torch, width)
    f = torch.nn.functional
    return Work(
        lambda x, w: op.norm.rms(x, width, w, 1e-6),
        lambda x, w: f.rms_norm(x, (width,), w, 1e-6),
        (x, w),
        2 * x.nbytes,
        3 * x.nbytes,
    )


def ln(torch: Any, rows: int, width: int) -> Work:
    """LayerNorm with weights and bias."""
    x, w, b = _random(torch, rows, width), _random(torch, width), _random(torch, width)
    f = torch.nn.functional
    return Work(
        lambda x, w, b: op.norm.ln(x, width, w, b, 1e-5),
        lambda x, w, b: f.layer_norm(x, (width,), w, b, 1e-5),
        (x, w, b),
        2 * x.nbytes,
        3 * x.nbytes,
    )


def added_rms(torch: Any, rows: int, width: int) -> Work:
    """RMSNorm of a sum with a residual."""
    x, residual, w = _random(torch, rows, width), _random(torch, rows, width), _random(torch, width)
    f = torch.nn.functional
    return Work(
        lambda x, residual, w: op.norm.rms(x, width, w, 1e-6, residual=residual)[0],
        lambda x, residual, w: f.rms_norm(x + residual, (width,), w, 1e-6),
        (x, residual, w),
        4 * x.nbytes,
        3 * x.nbytes,
    )


WORKS: dict[str, Callable[[Any, int, int], Work]] = {"rms": rms, "ln": ln, "added_rms": added_rms}
"""By name."""
