"""Draws sums inside blocks that start from a tile computed from one outside, which is read again later.

A compiler likes to compute a sum in the buffer of what it starts from. Here that buffer is still wanted: by the next
iteration, or behind the block.
"""

from __future__ import annotations

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_expressions import Expressions
from tessera.tools.fuzz.generate_fills import Storing
from tessera.tools.fuzz.generate_scope import Scope
from tessera.tools.fuzz.types import OPERANDS, Shape, Type, accumulator, elements, is_float

_MOST_WORK = 12
"""How often the block around a sum may run in one program of the grid."""


def started(scope: Scope, condition: tree.Expr, store: Storing) -> list[tree.Stmt]:
    """Return a branch or a loop in which a sum starts from a tile outside.

    Args:
        scope: where it stands.
        condition: what decides a branch.
        store: stores a tile to a tensor, where one takes it.
    """
    dice = scope.dice
    shape = scope.shape(2) if dice.chance(0.6) else scope.known_shape()
    operand = dice.pick(scope.palette.dtypes)
    if not shape or scope.work > _MOST_WORK:
        return []
    type_ = Type(accumulator(operand), shape)
    kept, seen, total, behind = (tree.Name(scope.fresh(), type_) for _ in range(4))
    first = Expressions(scope).computed(type_.dtype, shape) or Expressions(scope).draw(type_.dtype, shape)
    trips, kind = dice.between(1, 3), dice.pick(("branch", "loop", "both"))
    inner = scope.inner("if" if kind == "branch" else "for", 1 if kind == "branch" else trips)
    body = _sum(inner, total, _near(inner, seen), operand)
    if dice.chance(0.5):
        body += store(inner, total)
    if kind != "loop":
        body = [tree.If(condition, tuple(body))]
    if kind != "branch":
        body = [tree.For(scope.fresh("k"), tree.Number(0), tree.Number(trips), tree.Number(1), tuple(body))]
    scope.names |= {name.name: type_ for name in (seen, total, behind)}
    return [
        tree.Assign((kept.name,), (first,)),
        tree.Assign((seen.name,), (_near(scope, kept),)),
        tree.Assign((total.name,), (tree.Full(shape, tree.Number(1), type_.dtype),)),
        *body,
        tree.Assign((behind.name,), (tree.Apply("sub", (seen, total)),)),
        *store(scope, behind),
    ]


def _near(scope: Scope, tile: tree.Expr) -> tree.Expr:
    """Return what is computed from a tile in one step."""
    dice = scope.dice
    if dice.chance(0.4):
        return tree.Apply(dice.pick(("neg", "abs")), (tile,))
    return tree.Apply(dice.pick(("add", "sub", "mul")), (tile, tree.Number(dice.between(1, 3))))


def _sum(scope: Scope, total: tree.Name, start: tree.Expr, operand: str) -> list[tree.Stmt]:
    """Return a product, or a loop, that adds to a start."""
    dice, name, shape = scope.dice, total.name, total.own.shape
    if len(shape) == 2 and operand in OPERANDS and dice.chance(0.5):
        left, right = _operands(scope, operand, shape)
        if max(elements(left.type.shape), elements(right.type.shape)) <= scope.palette.limit:
            return [tree.Assign((name,), (tree.Mma(left, right, start),))]
    more: tree.Expr = tree.Apply("add", (tree.Apply("mul", (total, tree.Number(3))), tree.Number(1)))
    if is_float(total.own.dtype):
        more = tree.Apply("clamp", (more, tree.Number(-8.0), tree.Number(8.0)))
    step, trips = tree.Assign((name,), (more,)), dice.between(1, 3)
    begin = tree.Assign((name,), (start,))
    if dice.chance(0.6):
        return [begin, tree.For(scope.fresh("k"), tree.Number(0), tree.Number(trips), tree.Number(1), (step,))]
    counter = tree.Name(scope.fresh("c"), Type("i32"))
    count = tree.Assign((counter.name,), (tree.Apply("add", (counter, tree.Number(1))),))
    zero = tree.Assign((counter.name,), (tree.Cast(tree.Number(0), "i32"),))
    return [zero, begin, tree.While(tree.Apply("lt", (counter, tree.Number(trips))), (step, count))]


def _operands(scope: Scope, operand: str, shape: Shape) -> tuple[tree.Expr, tree.Expr]:
    """Draw what a product multiplies."""
    depth, draw = scope.dice.pick((*scope.palette.sizes, 4, 8)), Expressions(scope).draw
    return draw(operand, (shape[0], depth), 0), draw(operand, (depth, shape[1]), 0)
