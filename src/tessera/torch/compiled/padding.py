"""Circular padding in traced graphs: PyTorch takes it apart into copies, one after the other, of all its sides."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_pad: Any = torch._C._nn.pad
_Function: Any = torch.autograd.Function


def padded(input: Any, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    """Return what `torch.nn.functional.pad` gives."""
    sizes = tuple(input.shape)[::-1]
    known = all(isinstance(one, int) for one in (*pad, *sizes))
    if mode != "circular" or min(pad) < 0 or (known and any(one > sizes[at // 2] for at, one in enumerate(pad))):
        return _pad(input, pad, mode, value)
    return _Circular.apply(input, tuple(pad))


def _wrapped(x: Any, pad: Sequence[int]) -> Any:
    """Return an array with each dimension's end before it, and its beginning behind."""
    index: list[Any] = [None] * x.ndim
    for number, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        size = x.shape[-1 - number]
        places = torch.remainder(torch.arange(-before, size + after, device=x.device), size)
        index[-1 - number] = places.reshape(-1, *[1] * number)
    return torch.ops.aten.index.Tensor(x, index)


class _Circular(_Function):
    @staticmethod
    def forward(ctx: Any, x: Any, pad: tuple[int, ...]) -> Any:
        ctx.pad = pad
        return _wrapped(x, pad)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        """Add what lies before and behind each dimension to its end and beginning."""
        (g,) = grads
        found = g.to(torch.promote_types(g.dtype, torch.float32)) if g.is_floating_point() else g
        for number, (before, after) in enumerate(zip(ctx.pad[::2], ctx.pad[1::2], strict=True)):
            axis = found.ndim - 1 - number
            size = found.shape[axis] - before - after
            inner = found.narrow(axis, before, size)
            if before:
                inner = inner + _pad(found.narrow(axis, 0, before), [0, 0] * number + [size - before, 0])
            if after:
                inner = inner + _pad(found.narrow(axis, before + size, after), [0, 0] * number + [0, size - after])
            found = inner
        return found.to(g.dtype), None
