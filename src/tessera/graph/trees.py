"""Arguments and results that are tuples, lists, dictionaries and objects of arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import MemberDescriptorType, NoneType, SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

from tessera.errors import CallError, caller_location
from tessera.ops import arrays
from tessera.ops.traced import Traced

Outline = Any
"""How leaves are nested: hashable. `_LEAF`, or a type, what it is made with, and the outlines of its parts."""
_LEAF = "leaf"
_MOST_DEPTH = 64
_DEFINED_IN_PYTHON = 1 << 9
"""The flag of classes that class statements make."""

_BY_TYPE: WeakKeyDictionary[type[Any], Callable[..., Any] | None] = WeakKeyDictionary()
"""How the parts of a tree of some type are found, None for leaves."""
_LASTING: dict[type[Any], Callable[..., Any] | None] = {}
"""The same of types that last as long as the process, which are found in less time."""


def flatten(tree: Any) -> tuple[list[Any], Outline]:
    """Return the leaves of a tree, and how they are nested.

    None has no leaves. An object of a Python class, a dataclass too, is a tree of its attributes if there is an array
    among them, and else a leaf.

    Raises:
        CallError: `nesting-depth`.
    """
    found = _Leaves()
    outline = found.add(tree)
    return found.leaves, outline


class _Leaves:
    """The leaves of a tree that is gone through."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self._passed: set[int] | None = None
        """Objects that the part that is gone through is a part of, and those that hold no array."""

    def add(self, tree: Any, depth: int = _MOST_DEPTH) -> Outline:
        """Append the leaves of a part, and return how they are nested.

        Args:
            tree: the part.
            depth: how deep it may be nested.
        """
        kind = cast("type[Any]", type(tree))
        parts_of = _LASTING[kind] if kind in _LASTING else _parts_of(kind)
        if parts_of is None:
            self.leaves.append(tree)
            return _LEAF
        if parts_of is _attributes:
            return self._add_object(tree, depth)
        if not depth:
            raise CallError(
                f"arguments are nested more than {_MOST_DEPTH} deep",
                code="nesting-depth",
                location=caller_location(),
                help="pass tuples, lists and dictionaries of arrays that do not hold themselves",
            )
        how, parts = parts_of(tree)
        return kind, how, tuple([self.add(part, depth - 1) for part in parts])

    def _add_object(self, tree: Any, depth: int) -> Outline:
        """Append the leaves of an object: itself, where it was one before, holds itself, lies deep, or has no array."""
        passed = self._passed = self._passed or set[int]()
        if id(tree) in passed or not depth:
            self.leaves.append(tree)
            return _LEAF
        first = len(self.leaves)
        how, parts = _attributes(tree)
        passed.add(id(tree))
        found = tuple([self.add(part, depth - 1) for part in parts])
        if any(isinstance(leaf, Traced) or arrays.is_array(leaf) for leaf in self.leaves[first:]):
            passed.remove(id(tree))
            return type(tree), how, found
        self.leaves[first:] = [tree]
        return _LEAF


def _parts_of(kind: type[Any]) -> Callable[..., Any] | None:
    """Return what finds the parts of trees of a type, and what else they are made with; None for leaves."""
    if kind not in _BY_TYPE:
        _BY_TYPE[kind] = _parts_of_type(kind)
        if not kind.__flags__ & _DEFINED_IN_PYTHON or kind.__module__ == "torch":
            _LASTING[kind] = _BY_TYPE[kind]
    return _BY_TYPE[kind]


def _parts_of_type(kind: Any) -> Callable[..., Any] | None:
    is_named = tuple in kind.__mro__ and hasattr(kind, "_fields")
    if kind is NoneType or kind is tuple or list in kind.__mro__ or is_named:
        return _items
    if dict in kind.__mro__:
        return _values
    return _attributes if _is_of_attributes(kind) else None


def _items(tree: Any) -> tuple[None, Any]:
    return None, () if tree is None else tree


def _values(tree: Any) -> tuple[Any, list[Any]]:
    keys = tuple(tree)
    is_default = isinstance(tree, defaultdict)
    return (cast(Any, tree).default_factory, *keys) if is_default else keys, [tree[key] for key in keys]


def _is_of_attributes(kind: type[Any]) -> bool:
    """Return whether a type is a class of the user's, whose objects are their attributes."""
    is_array = any(hasattr(kind, name) for name in ("__dlpack__", "__array__", "__array_ufunc__"))
    return _base(kind) in (object, SimpleNamespace) and not is_array and kind.__module__.partition(".")[0] != "tessera"


def _base(kind: type[Any]) -> type[Any]:
    """Return the first type that a class is made of that no class statement made."""
    return next(one for one in kind.__mro__ if not one.__flags__ & _DEFINED_IN_PYTHON)


def _attributes(tree: Any) -> tuple[tuple[str, ...], Sequence[Any]]:
    """Return the names and values of an object's attributes."""
    found = dict(getattr(tree, "__dict__", {}))
    for one in type(tree).__mro__:
        slots = [name for name, item in vars(one).items() if isinstance(item, MemberDescriptorType)]
        found.update({name: getattr(tree, name) for name in slots if name != "__dict__" and hasattr(tree, name)})
    return tuple(found), [*found.values()]


def unflatten(outline: Outline, leaves: Iterator[Any]) -> Any:
    """Return the tree of some leaves."""
    if outline == _LEAF:
        return next(leaves)
    kind, how, inner = cast("tuple[Any, Any, Any]", outline)
    parts = [unflatten(part, leaves) for part in inner]
    if kind is NoneType:
        return None
    return _made(kind, how, parts)


def _made(kind: Any, how: Any, parts: Sequence[Any]) -> Any:
    """Return an object of a type from its parts and what else it is made with."""
    parts_of = _parts_of(kind)
    if parts_of is _items:
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if parts_of is _values:
        keys = _keys(kind, how)
        return kind(*how[: len(how) - len(keys)], zip(keys, parts, strict=True))
    made = cast(Any, _base(kind)).__new__(kind)
    for name, part in zip(how, parts, strict=True):
        if isinstance(getattr(kind, name, None), MemberDescriptorType):
            object.__setattr__(made, name, part)
        else:
            made.__dict__[name] = part
    return made


def _keys(kind: Any, how: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the keys of a dictionary from what it is made with."""
    return how[1:] if issubclass(kind, defaultdict) else how


class UnlikeError(Exception):
    """Says that a part of a tree is not nested as a part of an outline is.

    Args:
        tree: the part.
        outline: how it should be nested.
    """

    def __init__(self, tree: Any, outline: Outline) -> None:
        super().__init__(tree, outline)
        self.tree, self.outline = tree, outline


def leaves_like(tree: Any, outline: Outline, none_for_any: bool = False) -> list[Any]:
    """Return the leaves of a tree in the order of an outline, where dictionaries may have another one.

    Args:
        tree: the tree.
        outline: how it is nested.
        none_for_any: whether None may stand for a part; it is then each of the part's leaves.

    Raises:
        UnlikeError: it is nested in another way.
    """
    if tree is None and none_for_any:
        return [None] * leaf_count(outline)
    if outline == _LEAF:
        leaves, found = flatten(tree)
        if found != _LEAF:
            raise UnlikeError(tree, outline)
        return leaves
    kind, how, inner = cast("tuple[Any, Any, Any]", outline)
    parts_of = _parts_of(kind)
    if type(tree) is not kind or parts_of is None:
        raise UnlikeError(tree, outline)
    own, parts = parts_of(tree)
    if issubclass(kind, dict):
        keys = _keys(kind, how)
        given = cast("dict[Any, Any]", tree)
        own, how = {*given}, {*keys}
        parts = [given.get(key) for key in keys]
    if own != how or len(parts) != len(inner):
        raise UnlikeError(tree, outline)
    pairs = zip(parts, inner, strict=True)
    return [leaf for part, of in pairs for leaf in leaves_like(part, of, none_for_any)]


def leaf_count(outline: Outline) -> int:
    """Return how many leaves a tree has."""
    return 1 if outline == _LEAF else sum(map(leaf_count, outline[-1]))


def outline_text(outline: Outline) -> str:
    """Return how leaves are nested, for a message."""
    return "an array" if outline == _LEAF else f"{outline[0].__name__} of {len(outline[-1])}"
