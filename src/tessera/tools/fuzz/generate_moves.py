"""Draws statements that load a part of a tensor, move its elements, and store them to the same tensor."""

from __future__ import annotations

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_access import Access, adjacent, distinct
from tessera.tools.fuzz.generate_expressions import Expressions
from tessera.tools.fuzz.generate_scope import INDEX, Region, Scope
from tessera.tools.fuzz.types import Shape, elements, fits, is_float


def move(scope: Scope, region: Region) -> list[tree.Stmt]:
    """Return a statement that moves elements within a tensor; nothing when the tensor has no room for one."""
    dice = scope.dice
    axes, shape = _part(scope, region)
    if dice.chance(0.5):
        axes, shape = _square(axes, shape)
    if not shape or elements(shape) > scope.palette.limit:
        return []
    if not _allowed(scope, shape):
        return []
    dtype = region.tensor.dtype
    if dice.rarely(0.2) and (turned := _in_place(scope, region, axes)) is not None:
        return [turned]
    load = tree.Load(region.tensor.name, axes, dtype)
    makers = [_turned, _mirrored, _folded, _shifted, _gathered, _mixed, _swept]
    value = dice.pick(makers)(scope, region, load)
    if value is None or value.type.shape != shape:
        return []
    if dtype != "bool" and dice.chance(0.4):
        other = load if dice.chance(0.6) else Expressions(scope).draw(dtype, shape, 1)
        value = tree.Apply(dice.pick(("add", "sub", "maximum")), (value, other))
    if is_float(dtype) and any(context in ("for", "while") for context in scope.contexts):
        value = tree.Apply("clamp", (value, tree.Number(-3.0), tree.Number(3.0)))
    target = axes
    if dice.chance(0.25):
        found = Access(scope, region, write=True).axes(shape, picks=0.4)
        target = found if found is not None and tree.index_shape(found) == shape else axes
    saturate = "@saturate" in region.tensor.policy
    if dice.chance(0.35) and scope.predicate is None:
        name = scope.fresh()
        scope.names[name] = value.type
        kept = tree.Name(name, value.type)
        return [
            tree.Assign((name,), (value,)),
            tree.Store(region.tensor.name, target, dtype, kept, saturate=saturate),
        ]
    return [tree.Store(region.tensor.name, target, dtype, value, saturate=saturate)]


def _allowed(scope: Scope, shape: Shape) -> bool:
    """Return whether the condition of an enclosing `if` on a tile, if any, fits what is stored."""
    return scope.predicate is None or fits(scope.predicate, shape)


def _part(scope: Scope, region: Region) -> tuple[tuple[tree.Axis, ...], Shape]:
    """Return the whole part that the program owns, one element of some of the other dimensions."""
    dice = scope.dice
    axes: list[tree.Axis] = []
    kept = 0
    for axis, size in enumerate(region.tensor.shape):
        if axis in region.parts:
            name, block = region.parts[axis]
            start = tree.Name(name, INDEX)
            axes.append(tree.At(start) if block == 1 and dice.chance(0.7) else tree.Span(start, block))
        elif size == 0 or (kept > 2 or dice.chance(0.15)):
            axes.append(tree.At(tree.Number(dice.between(0, max(size - 1, 0)))))
        else:
            whole = dice.chance(0.8)
            axes.append(tree.Span(None, size) if whole else tree.Span(tree.Number(0), max(size - 1, 1)))
        kept += isinstance(axes[-1], tree.Span)
    return tuple(axes), tree.index_shape(tuple(axes))


def _square(axes: tuple[tree.Axis, ...], shape: Shape) -> tuple[tuple[tree.Axis, ...], Shape]:
    """Return a part of a part that has the shape of its transpose."""
    size = min(shape, default=0)
    square = tuple(
        tree.Span(axis.start or tree.Number(0), size) if isinstance(axis, tree.Span) and axis.size > size else axis
        for axis in axes
    )
    return square, tree.index_shape(square)


def _in_place(scope: Scope, region: Region, axes: tuple[tree.Axis, ...]) -> tree.Stmt | None:
    """Return what transposes the largest square of a matrix in place, and does nothing else; None of another rank."""
    square, shape = _square(axes, tree.index_shape(axes))
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2 or not _allowed(scope, shape):
        return None
    name, dtype = region.tensor.name, region.tensor.dtype
    turned = tree.Transpose(tree.Load(name, square, dtype), (1, 0), 1)
    return tree.Store(name, square, dtype, turned, saturate="@saturate" in region.tensor.policy)


def _mirrored(scope: Scope, region: Region, load: tree.Load) -> tree.Expr | None:
    """Reverse along a dimension."""
    return tree.Flip(load, (scope.dice.between(0, len(load.type.shape) - 1),))


def _turned(scope: Scope, region: Region, load: tree.Load) -> tree.Expr | None:
    """Transpose, where the sizes allow it, else through a reshape."""
    shape = load.type.shape
    if len(shape) < 2:
        return _folded(scope, region, load)
    perm = tuple(scope.dice.shuffled(range(len(shape))))
    if perm == tuple(range(len(shape))):
        perm = (*perm[1:], perm[0])
    turned = tree.Transpose(load, perm, scope.dice.between(0, 1))
    return turned if turned.type.shape == shape else tree.Reshape(turned, shape)


def _folded(scope: Scope, region: Region, load: tree.Load) -> tree.Expr | None:
    """Fold to two dimensions, transpose, and unfold."""
    size = load.type.size
    factors = [n for n in range(2, size) if size % n == 0]
    if not factors or not scope.dice.chance(scope.dice.options.flat_transposes):
        return None
    first = scope.dice.pick(factors)
    folded = tree.Reshape(load, (first, size // first))
    return tree.Reshape(tree.Transpose(folded, (1, 0), scope.dice.between(0, 1)), load.type.shape)


def _shifted(scope: Scope, region: Region, load: tree.Load) -> tree.Expr | None:
    """Load the same number of elements from a neighbouring place that the program owns."""
    found = Access(scope, region).axes(load.type.shape, picks=0.0)
    axes = list(found if found is not None else load.axes)
    free = [i for i, axis in enumerate(axes) if isinstance(axis, tree.Span) and i not in region.parts]
    if free:
        axis = scope.dice.pick(free)
        span = axes[axis]
        assert isinstance(span, tree.Span)
        axes[axis] = tree.Span(tree.Number(scope.dice.between(1, 3)), span.size)
    if any(isinstance(axis, tree.NewAxis) for axis in axes):
        return None
    return tree.Load(load.tensor, tuple(axes), load.dtype)


def _gathered(scope: Scope, region: Region, load: tree.Load) -> tree.Expr | None:
    """Load through an index tile that names each element once."""
    axes = list(load.axes)
    spans = [i for i, axis in enumerate(axes) if isinstance(axis, tree.Span) and i not in region.parts]
    if not spans:
        return None
    axis = scope.dice.pick(spans)
    span = axes[axis]
    assert isinstance(span, tree.Span)
    tile = distinct(scope, span.size, span.size)
    if tile is None:
        return None
    axes[axis] = tree.Pick(tile)
    return tree.Load(load.tensor, tuple(axes), load.dtype) if adjacent(axes) else None


def _mixed(scope: Scope, region: Region, load: tree.Load) -> tree.Expr | None:
    """Add a row, a column or a reduction of what is overwritten."""
    shape, dice = load.type.shape, scope.dice
    if load.dtype == "bool":
        return tree.Apply("xor", (load, tree.Scan("any", load, -1)))
    axis = dice.between(0, len(shape) - 1)
    reduced: tree.Expr = tree.Reduce(dice.pick(("max", "min", "sum")), load, axis)
    if reduced.type.shape:
        reduced = tree.Expand(reduced, (axis,), dice.between(0, 1))
    return tree.Apply(dice.pick(("sub", "add")), (load, tree.Cast(reduced, load.dtype)))


def _swept(scope: Scope, region: Region, load: tree.Load) -> tree.Expr | None:
    """Scan what is overwritten."""
    axis = scope.dice.between(-len(load.type.shape), -1)
    if load.dtype == "bool":
        return tree.Scan("any", load, axis)
    return tree.Cast(tree.Scan(scope.dice.pick(("max", "sum")), load, axis, scope.dice.chance(0.4)), load.dtype)
