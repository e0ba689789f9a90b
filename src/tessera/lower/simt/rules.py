"""The registry of SIMT lowering rules: one function per TIR-H op, found by the decorator.

An op has either a *lowering* (its result exists once, in the layout that `placement` chose) or is *lazy*: cheap
enough to be recomputed, at each use, in whatever layout the use wants (constants, index arithmetic, broadcasts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xdsl.ir import Operation, SSAValue

from tessera.ir.layouts import LinearLayout

if TYPE_CHECKING:
    from tessera.lower.simt.context import SimtContext

Lowering = Callable[["SimtContext", Any], None]
Lazy = Callable[["SimtContext", Any, LinearLayout], SSAValue]

LOWERINGS: dict[type[Operation], Lowering] = {}
LAZY: dict[type[Operation], Lazy] = {}


def lowers(op: type[Operation]) -> Callable[[Lowering], Lowering]:
    """Register the lowering of an op class."""

    def register(rule: Lowering) -> Lowering:
        LOWERINGS[op] = rule
        return rule

    return register


def lazy(op: type[Operation]) -> Callable[[Lazy], Lazy]:
    """Register how a lazy op's result is made in a wanted layout."""

    def register(rule: Lazy) -> Lazy:
        LAZY[op] = rule
        return rule

    return register
