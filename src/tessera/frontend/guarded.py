"""Parts of expressions that run only where a condition holds: of `and`, `or`, `a < b < c`, `x if c else y`.

What has no effect is computed beside its condition, as nobody can tell; a part that stores, updates by an atomic,
prints, asserts or loops is an `if` of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from xdsl.dialects.scf import ForOp, IfOp, WhileOp, YieldOp
from xdsl.ir import Block, Region

from tessera.errors import TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.carry import blank, like
from tessera.frontend.convert import materialise
from tessera.frontend.evaluate import evaluate
from tessera.frontend.values import Scalar, Tile, Value, leaves, rebuild
from tessera.ir.effects import acts


def guarded(
    b: Builder,
    node: ast.expr,
    condition: Scalar | Tile,
    when: bool,
    what: str,
    find: Callable[[Builder, ast.expr], Any] = evaluate,
) -> Any:
    """Return the value of an expression that is evaluated only where a condition is `when`; elsewhere nobody reads it.

    Args:
        b: the builder.
        node: the expression.
        condition: what decides.
        when: the truth of it that asks for the expression.
        what: what the expression is part of, in an error's words.
        find: evaluates it.

    Raises:
        TypeMismatchError: `tile-condition` where a condition on elements would have to leave out effects.
    """
    if not any(isinstance(part, ast.Call) for part in ast.walk(node)):
        return find(b, node)
    block, uncommitted = Block(), b.uncommitted
    with b.hoisting(), b.into(block), b.nested():
        value = materialise(b, find(b, node))
    ops = list(block.walk())
    seen = any(map(acts, ops))
    if isinstance(condition, Tile) and seen:
        with b.at(node):
            raise TypeMismatchError(
                f"{what} on a tile computes both sides for all elements, and this one stores, updates or asserts",
                code="tile-condition",
                help="use an `if` statement, which leaves out elements, or compute it on a line of its own",
            )
    if isinstance(condition, Tile) or not (seen or any(isinstance(op, ForOp | WhileOp) for op in ops)):
        _splice(b, block)
        return value
    b.uncommitted = b.uncommitted or uncommitted
    parts = [leaf for leaf in leaves(value) if isinstance(leaf, Value)]
    other = Block()
    with b.into(block):
        b.emit(YieldOp(*(part.ssa for part in parts)))
    with b.into(other):
        b.emit(YieldOp(*(blank(b, part.type) for part in parts)))
    first, second = (block, other) if when else (other, block)
    op = b.emit(IfOp(condition.ssa, [part.type for part in parts], Region(first), Region(second)))
    given = map(like, parts, op.results)
    return rebuild(value, iter([next(given) if isinstance(leaf, Value) else leaf for leaf in leaves(value)]))


def _splice(b: Builder, block: Block) -> None:
    """Put the ops of a block where the compilation is."""
    for op in list(block.ops):
        op.detach()
        b.block.add_op(op)
