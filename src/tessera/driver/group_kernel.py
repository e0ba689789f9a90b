"""The kernel of a group: it has no function, and is launched on arrays that may be parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.driver.binding import canonical_strides
from tessera.driver.kernel import Kernel
from tessera.driver.launch import InterpreterPlan, Launch
from tessera.driver.settings import settings
from tessera.frontend.signature import Signature
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView


class GroupKernel(Kernel[..., Any]):
    """The kernel of a group.

    Args:
        signature: its parameters, with what builds it in place of a function.
    """

    def __init__(self, signature: Signature) -> None:
        self._begin(signature)

    def loaded(self, pointers: Sequence[int], views: Sequence[ArrayView], device: Device) -> Launch:
        """Return how it is launched on arrays, by the interpreter too."""
        if not settings().interpret:
            return super().loaded(pointers, views, device)
        strides = [canonical_strides(view) for view in views]
        spec = self._specialization([None] * len(self.signature.params), pointers, views, strides)
        return InterpreterPlan(self.signature, spec, (), views).launch

    def __reduce__(self) -> str:
        raise TypeError("the kernel of a graph's group has no name of its own")
