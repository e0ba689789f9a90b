"""Kernels that no Python function says: what they are made from builds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tessera.frontend.specialize import Specialization

if TYPE_CHECKING:
    from tessera.frontend.build import BuiltKernel
    from tessera.frontend.signature import Signature


class Generated(ABC):
    """What stands in a signature for a function: a frozen record."""

    __slots__ = ()

    @property
    @abstractmethod
    def digest(self) -> str:
        """What stands for it in the keys of caches."""

    @abstractmethod
    def build(self, signature: Signature, spec: Specialization) -> BuiltKernel:
        """Return the kernel in TIR-H."""
