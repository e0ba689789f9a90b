"""Gated activations: `swiglu`, `geglu` and `reglu`."""

from tessera.ops.activation.geglu import geglu
from tessera.ops.activation.reglu import reglu
from tessera.ops.activation.swiglu import swiglu

__all__ = ["geglu", "reglu", "swiglu"]
