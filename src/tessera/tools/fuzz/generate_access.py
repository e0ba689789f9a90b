"""Draws indices: places of tensors that a program may load from or store to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_scope import INDEX, Region, Scope
from tessera.tools.fuzz.types import Shape, fits, int_range


@dataclass(frozen=True, slots=True)
class Access:
    """Draws one place of a tensor.

    Args:
        scope: where it is used.
        region: the tensor and what may be done with it.
        write: whether it is stored to, so that no element may be named twice.
    """

    scope: Scope
    region: Region
    write: bool = False

    def axes(self, shape: Shape, picks: float = 0.15) -> tuple[tree.Axis, ...] | None:
        """Return an index that takes a tile of `shape`; None when the tensor has none.

        Args:
            shape: the shape wanted.
            picks: probability of index tiles.
        """
        if self.scope.ids is not None:
            return self._by_number(shape, self.scope.ids)
        dice, rank = self.scope.dice, len(self.region.tensor.shape)
        spare = len(shape) - rank
        new = [i for i, size in enumerate(shape) if size == 1]
        dropped = set(dice.shuffled(new)[:spare]) if 0 < spare <= len(new) else set[int]()
        if spare > len(new):
            return None
        wanted = [size for i, size in enumerate(shape) if i not in dropped]
        choices = [c for c in combinations(range(rank), len(wanted)) if self._can(c, wanted)]
        if not choices:
            return None
        chosen = dice.pick(choices)
        axes: list[tree.Axis] = []
        sizes = iter(wanted)
        for axis in range(rank):
            axes.append(self._span(axis, next(sizes)) if axis in chosen else self._at(axis))
        if dropped:
            return self._with_new(axes, shape, dropped)
        masked = self.scope.predicate is None or fits(self.scope.predicate, shape)
        if chosen and masked and dice.chance(picks):
            return self._picked(axes, chosen, wanted)
        return tuple(axes)

    def _by_number(self, shape: Shape, ids: tree.Name) -> tuple[tree.Axis, ...] | None:
        """Return an index by element numbers; a program owns the elements of its own numbers."""
        dice, size = self.scope.dice, self.region.tensor.shape[0]
        if self.region.role == "own":
            return (tree.Pick(ids),) if shape == ids.own.shape else None
        if not shape:
            return (tree.At(offset(self.scope, size, 1)),) if self.region.role == "read" else None
        if shape != ids.own.shape:
            return None
        if self.region.role == "accumulate":
            return (tree.Pick(tree.Apply("mod", (ids, tree.Number(size)))),)
        kind = dice.pick(("same", "same", "reversed", "moved", "turned"))
        tile: tree.Expr = ids
        if kind == "reversed":
            tile = tree.Apply("sub", (tree.Number(size - 1), ids))
        elif kind == "moved" and self.scope.palette.outside:
            tile = tree.Apply(dice.pick(("add", "sub")), (ids, tree.Number(dice.between(1, 3))))
        elif kind == "turned" and size:
            moved = tree.Apply("mul", (ids, tree.Number(dice.between(2, 7))))
            tile = tree.Apply("mod", (moved, tree.Number(size)))
        return (tree.Pick(tile),)

    def _can(self, chosen: tuple[int, ...], sizes: list[int]) -> bool:
        """Whether the owned part is large enough along the chosen dimensions."""
        parts = self.region.parts
        return all(axis not in parts or size <= parts[axis][1] for axis, size in zip(chosen, sizes, strict=True))

    def _with_new(self, axes: list[tree.Axis], shape: Shape, dropped: set[int]) -> tuple[tree.Axis, ...]:
        """Put `None` where the result has dimensions that the tensor has not."""
        result: list[tree.Axis] = []
        given = iter(axes)
        for position in range(len(shape)):
            if position in dropped:
                result.append(tree.NewAxis())
                continue
            axis = next(given)
            while isinstance(axis, tree.At):
                result.append(axis)
                axis = next(given)
            result.append(axis)
        return (*result, *given)

    def _base(self, axis: int, size: int) -> tree.Expr:
        """Return where the owned part starts, moved so that `size` elements still fit."""
        name, block = self.region.parts[axis]
        moved = self.scope.dice.between(0, block - size) if self.scope.dice.chance(0.4) else 0
        start = tree.Name(name, INDEX)
        return start if not moved else tree.Apply("add", (start, tree.Number(moved)))

    def _span(self, axis: int, size: int) -> tree.Axis:
        if axis in self.region.parts:
            return tree.Span(self._base(axis, size), size)
        limit = self.region.tensor.shape[axis]
        if limit == size and self.scope.dice.chance(0.6):
            return tree.Span(None, size)
        return tree.Span(offset(self.scope, limit, size), size)

    def _at(self, axis: int) -> tree.Axis:
        if axis in self.region.parts:
            return tree.At(self._base(axis, 1))
        return tree.At(offset(self.scope, self.region.tensor.shape[axis], 1))

    def _picked(self, axes: list[tree.Axis], chosen: tuple[int, ...], sizes: list[int]) -> tuple[tree.Axis, ...] | None:
        """Turn one span, or all of them, into index tiles."""
        dice = self.scope.dice
        which = [dice.between(0, len(chosen) - 1)] if dice.chance(0.6) else list(range(len(chosen)))
        for number in which:
            axis, size = chosen[number], sizes[number]
            tile = self._indices(axis, size)
            if tile is None:
                return tuple(axes) if number == which[0] else None
            if len(which) > 1:
                spread = tuple(i for i in range(len(chosen)) if i != number)
                tile = tree.Expand(tile, spread, form=1) if spread else tile
            axes[axis] = tree.Pick(tile)
        return tuple(axes) if adjacent(axes) else None

    def _indices(self, axis: int, size: int) -> tree.Expr | None:
        """Return an index tile of `size` elements for a dimension."""
        parts = self.region.parts
        limit = parts[axis][1] if axis in parts else self.region.tensor.shape[axis]
        if axis in parts and not self.scope.palette.outside:
            last = self.scope.offsets[parts[axis][0]][1]
            if last + limit > self.region.tensor.shape[axis]:
                return None  # the last program's part reaches past the edge
        tile = distinct(self.scope, limit, size) if self.write else inside(self.scope, limit, size)
        if tile is None:
            return None
        if axis in parts:
            return tree.Apply("add", (tree.Name(parts[axis][0], INDEX), tile))
        dice = self.scope.dice
        if self.scope.palette.outside and dice.chance(0.4):
            return tree.Apply(dice.pick(("add", "sub")), (tile, tree.Number(dice.between(1, size))))
        return tile


def adjacent(axes: list[tree.Axis]) -> bool:
    """Return whether no slice stands between index tiles or integers."""
    kinds = "".join("s" if isinstance(axis, tree.Span) else "i" for axis in axes)
    middle = kinds.strip("s")
    return "s" not in middle


def offset(scope: Scope, limit: int, size: int) -> tree.Expr:
    """Draw the start of a slice along a dimension: mostly inside, sometimes across an edge or outside."""
    dice = scope.dice
    inner = max(limit - size, 0)
    kind = dice.weighted((("zero", 3.0), ("inside", 3.0), ("run-time", 3.0), ("edge", 1.0), ("far", 0.15)))
    if kind == "zero":
        return tree.Number(0)
    if kind == "inside":
        return tree.Number(dice.between(0, inner))
    if kind == "edge":
        return tree.Number(dice.between(max(limit - size // 2 - 1, 0), limit))
    if kind == "far":
        return tree.Number(limit + dice.between(1, 40))
    if not scope.offsets:
        return tree.Number(dice.between(0, inner))
    name = dice.pick(list(scope.offsets))
    low, high = scope.offsets[name]
    start: tree.Expr = tree.Name(name, INDEX)
    if high > low and inner and dice.chance(0.4) and (high - low) * size <= 2 * limit:
        start = tree.Apply("mul", (start, tree.Number(size)))
        low, high = low * size, high * size
    if name not in scope.unrolled | scope.dims and dice.rarely(0.25):  # back to front
        return tree.Apply("sub", (tree.Number(inner), start))
    if name not in scope.unrolled | scope.dims and dice.rarely(0.12):  # from before the tensor, maybe all of it
        return tree.Apply("sub", (start, tree.Number(low + dice.aside.randint(1, 2 * size))))
    # Move it so that the middle of its range lands inside, more or less.
    move = dice.between(-low - 2, max(inner - high, -low) + 2)
    if name in scope.unrolled or name in scope.dims:
        move = max(move, -low)  # a constant index is not negative
    if dice.chance(0.3) or not move:
        return start
    return tree.Apply("add" if move > 0 else "sub", (start, tree.Number(abs(move))))


def distinct(scope: Scope, limit: int, size: int) -> tree.Expr | None:
    """Draw an index tile whose elements are distinct and lie inside `limit`; None when there are too few."""
    if size > limit:
        return None
    dice = scope.dice
    lanes = tree.Arange(0, size, dice.pick(("i32", "i32", "i64")))
    kind = dice.pick(("moved", "reversed", "strided", "rotated", "permutation"))
    if kind == "permutation":
        found = [
            region
            for region in scope.regions.values()
            if region.tensor.contents.kind == "perm" and region.tensor.shape[0] == limit and region.readable
        ]
        if found:
            start = dice.between(0, limit - size)
            axis = tree.Span(None, size) if size == limit else tree.Span(tree.Number(start), size)
            tensor = dice.pick(found).tensor
            return tree.Load(tensor.name, (axis,), tensor.dtype)
        kind = "reversed"
    if kind == "reversed":
        return tree.Apply("sub", (tree.Number(dice.between(size - 1, limit - 1)), lanes))
    if kind == "strided" and size > 1 and (limit - 1) // (size - 1) > 1:
        step = dice.between(2, (limit - 1) // (size - 1))
        return tree.Apply("mul", (lanes, tree.Number(step)))
    if kind == "rotated":
        turned = tree.Apply("add", (lanes, tree.Number(dice.between(1, limit))))
        return tree.Apply("mod", (turned, tree.Number(limit)))
    start = dice.between(0, limit - size)
    return tree.Apply("add", (lanes, tree.Number(start))) if start else lanes


def inside(scope: Scope, limit: int, size: int) -> tree.Expr | None:
    """Draw an index tile whose elements lie inside `limit`, in any order and number."""
    if limit < 1:
        return None
    dice = scope.dice
    if size <= limit and dice.chance(0.4):
        return distinct(scope, limit, size)
    found = [
        (name, type_)
        for name, type_ in scope.names.items()
        if type_.shape == (size,) and type_.dtype in ("i16", "i32", "i64", "u16", "u32")
    ]
    lanes: tree.Expr = tree.Arange(0, size)
    if found and dice.chance(0.6):
        name, type_ = dice.pick(found)
        lanes = tree.Name(name, type_)
    elif dice.chance(0.5):
        lanes = tree.Apply("mul", (lanes, tree.Number(dice.between(2, 9))))
    if limit > int_range(lanes.type.dtype)[1]:
        return None
    return tree.Apply("mod", (lanes, tree.Number(limit)))
