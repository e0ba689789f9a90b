"""Recurrences of linear states, computed a chunk of steps at a time: `ssd`, `linear_attention`."""

from tessera.ops.recurrent.linear import linear_attention
from tessera.ops.recurrent.ssd import ssd

__all__ = ["linear_attention", "ssd"]
