"""Output from the device. Python's `print` and f-strings, and `assert`, work inside a kernel too."""

from __future__ import annotations

from typing import Any

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import TileLike

__all__ = ["device_assert", "device_print"]


@tile_function
def device_print(*values: Any) -> None:
    """Print text, scalars and tiles from the device; Python's `print` means the same inside a kernel.

    Args:
        *values: strings (f-strings too, without format specifications), scalars and tiles, joined by spaces. Tiles,
            broadcast to one shape, print a line for each element, in any order on GPUs.

    Raises:
        LanguageError: `bad-format` for a format specification, `predicated` inside an `if` on a tile.
        TypeMismatchError: `shape-mismatch` for tiles that do not broadcast.
    """
    ...


@tile_function
def device_assert(condition: TileLike, message: str = "") -> None:
    """Stop the kernel when `condition` is false anywhere; compiled in debug builds only.

    Python's `assert condition, "message"` means the same inside a kernel.

    Args:
        condition: bool tile or scalar.
        message: compile-time text.

    Raises:
        TypeMismatchError: `dtype-mismatch` when the condition is not bool.
    """
    ...
