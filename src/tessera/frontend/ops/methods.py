"""Methods of tiles, which shared buffers have, too: `x.sum(axis=0)` means `ts.tile.sum(x, axis=0)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.registry import attribute, handler_of, method
from tessera.frontend.values import BoundMethod, Scalar, Shared, Tile, leaves

_SAME = (
    tile.all,
    tile.any,
    tile.cumsum,
    tile.flip,
    tile.max,
    tile.mean,
    tile.min,
    tile.prod,
    tile.roll,
    tile.split,
    tile.sum,
    tile.take,
    tile.var,
)
"""Functions of a tile that are its methods too, with the same arguments after it."""


def _compiled(function: Callable[..., Any], b: Builder, *args: Any) -> Any:
    found = handler_of(function)
    assert found is not None, "every function of ts.tile is compiled by a file of this folder"
    return found[0](b, *args)


def _alike(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiler of the method that is a function of `ts.tile`, with the function's own parameters."""

    def call(b: Builder, owner: Any, *args: Any) -> Any:
        return _compiled(function, b, owner, *args)

    builder = inspect.Parameter("b", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [builder, *inspect.signature(function).parameters.values()]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    return call


@method("reshape")
def _reshape(b: Builder, owner: Any, *shape: Any) -> Any:
    return _compiled(tile.reshape, b, owner, tuple(leaves(shape)))


@method("transpose")
def _transpose(b: Builder, owner: Any, *perm: Any) -> Any:
    order = tuple(leaves(perm))
    return _compiled(tile.transpose, b, owner, None if order in ((), (None,)) else order)


@method("astype")
def _astype(b: Builder, owner: Any, dtype: Any) -> Any:
    return _compiled(tile.cast, b, owner, dtype)


def _bound(name: str) -> Callable[[Builder, Any], BoundMethod]:
    def bind(b: Builder, owner: Any) -> BoundMethod:
        return BoundMethod(name, owner)

    return bind


for _function in _SAME:
    method(_function.__name__)(_alike(_function))
for _name in (*(function.__name__ for function in _SAME), "reshape", "transpose"):
    attribute(Tile, _name)(_bound(_name))
    attribute(Shared, _name)(_bound(_name))
for _owner in (Tile, Scalar, Shared, bool, int, float):
    attribute(_owner, "astype")(_bound("astype"))
