"""Running combinations along a dimension: `cumsum`, `cumprod`, `cummax`, `cummin`."""

from tessera.ops.scan.extremes import cummax, cummin
from tessera.ops.scan.running import cumprod, cumsum

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]
