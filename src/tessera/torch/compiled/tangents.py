"""How gradients lie that come back to a graph.

PyTorch takes it that the gradient of a result has the result's strides, and copies one that has others. Where elements
of a result share places, as those of windows do, such a copy loses all but one of their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_schemas: Any = import_module("torch._functorch._aot_autograd.schemas")
_Guess: Any = getattr(_schemas, "MemoryFormatMeta", None)  # PyTorch's own: other versions may lack it
_guess: Any = getattr(_Guess, "from_tensor", None)


def put(is_tracing: bool) -> None:
    """Let PyTorch ask for contiguous gradients of results whose elements may share places, or guess as it does."""
    if _guess is not None:
        _Guess.from_tensor = staticmethod(_laid_out if is_tracing else _guess)


def _laid_out(result: Any, *args: Any, **named: Any) -> Any:
    found = _guess(result, *args, **named)
    if getattr(found, "stride", None) is None or not may_share(found.size, found.stride):
        return found
    return _Guess(memory_format=torch.contiguous_format)


def may_share(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether two elements of a tensor may lie in one place."""
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
