"""How PyTorch's tensors lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from tessera.data import dataclass

torch: Any = import_module("torch")
_prims: Any = import_module("torch._prims_common")
_symbolic: Any = import_module("torch.fx.experimental.symbolic_shapes")
_sympy: Any = import_module("sympy")
_LIKELY = 64
"""The size that is likely where data decide it."""

Order = tuple[int, ...]
"""The dimensions of a tensor, the one with the longest stride first."""


@dataclass(frozen=True, slots=True)
class Lies:
    """How a value's dimensions lie in memory.

    Args:
        order: the dimension with the longest stride first; None for their own order.
        is_turned: whether the value comes with its dimensions in that order.
    """

    order: Order | None
    is_turned: bool


def order_of(fake: Any) -> Order | None:
    """Return a tensor's dimensions, the one with the longest stride first; None where that is their own order.

    Some ops take tensors only as they lie when the program runs without a compiler.
    """
    if not isinstance(fake, torch.Tensor) or is_dense(fake):
        return None
    order = tuple(sorted(range(fake.ndim), key=lambda axis: (-hint_of(fake.stride(axis)), axis)))
    if not is_dense(fake.permute(order)):
        return None
    return (*order, fake.ndim) if fake.is_complex() else order


def gaps_of(fake: Any) -> tuple[Any, ...] | None:
    """Return the strides of a tensor whose elements lie apart, or are the same; None for any other."""
    return None if is_dense(fake) or order_of(fake) is not None else tuple(fake.stride())


def with_gaps(tensor: Any, strides: Sequence[int]) -> Any:
    """Return a tensor whose elements lie at some strides, by which those are the same that lie in one place."""
    steps = zip(tensor.stride(), strides, tensor.shape, strict=True)
    if all(have == step or size < 2 for have, step, size in steps):
        return tensor
    single = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    source = tensor[single]
    found = torch.empty_strided(source.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(source)
    return found.expand(tensor.shape)


def hint_of(size: Any) -> int:
    """Return a size when the graph was traced, a likely one where only a call can tell."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    hint = size.node.hint
    if hint is None:
        expression = size.node.expr
        hint = expression.xreplace(dict.fromkeys(expression.free_symbols, _sympy.Integer(_LIKELY)))
    return int(hint)


def is_dense(fake: Any) -> bool:
    """Return whether a traced tensor's elements surely lie side by side, in the order of its dimensions."""
    return bool(_prims.is_contiguous_or_false(fake))


def is_empty(fake: Any) -> bool:
    """Return whether a traced tensor surely has no elements."""
    return any(_symbolic.guard_or_false(size == 0) for size in fake.shape)


def in_order(tensor: Any, lies: Lies) -> Any:
    """Return a tensor as an op or a caller has to get it."""
    order = lies.order
    if order is None:
        return tensor
    if lies.is_turned:
        return tensor.permute(_back(order))
    if tensor.permute(order).is_contiguous():
        return tensor
    return torch.empty_permuted(tensor.shape, order, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


@cache
def _back(order: Order) -> Order:
    """Return the permutation that gives a tensor in an order its own."""
    return tuple(order.index(axis) for axis in range(len(order)))
