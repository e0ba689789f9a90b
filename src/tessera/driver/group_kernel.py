"""The kernel of a group: it has no function, and is launched on arrays that may be parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.driver.binding import canonical_strides
from tessera.driver.kernel import Kernel
from tessera.driver.launch import InterpreterPlan, Launch, launcher_for
from tessera.driver.settings import settings
from tessera.driver.variants import Variant
from tessera.frontend.signature import Signature
from tessera.frontend.specialize import Specialization
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView


class GroupKernel(Kernel[..., Any]):
    """The kernel of a group.

    Args:
        signature: its parameters, with what builds it in place of a function.
    """

    def __init__(self, signature: Signature) -> None:
        self._begin(signature)

    def specialized(self, pointers: Sequence[int], views: Sequence[ArrayView]) -> Specialization:
        """Return what it is compiled for where it runs on arrays."""
        strides = [canonical_strides(view) for view in views]
        return self._specialization([None] * len(self.signature.params), pointers, views, strides)

    def bound(
        self, pointers: Sequence[int], views: Sequence[ArrayView], device: Device
    ) -> tuple[Launch, Variant | None]:
        """Return how it is launched on arrays, and its code; the interpreter has none.

        Args:
            pointers: addresses, of which what they are multiples of counts, and which are the same.
            views: the arrays.
            device: where it runs.
        """
        spec = self.specialized(pointers, views)
        if settings().interpret:
            return InterpreterPlan(self.signature, spec, (), views).launch, None
        variant = self.variant_for(spec, views, device)
        shapes: list[Any] = [(view.shape, canonical_strides(view)) for view in views]
        shapes += [None] * (len(self.signature.params) - len(views))
        return launcher_for(variant, device).prepare(shapes).launch, variant

    def __reduce__(self) -> str:
        raise TypeError("the kernel of a graph's group has no name of its own")
