"""Where the files of `frontend/ops` register how each tile function and operator is compiled."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType
from typing import Any, TypeVar

from tessera.frontend import tile

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)

_handlers: dict[Any, Handler] = {}
_signatures: dict[Any, inspect.Signature] = {}
_builtins: dict[Any, tuple[Handler, int | None]] = {}
_attributes: dict[tuple[type, str], Handler] = {}
_methods: dict[str, Handler] = {}


def compiles(function: Callable[..., Any]) -> Callable[[H], H]:
    """Register the compiler of a tile function: it takes the builder and the function's own parameters."""

    def register(handler: H) -> H:
        _handlers[function] = handler
        _signatures[function] = inspect.signature(function)
        return handler

    return register


def builtin(function: Callable[..., Any], arity: int | None) -> Callable[[H], H]:
    """Register what one of Python's functions means on run-time values.

    Args:
        function: `min`, say.
        arity: how many arguments it takes; None for two and more, or one tuple of them.
    """

    def register(handler: H) -> H:
        _builtins[function] = handler, arity
        return handler

    return register


def builtin_of(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Handler | None:
    """Return the compiler of one of Python's functions for run-time values, None where it has none for this call."""
    found = _builtins.get(function) if isinstance(function, BuiltinFunctionType) else None
    if found is None or kwargs:
        return None
    handler, arity = found
    fits = len(args) == arity if arity is not None else len(args) > 1 or (len(args) == 1 and isinstance(args[0], tuple))
    return handler if fits else None


def attribute(owner: type, name: str) -> Callable[[H], H]:
    """Register an attribute of a run-time value: the handler takes the builder and the value."""

    def register(handler: H) -> H:
        _attributes[owner, name] = handler
        return handler

    return register


def method(name: str) -> Callable[[H], H]:
    """Register a method of run-time values: the handler takes the builder, the value and its arguments."""

    def register(handler: H) -> H:
        _methods[name] = handler
        return handler

    return register


@cache
def load_all() -> None:
    """Import every file of `frontend/ops`."""
    import tessera.frontend.ops as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def handler_of(function: Any) -> tuple[Handler, inspect.Signature] | None:
    """Return the compiler and the signature of a tile function, None for anything else."""
    if not callable(function) or getattr(function, "__hash__", None) is None:
        return None
    found = _handlers.get(function)
    return None if found is None else (found, _signatures[function])


def attribute_of(value: Any, name: str) -> Handler | None:
    """Return the compiler of an attribute, None when the value has none of that name."""
    return _attributes.get((value.__class__, name))


def attributes_of(value: Any) -> tuple[str, ...]:
    """Return the names of the attributes and methods a value has."""
    names = [name for owner, name in _attributes if owner is type(value)]
    return tuple(sorted(names))


def method_of(name: str) -> Handler:
    """Return the compiler of a method."""
    return _methods[name]


def missing() -> tuple[str, ...]:
    """Return the tile functions that no file compiles; a test keeps it empty."""
    load_all()
    return tuple(sorted(name for name, function in tile.functions().items() if function not in _handlers))
