"""Ops that count: `bincount`, `histogram`, `unique_consecutive`."""

from tessera.ops.counting.bincount import bincount
from tessera.ops.counting.histogram import histogram
from tessera.ops.counting.unique import unique_consecutive

__all__ = ["bincount", "histogram", "unique_consecutive"]
