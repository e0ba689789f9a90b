"""Draws explicit shared memory: buffers, asynchronous copies, barriers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_access import Access
from tessera.tools.fuzz.generate_buffers import buffer_axes
from tessera.tools.fuzz.generate_expressions import Expressions
from tessera.tools.fuzz.generate_fills import Storing, fill, filled, multiplied
from tessera.tools.fuzz.generate_scope import INDEX, Dice, Scope
from tessera.tools.fuzz.types import OPERANDS, Shape, Type, elements, is_float


def pipeline(scope: Scope) -> list[tree.Stmt]:
    """Copy tiles to the stages of a buffer, one ahead of the loop that reads them."""
    dice = scope.dice
    regions = [r for r in scope.regions.values() if r.readable and r.tensor.dtype != "bool"]
    if not regions:
        return []
    region, stages = dice.pick(regions), dice.between(2, 3)
    shape, dtype = scope.shape(dice.between(1, 2)), region.tensor.dtype
    first = Access(scope, region).axes(shape, picks=0.0)
    name, var = scope.fresh("buffer"), scope.fresh("k")
    inner = scope.inner("for", 3)
    inner.offsets[var] = (0, 2)
    later = Access(inner, region).axes(shape, picks=0.0)
    news = [axis for axis in (*(first or ()), *(later or ())) if isinstance(axis, tree.NewAxis)]
    if first is None or later is None or news or elements(shape) > 512:
        return []
    k = tree.Name(var, INDEX)
    held = tree.ReadShared(name, Type(dtype, shape), _stage(scope, k, stages))
    start, step = _summed(scope, inner, held)
    ahead = _stage(scope, tree.Apply("add", (k, tree.Number(1))), stages)
    fill: tree.Stmt = tree.CopyAsync(name, region.tensor.name, later, dtype, ahead)
    if dice.chance(0.2):
        fill = tree.StoreShared(name, tree.Load(region.tensor.name, later, dtype), ahead)
    body = (fill, tree.Commit(), tree.Wait(1), tree.Barrier(), step, tree.Barrier())
    return [
        tree.AllocShared(name, (stages, *shape), dtype),
        start,
        tree.CopyAsync(name, region.tensor.name, first, dtype, tree.Number(0)),
        tree.Commit(),
        tree.For(var, tree.Number(0), tree.Number(dice.between(1, 5)), tree.Number(1), body),
        tree.Wait(0),
        tree.Barrier(),
    ]


def ring(scope: Scope) -> list[tree.Stmt]:
    """Copy what each iteration reads to a ring, as many iterations ahead as it has other stages, or fewer."""
    dice = scope.dice
    regions = [r for r in scope.regions.values() if r.readable and r.tensor.dtype in OPERANDS]
    if not regions:
        return []
    region, stages = dice.pick(regions), dice.between(1, 4)
    distance, count = dice.between(0, stages - 1), dice.between(1, 6)
    shape, dtype = scope.shape(2), region.tensor.dtype
    name, var, slot = scope.fresh("buffer"), scope.fresh("k"), scope.fresh("w")
    inner = scope.inner("for", 3)
    inner.offsets[var] = (0, count + stages)
    axes = Access(inner, region).axes(shape, picks=0.0)
    if axes is None or any(isinstance(axis, tree.NewAxis) for axis in axes) or elements(shape) > 512:
        return []
    k, held_slot = tree.Name(var, INDEX), tree.Name(slot, INDEX)
    counted = dice.chance(0.5)  # by a value that the loop carries, else by its variable
    number = held_slot if counted else k
    held = tree.ReadShared(name, Type(dtype, shape), _around(number, 0, stages))
    start, step = _summed(scope, inner, held)
    copy = tree.CopyAsync(name, region.tensor.name, axes, dtype)
    ahead = _at(copy, var, tree.Apply("add", (k, tree.Number(distance)))) if distance else copy
    fill: tree.Stmt = replace(ahead, stage=_around(number, distance, stages))
    guard = tree.Apply("lt", (tree.Apply("add", (k, tree.Number(distance))), tree.Number(count)))
    if dice.chance(0.3):
        fill = tree.If(guard, (fill,))
    body: tuple[tree.Stmt, ...] = (fill, tree.Commit(), tree.Wait(distance), tree.Barrier(), step, tree.Barrier())
    if counted:
        body = (*body, tree.Assign((slot,), (_around(held_slot, 1, stages),)))
    starts = [tree.Cast(tree.Number(j), INDEX.dtype) for j in range(distance)]  # typed, as the variable is
    first = [replace(_at(copy, var, begin), stage=tree.Number(j)) for j, begin in enumerate(starts)]
    return [
        tree.AllocShared(name, (stages, *shape), dtype),
        start,
        *([tree.Assign((slot,), (tree.Cast(tree.Number(0), INDEX.dtype),))] if counted else []),
        *(stmt for each in first for stmt in (each, tree.Commit())),
        tree.For(var, tree.Number(0), tree.Number(count), tree.Number(1), body),
        tree.Wait(0),
        tree.Barrier(),
    ]


def _around(number: tree.Expr, more: int, stages: int) -> tree.Expr:
    """Return the stage some iterations after that of a number."""
    moved = tree.Apply("add", (number, tree.Number(more))) if more else number
    return tree.Apply("mod", (moved, tree.Number(stages)))


def _at(node: tree.CopyAsync, var: str, value: tree.Expr) -> tree.CopyAsync:
    """Return a copy with a value in place of a variable."""

    def put(part: tree.Node) -> tree.Node:
        if isinstance(part, tree.Name) and part.name == var:
            return value
        return tree.rebuild(part, tuple(map(put, tree.children(part))))

    found = put(node)
    assert isinstance(found, tree.CopyAsync)
    return found


def _stage(scope: Scope, number: tree.Expr, stages: int) -> tree.Expr:
    """Return a stage by its number, mostly around a ring; else those behind the last do not exist."""
    return number if scope.dice.chance(0.2) else tree.Apply("mod", (number, tree.Number(stages)))


def _summed(scope: Scope, inner: Scope, held: tree.ReadShared) -> tuple[tree.Stmt, tree.Stmt]:
    """Return what starts a sum of the tiles that a stage holds, or of products with them, and what adds one."""
    dice, total, (dtype, shape) = scope.dice, scope.fresh(), (held.own.dtype, held.own.shape)
    if len(shape) == 2 and dtype in OPERANDS and dice.chance(0.4):
        other = Expressions(inner).draw(dtype, (shape[1], dice.pick((4, 8, 16))), 1)
        kept = tree.Name(total, tree.Mma(held, other).type)
        value: tree.Expr = tree.Mma(held, other, kept)
    else:
        kept = tree.Name(total, held.own)
        value = tree.Apply(dice.pick(("add", "sub", "maximum")), (kept, held))
        if is_float(dtype):
            value = tree.Apply("clamp", (value, tree.Number(-3.0), tree.Number(3.0)))
    scope.names[total] = kept.own
    start = tree.Full(kept.own.shape, tree.Number(1), kept.own.dtype)
    return tree.Assign((total,), (start,)), tree.Assign((total,), (value,))


def allocate(scope: Scope, store: Storing) -> list[tree.Stmt]:
    """Allocate and fill a shared buffer at the start of a program.

    Args:
        scope: where it is allocated.
        store: stores a tile to a tensor, where one takes it.
    """
    dice = scope.dice
    if dice.rarely(dice.options.histograms):
        return histogram(scope)
    if dice.rarely(dice.options.buffer_products):
        return multiplied(scope, store)
    if dice.chance(0.5):
        return ring(scope) if dice.chance(0.5) else pipeline(scope)
    shape = scope.shape(dice.weighted(((1, 2.0), (2, 6.0), (3, 2.0), (4, 0.3))))
    while elements(shape) > 1024:
        shape = tuple(max(s // 2, 1) for s in shape)
    if few := dice.rarely(0.3):
        shape = _of_few_elements(dice)
    if len(shape) in (1, 2) and dice.chance(0.35):  # its transpose fits into it
        shape = (shape[0],) * 2 if shape[0] <= 32 else shape
    dtype, name = dice.pick(scope.palette.dtypes), scope.fresh("buffer")
    swizzle = "xor" if len(shape) > 1 and dice.chance(0.35) else "none"
    scope.buffers[name] = Type(dtype, shape)
    if swizzle != "none":
        scope.swizzled.add(name)
    written = filled(scope, name, Type(dtype, shape))
    made = [tree.AllocShared(name, shape, dtype, swizzle), *written, *_read_back(scope, name, Type(dtype, shape))]
    return [*made, *store(scope, tree.ReadShared(name, Type(dtype, shape)))] if few else made


def _of_few_elements(dice: Dice) -> Shape:
    """Return a shape of three or four dimensions whose elements are no more than the threads of a program."""
    rng = dice.aside
    sizes = [rng.choice((1, 2, 2, 3, 4)) for _ in range(rng.choice((2, 2, 3)))]
    return (*sizes, rng.choice([size for size in (4, 8, 16, 32) if prod(sizes) * size <= 128] or [4]))


def _read_back(scope: Scope, name: str, type_: Type) -> list[tree.Stmt]:
    """Read a buffer whole, or one of its stages, sometimes."""
    dice, made = scope.dice, list[tree.Stmt]()
    for probability, stage in ((0.4, None), (0.5, dice.between(0, type_.shape[0] - 1))):
        if dice.chance(probability) and (stage is None or len(type_.shape) > 1):
            own = type_ if stage is None else Type(type_.dtype, type_.shape[1:])
            kept = scope.fresh()
            scope.names[kept] = own
            at = None if stage is None else tree.Number(stage)
            made.append(tree.Assign((kept,), (tree.ReadShared(name, own, at),)))
    return made


def histogram(scope: Scope) -> list[tree.Stmt]:
    """Update elements of a buffer by atomics, some of them several times and some outside of it, and read it."""
    dice = scope.dice
    rank, dtype = dice.between(1, 2), dice.pick(("i32", "i32", "u32", "i64", "u64"))
    shape = tuple(dice.pick((1, 5, 16, 60)) for _ in range(rank))
    name, kept, size = scope.fresh("hist"), scope.fresh(), dice.pick((1, 7, 33, 64))
    made: list[tree.Stmt] = [
        tree.AllocShared(name, shape, dtype),
        tree.StoreShared(name, tree.Full(shape, tree.Number(dice.between(0, 3)), dtype)),
        tree.Barrier(),
    ]
    fn = dice.pick(("add", "add", "max", "min", "and", "or", "xor"))
    for _ in range(dice.between(1, 2)):
        alone = dice.chance(0.2)
        indices = tuple(_place(scope, 1 if alone else size, most) for most in shape)
        value = Expressions(scope).draw(dtype, () if alone else (size,), 1)
        update = tree.UpdateShared(fn, name, indices if not alone else tuple(map(_number, shape)), value)
        made.append(update)
    scope.names[kept] = Type(dtype, shape)
    return [*made, tree.Barrier(), tree.Assign((kept,), (tree.ReadShared(name, Type(dtype, shape)),))]


def _place(scope: Scope, size: int, limit: int) -> tree.Expr:
    """Return indices along a dimension, mostly inside."""
    dice, dtype = scope.dice, scope.dice.pick(("i32", "i64"))
    drawn = Expressions(scope).draw(dtype, (size,), 1) if dice.chance(0.6) else tree.Arange(0, size, dtype)
    if dice.chance(0.7):
        return tree.Apply("mod", (drawn, tree.Number(limit)))
    return drawn


def _number(size: int) -> tree.Expr:
    return tree.Number(size // 2)


def write_again(scope: Scope) -> list[tree.Stmt]:
    """Write a buffer that was read before, sometimes with what it held in another order."""
    if scope.dice.rarely(scope.dice.options.buffer_parts):
        return write_parts(scope)
    name = scope.dice.pick(list(scope.buffers))
    type_ = scope.buffers[name]
    if len(type_.shape) == 2 and scope.dice.chance(0.5 * scope.dice.options.flat_transposes):
        held = tree.Name(scope.fresh(), type_)
        turned = tree.Transpose(held, (1, 0))
        moved = turned if turned.type == type_ else tree.Reshape(turned, type_.shape)
        read = tree.Assign((held.name,), (tree.ReadShared(name, type_),))
        again = tree.Assign((scope.fresh(),), (tree.ReadShared(name, type_),))
        scope.names[again.names[0]] = type_
        return [read, tree.Barrier(), tree.StoreShared(name, moved), tree.Barrier(), again]
    return [tree.Barrier(), *fill(scope, name, scope.buffers[name])]


def write_parts(scope: Scope) -> list[tree.Stmt]:
    """Write a part of a buffer, sometimes two that have no element in common, or where a condition holds."""
    dice, names = scope.dice, [name for name in scope.buffers if name not in scope.swizzled]
    if not names:
        return []
    name = dice.pick(names)
    type_, made = scope.buffers[name], list[tree.Stmt]()
    if dice.chance(0.25) and type_.shape[0] > 1:
        cut = dice.between(1, type_.shape[0] - 1)
        rest = tuple(tree.Span(None, size) for size in type_.shape[1:])
        for start, end in dice.shuffled([(0, cut), (cut, type_.shape[0])]):
            made += _store_part(scope, name, (tree.Span(tree.Number(start), end - start), *rest))
        return [tree.Barrier(), *made, tree.Barrier()]
    shape = tuple(dice.between(1, size) if dice.chance(0.5) else size for size in type_.shape if dice.chance(0.8))
    axes = buffer_axes(scope, name, shape, picks=0.35, write=True)
    if (
        axes is None
        or tree.index_shape(axes) != shape
        or (not shape and any(isinstance(a, tree.NewAxis) for a in axes))
    ):
        return []
    if not shape or dice.chance(0.8):
        return [tree.Barrier(), *_store_part(scope, name, axes), tree.Barrier()]
    stored = _store_part(replace(scope, predicate=shape), name, axes)
    return [tree.Barrier(), tree.If(Expressions(scope).draw("bool", shape, 1), tuple(stored)), tree.Barrier()]


def _store_part(scope: Scope, name: str, axes: tuple[tree.Axis, ...]) -> list[tree.Stmt]:
    dice, type_, shape = scope.dice, scope.buffers[name], tree.index_shape(axes)
    inner = replace(scope, buffers={n: t for n, t in scope.buffers.items() if n != name})
    value, fn = Expressions(inner).draw(type_.dtype, shape, 2), ""
    if dice.chance(0.25):
        fn = dice.pick(("add", "sub", "mul"))
        if is_float(type_.dtype):
            value = tree.Apply("clamp", (value, tree.Number(-1.0), tree.Number(1.0)))
    return [tree.StorePart(name, axes, type_.dtype, value, fn)]
