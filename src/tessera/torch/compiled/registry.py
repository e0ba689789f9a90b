"""The table from ATen ops to Graph IR: the files of `rows` add to it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

Row = Callable[..., Any]
"""Writes an op: takes the converter, then the op's own arguments, tensors as values of the graph. It gives a value, or
several, or raises `Unknown` or a TypeMismatchError where it has no words for a call."""

Name = str | Callable[..., Any]
"""An op by its name, or a function that stands for several."""

_rows: dict[Name, Row] = {}
_complex_rows: dict[Name, Row] = {}


def row(*names: Name) -> Callable[[Row], Row]:
    """Register the row of ops, named such as `add.Tensor` or with a namespace that is not ATen, or of a function."""
    return _entered(_rows, names)


def complex_row(*names: Name) -> Callable[[Row], Row]:
    """Register the row of ATen ops that complex numbers take part in: pairs along a last dimension."""
    return _entered(_complex_rows, names)


def _entered(rows: dict[Name, Row], names: tuple[Name, ...]) -> Callable[[Row], Row]:
    def register(function: Row) -> Row:
        for name in names:
            if name in rows:
                raise ValueError(f"{name} has a row already")
            rows[name] = function
        return function

    return register


@cache
def _load() -> None:
    import tessera.torch.compiled.rows as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def row_of(target: Any, is_complex: bool = False) -> Row | None:
    """Return the row of a function in a traced graph, None where it has none.

    Args:
        target: the function.
        is_complex: whether complex numbers take part.
    """
    _load()
    name = str(target).removeprefix("aten.") if hasattr(target, "_schema") else target
    return (_complex_rows if is_complex else _rows).get(name)


def names() -> tuple[str, ...]:
    """Return the names of all ops that have a row."""
    _load()
    return tuple(sorted(name for name in {*_rows, *_complex_rows} if isinstance(name, str)))
