"""Running combinations along a dimension: `cumsum`, `cumprod`, `cummax`, `cummin`."""

from tessera.ops.running.extremes import cummax, cummin
from tessera.ops.running.running import cumprod, cumsum

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]
