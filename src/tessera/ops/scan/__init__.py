"""Running sums and products along a dimension: `cumsum`, `cumprod`."""

from tessera.ops.scan.running import cumprod, cumsum

__all__ = ["cumprod", "cumsum"]
