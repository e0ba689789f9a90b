"""Arguments and results that are tuples, lists and dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from tessera.errors import CallError, caller_location

Outline = Any
"""How leaves are nested: hashable."""
_LEAF = "leaf"
_MOST_DEPTH = 64


def flatten(tree: Any) -> tuple[list[Any], Outline]:
    """Return the leaves of a tree, and how they are nested.

    Raises:
        CallError: `nesting-depth`.
    """
    leaves: list[Any] = []
    return leaves, _outline(tree, leaves, _MOST_DEPTH)


def _outline(tree: Any, leaves: list[Any], depth: int) -> Outline:
    kind = cast("type[Any]", type(tree))
    if not depth:
        raise CallError(
            f"arguments are nested more than {_MOST_DEPTH} deep",
            code="nesting-depth",
            location=caller_location(),
            help="pass tuples, lists and dictionaries of arrays that do not hold themselves",
        )
    if kind in (tuple, list):
        return kind, tuple(_outline(part, leaves, depth - 1) for part in tree)
    if kind is dict:
        return dict, tuple(tree), tuple(_outline(part, leaves, depth - 1) for part in tree.values())
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return kind, tuple(_outline(part, leaves, depth - 1) for part in cast("tuple[Any, ...]", tree))
    leaves.append(tree)
    return _LEAF


def unflatten(outline: Outline, leaves: Iterator[Any]) -> Any:
    """Return the tree of some leaves."""
    if outline == _LEAF:
        return next(leaves)
    kind, *rest = outline
    parts = [unflatten(part, leaves) for part in rest[-1]]
    if kind is dict:
        return dict(zip(rest[0], parts, strict=True))
    return parts if kind is list else tuple(parts) if kind is tuple else kind(*parts)
