"""Norms: `rms` and `ln` over the last dimensions, `group` over groups of channels, `l2` along any dimension."""

from tessera.ops.norm.group import group
from tessera.ops.norm.l2 import l2
from tessera.ops.norm.ln import ln
from tessera.ops.norm.rms import rms

__all__ = ["group", "l2", "ln", "rms"]
