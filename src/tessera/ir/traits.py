"""Asks whether ops have a trait, once for each class: xDSL goes through all traits each time."""

from __future__ import annotations

from functools import lru_cache

from xdsl.ir import Operation
from xdsl.traits import OpTrait


def has_trait(op: Operation, trait: type[OpTrait]) -> bool:
    """Return whether an op has a trait; one that is not registered may have any."""
    return _class_has(type(op), trait)


@lru_cache(maxsize=4096)
def _class_has(cls: type[Operation], trait: type[OpTrait]) -> bool:
    return cls.has_trait(trait)
