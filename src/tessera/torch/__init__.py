"""Tessera's library ops as operators of PyTorch: `import tessera.torch` registers `torch.ops.tessera.*`.

`tessera.torch.sdpa()` puts its attention in place of PyTorch's.

Functions of `tessera.ops` register what they need when a tensor asks for gradients. Import this module before
`torch.compile` traces them: tracing cannot register operators.
"""

from __future__ import annotations

from importlib import import_module

from tessera.errors import TargetError
from tessera.ops import MODULES
from tessera.ops.steps import STEPS
from tessera.torch.attention import sdpa

__all__ = ["sdpa"]


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


_register()
