"""Gradients of products along a dimension: PyTorch's parts take several running products, lest they divide by 0.

A product without one of its factors is all of it divided by that one, where none is 0; where one is, all others of its
row have a gradient of 0.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_product, _running = torch.prod, torch.cumprod
_NARROW = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of which f64 holds every product whose quotient by one of them is a number of theirs."""
_FLOATS = (*_NARROW, torch.float64)


def multiplied(*given: Any, **named: Any) -> Any:
    """Return what `torch.prod` gives."""
    if not given or named.keys() - {"dim", "keepdim"} or not _is_ours(given[0], _NARROW):
        return _product(*given, **named)
    return _of_all(*given) if len(given) + len(named) == 1 else _along(*given, **named)


def running(*given: Any, **named: Any) -> Any:
    """Return what `torch.cumprod` gives."""
    if not given or named.keys() - {"dim"} or not _is_ours(given[0], _FLOATS):
        return _running(*given, **named)
    return _Running.apply(given[0], *given[1:], *named.values())


def _of_all(x: Any) -> Any:
    return _Product.apply(x.reshape(-1), 0, False)


def _along(x: Any, dim: int, keepdim: bool = False) -> Any:
    return _Product.apply(x, dim, keepdim)


def _is_ours(x: Any, dtypes: tuple[Any, ...]) -> bool:
    """Return whether products of a tensor have a gradient that is computed here."""
    is_wanted = x.requires_grad and torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is None
    return is_wanted and x.dtype in dtypes and x.ndim > 0 and x.numel() > 0


def _again(function: Any, x: Any, g: Any, *args: Any) -> Any:
    """Return a gradient that has gradients of its own, as PyTorch takes it."""
    return torch.autograd.grad(function(x, *args), x, g, create_graph=True)[0]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, keepdim: bool) -> Any:
        ctx.save_for_backward(x)
        ctx.how = dim, keepdim
        return _product(x, dim, keepdim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ((x,), (g,), (dim, keepdim)) = ctx.saved_tensors, grads, ctx.how
        if torch.is_grad_enabled():
            return _again(_product, x, g, dim, keepdim), None, None
        g = g if keepdim else g.unsqueeze(dim)
        is_zero = x == 0
        zeros = is_zero.sum(dim, keepdim=True)
        others = torch.where(is_zero, 1.0, x.to(torch.float64)).prod(dim, keepdim=True) * g
        alone, whole = torch.where(zeros == 1, others, 0.0), torch.where(zeros == 0, others, 0.0)
        return torch.where(is_zero, alone, whole / x).to(x.dtype), None, None


class _Running(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int) -> Any:
        ctx.save_for_backward(x)
        ctx.dim = dim
        return _running(x, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Let the first 0 of each row alone be 1: it stops what it multiplies, and takes the gradients of all that."""
        ((x,), (g,), dim) = ctx.saved_tensors, grads, ctx.dim
        if torch.is_grad_enabled():
            return _again(_running, x, g, dim), None
        shape = [1] * x.ndim
        shape[dim] = x.shape[dim]
        place = torch.arange(x.shape[dim], device=x.device, dtype=torch.int32).reshape(shape)
        first = torch.where(x == 0, place, x.shape[dim]).amin(dim, keepdim=True)
        counts = _running(torch.where(place == first, 1.0, x), dim) * g
        after = torch.where(place < first, 0.0, counts).sum(dim, keepdim=True)
        before = torch.where(place < first, counts, 0.0).flip(dim).cumsum(dim).flip(dim) / x
        return torch.where(place < first, before, torch.where(place == first, after, 0.0)), None
