"""Draws loops of matrix products, and products of their results."""

from __future__ import annotations

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_expressions import Expressions
from tessera.tools.fuzz.generate_scope import Scope
from tessera.tools.fuzz.types import OPERANDS, Type, accumulator


def products(scope: Scope) -> list[tree.Stmt]:
    """Return a loop that accumulates a product, and sometimes a product of what it gives."""
    dice, limit = scope.dice, scope.palette.limit
    if dice.rarely(dice.options.batches):
        return _of_batches(scope)
    known = [d for d in scope.palette.dtypes if d in OPERANDS]
    operand = dice.pick(known) if known and dice.chance(0.8) else dice.pick(("f32", "bf16", "f16"))
    sizes = (*scope.palette.sizes, 16, 8)
    rows, columns, depth = dice.pick(sizes), dice.pick(sizes), dice.pick(sizes)
    buffers = [t for t in scope.buffers.values() if t.dtype in OPERANDS and len(t.shape) == 2]
    if buffers and dice.chance(0.7):
        held = dice.pick(buffers)
        operand, (rows, depth) = held.dtype, held.shape if dice.chance(0.7) else held.shape[::-1]
    if max(rows * depth, columns * depth, rows * columns) > limit:
        return []
    total, var = scope.fresh(), scope.fresh("k")
    type_ = Type(accumulator(operand), (rows, columns))
    kept = tree.Name(total, type_)
    inner = scope.inner("for", 3)
    step = depth if dice.chance(0.7) else dice.between(1, depth)
    trips = dice.between(1, 3)
    inner.offsets[var] = (0, step * (trips - 1))
    # Each operand is a load, as the schedule stages it, or computed from one; sometimes stored transposed.
    left = _operand(inner, operand, rows, depth)
    right = _operand(inner, operand, depth, columns)
    start: tree.Expr = tree.Full(type_.shape, tree.Number(0), type_.dtype)
    if dice.chance(0.3):
        start = Expressions(scope).draw(type_.dtype, type_.shape, 1)
    if scope.palette.reuse:
        start = Expressions(scope).again(type_.dtype, type_.shape) or start
    compute = "tf32" if operand == "f32" and dice.chance(0.2) else ""
    body: list[tree.Stmt] = [tree.Assign((total,), (tree.Mma(left, right, kept, "", compute),))]
    if dice.chance(0.25):
        body.append(tree.Augment(kept, "mul", tree.Number(2)))
    if dice.chance(0.2):
        again = tree.Mma(_operand(inner, operand, rows, depth), right, kept, "", compute)
        body.append(tree.Assign((total,), (again,)))
    made: list[tree.Stmt] = [
        tree.Assign((total,), (start,)),
        tree.For(var, tree.Number(0), tree.Number(step * trips), tree.Number(step), tuple(body)),
    ]
    scope.names[total] = type_
    if dice.chance(0.35) and operand not in ("i8", "u8"):
        made += _chained(scope, kept, operand)
    return made


def _of_batches(scope: Scope) -> list[tree.Stmt]:
    """Return a loop that accumulates the products of a batch, scaled in between, and sometimes their rows' sums."""
    dice = scope.dice
    operand = dice.pick([d for d in scope.palette.dtypes if d in OPERANDS] or ["f32"])
    batch, (rows, columns, depth) = dice.between(1, 4), (dice.pick((*scope.palette.sizes, 8)) for _ in range(3))
    held = [t for t in scope.buffers.values() if t.dtype in OPERANDS and len(t.shape) == 3]
    if held and dice.rarely(0.7):
        kept_there = held[dice.aside.randrange(len(held))]
        operand, (batch, rows, depth) = kept_there.dtype, kept_there.shape
    if batch * max(rows * depth, columns * depth, rows * columns) > scope.palette.limit:
        return []
    total, var, trips = scope.fresh(), scope.fresh("k"), dice.between(1, 3)
    kept = tree.Name(total, Type(accumulator(operand), (batch, rows, columns)))
    inner = scope.inner("for", 3)
    inner.offsets[var] = (0, depth * (trips - 1))
    sides = dice.pick((((batch,), (batch,)), ((batch,), (batch,)), ((batch,), ()), ((), (batch,)), ((1,), (batch,))))
    depths = (0 if dice.chance(0.7) else 1 for _ in range(2))
    left, right = (
        Expressions(inner).held(operand, (*side, *shape)) or Expressions(inner).draw(operand, (*side, *shape), deep)
        for side, shape, deep in zip(sides, ((rows, depth), (depth, columns)), depths, strict=True)
    )
    body: list[tree.Stmt] = [tree.Assign((total,), (tree.Mma(left, right, kept),))]
    if dice.chance(0.3):
        body.insert(0, tree.Augment(kept, "mul", tree.Number(2)))
    made: list[tree.Stmt] = [
        tree.Assign((total,), (tree.Full(kept.own.shape, tree.Number(0), kept.own.dtype),)),
        tree.For(var, tree.Number(0), tree.Number(depth * trips), tree.Number(depth), tuple(body)),
    ]
    scope.names[total] = kept.own
    if dice.chance(0.4):
        name, summed = scope.fresh(), tree.Reduce(dice.pick(("sum", "max")), kept, dice.between(0, 2))
        made.append(tree.Assign((name,), (summed,)))
        scope.names[name] = summed.type
    return made


def _operand(scope: Scope, dtype: str, rows: int, columns: int) -> tree.Expr:
    dice = scope.dice
    held = Expressions(scope).held(dtype, (rows, columns))
    if held is not None and dice.chance(0.8):
        return held
    depth = 0 if dice.chance(0.7) else 1
    if dice.chance(0.3):
        turned = Expressions(scope).draw(dtype, (columns, rows), depth)
        return tree.Transpose(turned, (1, 0), 1)
    return Expressions(scope).draw(dtype, (rows, columns), depth)


def _chained(scope: Scope, first: tree.Name, operand: str) -> list[tree.Stmt]:
    """Multiply a product, as it is or rounded, with another tile: its fragments become operands."""
    dice = scope.dice
    rows, depth = first.own.shape
    columns = dice.pick(scope.palette.sizes)
    if max(depth, rows) * columns > scope.palette.limit:
        return []
    clamped: tree.Expr = tree.Apply("clamp", (first, tree.Number(-3.0), tree.Number(3.0)))
    left = tree.Cast(clamped, operand)
    name = scope.fresh()
    product = tree.Mma(left, _operand(scope, operand, depth, columns))
    scope.names[name] = product.type
    return [tree.Assign((name,), (product,))]
