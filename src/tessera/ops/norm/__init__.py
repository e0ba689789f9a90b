"""Norms: `rms` and `ln` over the last dimensions."""

from tessera.ops.norm.ln import ln
from tessera.ops.norm.rms import rms

__all__ = ["ln", "rms"]
