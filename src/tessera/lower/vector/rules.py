"""The registry of the vector model's lowering rules: one function per TIR-H op, found by the decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from xdsl.ir import Operation

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext

Rule = Callable[["VectorContext", Any], None]
_R = TypeVar("_R", bound=Callable[..., None])

RULES: dict[type[Operation], Rule] = {}


def lowers(*ops: type[Operation]) -> Callable[[_R], _R]:
    """Register the rule of one or more op classes."""

    def register(rule: _R) -> _R:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register
