"""The kernel of a group: it has no function, and is launched on arrays that may be parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.driver.divisors import Divisors
from tessera.driver.explain import Explanation
from tessera.driver.kernel import Kernel
from tessera.driver.launch import InterpreterPlan, Launch
from tessera.driver.settings import settings
from tessera.driver.variants import Wanted
from tessera.frontend.signature import Signature
from tessera.frontend.specialize import Specialization
from tessera.runtime.device import Device
from tessera.runtime.forking import compiling
from tessera.runtime.views import ArrayView


class GroupKernel(Kernel[..., Any]):
    """The kernel of a group.

    Args:
        signature: its parameters, with what builds it in place of a function.
    """

    def __init__(self, signature: Signature) -> None:
        self._begin(signature)
        self._divisors = Divisors()
        self.explanation: Explanation | None = None
        """What runs on the arrays that it was loaded for last."""

    def spec_of(self, pointers: Sequence[int], views: Sequence[ArrayView]) -> Specialization:
        """Return what code for arrays may rely on."""
        on_gpu = not all(view.device.is_host for view in views)
        return self._divisors.agreed(super().spec_of(pointers, views), wide=on_gpu)

    def loaded(self, pointers: Sequence[int], views: Sequence[ArrayView], device: Device) -> Launch:
        """Return how it is launched on arrays, by the interpreter too."""
        spec = self.spec_of(pointers, views)
        name, where = self.signature.name, str(device)
        if settings().interpret:
            self.explanation = Explanation(name, "interp", "numpy", where, spec.profile, origin="interpreted")
            return InterpreterPlan(self.signature, spec, (), views).launch
        with compiling(), self._compiling:
            variant = self.variant_for(spec, views, device)
            launch = self.prepared(variant, views, device)
        facts = {"fixed": variant.fixed, "origin": variant.origin}
        self.explanation = Explanation.of(variant.artifact, where, spec.profile, **facts)
        return launch

    def needed(self, pointers: Sequence[int], views: Sequence[ArrayView], device: Device) -> Wanted | None:
        """Return the code that `loaded` would have to compile, None where it would not."""
        return self.wanted_for(self.spec_of(pointers, views), views, device)

    def __reduce__(self) -> str:
        raise TypeError("the kernel of a graph's group has no name of its own")
