"""Compiles `load`, `store` and atomics."""

from __future__ import annotations

from typing import Any

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.access import load_part, load_view, store_to
from tessera.frontend.builder import Builder
from tessera.frontend.convert import operand
from tessera.frontend.registry import compiles
from tessera.frontend.values import Shared, SharedPart, View, show


@compiles(tile.load)
def _load(b: Builder, source: Any, fill: Any) -> Any:
    if isinstance(source, View):
        return load_view(b, source, fill)
    if isinstance(source, SharedPart) and fill is None:
        return load_part(b, source)
    if isinstance(source, Shared) and fill is None:
        return operand(b, source)
    what = "a shared buffer with fill" if isinstance(source, Shared | SharedPart) else show(source)
    raise TypeMismatchError(
        f"load: {what} is not a slice of a tensor",
        code="not-a-slice",
        help="write ts.tile.load(A[m:m+64, :], fill=0)",
    )


@compiles(tile.store)
def _store(b: Builder, target: Any, value: Any) -> None:
    store_to(b, target, value)
