"""Attributes of plain values, the frequent ones made once: xDSL verifies each object that is made.

Attributes never change, so that one object serves all ops that hold its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute


@lru_cache(maxsize=4096)
def text(value: str) -> StringAttr:
    """Return a text as an attribute."""
    return StringAttr(value)


@lru_cache(maxsize=4096, typed=True)
def number(value: int) -> IntAttr:
    """Return a plain integer as an attribute."""
    return IntAttr(value)


def ints(values: Iterable[int]) -> ArrayAttr[IntAttr]:
    """Return plain integers as an attribute."""
    return _ints(tuple([int(value) for value in values]))


@lru_cache(maxsize=4096)
def _ints(values: tuple[int, ...]) -> ArrayAttr[IntAttr]:
    return ArrayAttr([number(value) for value in values])


@lru_cache(maxsize=4096)
def words(values: tuple[int, ...]) -> DenseArrayBase[Any]:
    """Return integers as an array of 64-bit words."""
    return DenseArrayBase.from_list(i64, values)


_PLAIN = (StringAttr, IntAttr)


def exact_text(attribute: Attribute) -> str:
    """Return an attribute's text, by which 0.0 and -0.0, which are equal attributes, are two."""
    held: Any = attribute
    parts: Sequence[Attribute] = held.data if type(held) is ArrayAttr else [attribute]
    is_plain = all(type(part) in _PLAIN for part in parts)
    return _plain_text(attribute) if is_plain else str(attribute)


@lru_cache(maxsize=4096)
def _plain_text(attribute: Attribute) -> str:
    return str(attribute)


@lru_cache(maxsize=4096, typed=True)
def integer(value: int, type_: Attribute) -> IntegerAttr:
    """Return an integer of a type as an attribute."""
    make: Any = IntegerAttr  # its stub allows fewer types than it does
    return make(number(value), type_)
