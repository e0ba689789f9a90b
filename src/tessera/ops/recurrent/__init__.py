"""Recurrences of linear states, computed in chunks: `gated_delta_rule`, `linear_attention`, `ssd`."""

from tessera.ops.recurrent.delta import gated_delta_rule
from tessera.ops.recurrent.linear import linear_attention
from tessera.ops.recurrent.ssd import ssd

__all__ = ["gated_delta_rule", "linear_attention", "ssd"]
