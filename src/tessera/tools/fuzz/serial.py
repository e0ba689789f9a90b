"""Programs as JSON, so that a failure can be kept when the generator draws something else from its seed."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any, Final, cast

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.types import Type

_CLASSES: Final[dict[str, type[Any]]] = {
    name: value for name, value in vars(tree).items() if isinstance(value, type) and issubclass(value, tree.Node)
} | {"Type": Type, "Spelled": tree.Spelled}


def dumps(program: tree.Program) -> str:
    """Return a program as JSON text."""
    return json.dumps(_plain(program), indent=1)


def loads(text: str) -> tree.Program:
    """Return the program that `dumps` wrote.

    Raises:
        ValueError: the text holds something else.
    """
    program = _node(json.loads(text))
    if not isinstance(program, tree.Program):
        raise ValueError("the text holds no program")
    return program


def _plain(value: Any) -> Any:
    if isinstance(value, tree.Node | tree.Spelled | Type):
        found = {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
        return {"node": type(value).__name__, **found}
    if isinstance(value, tuple):
        return [_plain(part) for part in cast(tuple[Any, ...], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _node(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_node(part) for part in cast(list[Any], value))
    if not isinstance(value, dict):
        return value
    given = dict(cast(dict[str, Any], value))
    if "float" in given:
        return float(given["float"])
    kind = _CLASSES.get(given.pop("node", ""))
    if kind is None:
        raise ValueError(f"no node of a program: {value}")
    return kind(**{name: _node(part) for name, part in given.items()})
