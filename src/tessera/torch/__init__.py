"""Tessera's library ops as operators of PyTorch: `import tessera.torch` registers `torch.ops.tessera.*`.

`tessera.torch.sdpa()` puts its attention in place of PyTorch's. `tessera.torch.explain(f, x)` says what a call of a
function that `torch.compile(…, backend="tessera")` made ran.

Functions of `tessera.ops` register what they need when a tensor asks for gradients. Import this module before
`torch.compile` traces them: tracing cannot register operators.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera.collecting import collector_paused
from tessera.errors import TargetError
from tessera.ops import MODULES
from tessera.ops.steps import STEPS
from tessera.torch.attention import sdpa

if TYPE_CHECKING:
    from tessera.torch.compiled.explained import ModuleExplanation

__all__ = ["explain", "sdpa"]


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> ModuleExplanation:
    """Call a function and return what it ran of what Tessera compiled, in it and in what it calls.

    Args:
        function: such as `torch.compile(model, backend="tessera")`, or one that also runs the gradients of its result.
        *args: its arguments.
        **kwargs: the same by name.

    Returns:
        The graphs that ran, with their kernels, calls, bytes, predicted times and what is left to ATen; `str()` of it
        is a report, and `html(path)` draws it.

    Raises:
        CallError: `never-run` where it ran nothing of Tessera's.
    """
    from tessera.torch.compiled import explained  # loads the compiler

    return explained.explain(function, *args, **kwargs)


def _register() -> None:
    """Register the steps of all ops."""
    try:
        import_module("torch")
    except ImportError as error:
        raise TargetError("PyTorch is not installed", code="missing-extra", help="pip install torch") from error
    from tessera.ops.torch_steps import operator_of

    for module in MODULES:
        import_module(f"tessera.ops.{module}")
    for step in STEPS:
        operator_of(step)


with collector_paused(keep=True):
    _register()
