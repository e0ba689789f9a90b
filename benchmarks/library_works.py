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


def softmax(torch: Any, rows: int, width: int) -> Work:
    """Softmax of rows."""
    x = _random(torch, rows, width)
    return Work(lambda x: op.softmax(x, 1), lambda x: torch.softmax(x, 1), (x,), 2 * x.nbytes, 3 * x.nbytes)


def cross_entropy(torch: Any, rows: int, width: int) -> Work:
    """Cross-entropy of rows of logits, a loss for each."""
    x, target = _random(torch, rows, width), torch.randint(0, width, (rows,), device="cuda")
    f = torch.nn.functional
    return Work(
        lambda x, target: op.loss.cross_entropy(x, target, reduction="none"),
        lambda x, target: f.cross_entropy(x, target, reduction="none"),
        (x, target),
        x.nbytes,
        2 * x.nbytes,
    )


def swiglu(torch: Any, rows: int, width: int) -> Work:
    """SwiGLU of a gate and a value."""
    x, y = _random(torch, rows, width), _random(torch, rows, width)
    f = torch.nn.functional
    return Work(op.activation.swiglu, lambda x, y: f.silu(x) * y, (x, y), 3 * x.nbytes, 5 * x.nbytes)


def mse(torch: Any, rows: int, width: int) -> Work:
    """Mean of squared differences."""
    x, y = _random(torch, rows, width), _random(torch, rows, width)
    return Work(op.mse, torch.nn.functional.mse_loss, (x, y), 2 * x.nbytes, 4 * x.nbytes)


def total(torch: Any, rows: int, width: int) -> Work:
    """Sums of rows."""
    x = _random(torch, rows, width)
    return Work(lambda x: op.reduce.sum(x, 1), lambda x: x.sum(1), (x,), x.nbytes, x.nbytes)


def running(torch: Any, rows: int, width: int) -> Work:
    """Running sums of rows."""
    x = _random(torch, rows, width)
    return Work(lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1), (x,), 2 * x.nbytes, 2 * x.nbytes)


def rope(torch: Any, rows: int, width: int) -> Work:
    """Rotary embedding of 32 heads of 128 elements, as many positions as fill the rows."""
    positions = max(rows * width // (128 * 32), 1)
    x = torch.randn(1, 32, positions, 128, device="cuda", dtype=torch.bfloat16).requires_grad_()
    angle = torch.arange(positions, device="cuda")[:, None] * 10000.0 ** (-torch.arange(64, device="cuda") / 64)
    cos, sin = angle.cos(), angle.sin()

    def theirs(x: Any) -> Any:
        low, high = x.chunk(2, -1)
        turn = (cos.to(x.dtype), sin.to(x.dtype))
        return torch.cat([low * turn[0] - high * turn[1], high * turn[0] + low * turn[1]], -1)

    return Work(lambda x: op.attn.rope(x, cos=cos, sin=sin), theirs, (x,), 2 * x.nbytes, 2 * x.nbytes)


WORKS: dict[str, Callable[[Any, int, int], Work]] = {
    "rms": rms,
    "ln": ln,
    "added_rms": added_rms,
    "softmax": softmax,
    "cross_entropy": cross_entropy,
    "swiglu": swiglu,
    "mse": mse,
    "sum": total,
    "cumsum": running,
    "rope": rope,
}
"""By name."""
