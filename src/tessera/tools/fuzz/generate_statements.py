"""Draws statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tessera.tools.fuzz import generate_moves as moves
from tessera.tools.fuzz import generate_shared as shared
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_access import Access
from tessera.tools.fuzz.generate_expressions import Expressions
from tessera.tools.fuzz.generate_products import products
from tessera.tools.fuzz.generate_scope import INDEX, Region, Scope
from tessera.tools.fuzz.generate_starts import started
from tessera.tools.fuzz.types import Shape, Type, accumulator, elements, fits, is_float, is_int

_MOST_WORK = 60
"""How often an innermost block may run in one program of the grid."""

Made = list[tree.Stmt]


_ORDERS = {
    "load": ("relaxed", "acquire", "seq_cst"),
    "store": ("relaxed", "release", "seq_cst"),
    "update": ("relaxed", "acquire", "release", "acq_rel", "seq_cst"),
}
"""Memory orders of atomics that are other than updates, and of updates."""


@dataclass(frozen=True, slots=True)
class Statements:
    """Draws statements in a scope, which learns the names they bind."""

    scope: Scope

    @property
    def _expressions(self) -> Expressions:
        return Expressions(self.scope)

    def block(self, count: int) -> Made:
        """Return about `count` statements."""
        result: Made = []
        while count > 0:
            made = self.scope.dice.weighted(self._choices(count))(count)
            count -= max(sum(1 for s in made for n in tree.walk(s) if isinstance(n, tree.Stmt)), 1)
            result += made
        return result

    def _choices(self, count: int) -> list[tuple[Callable[[int], Made], float]]:
        scope = self.scope
        nested = scope.work < _MOST_WORK and len(scope.contexts) < 4
        options = scope.dice.options
        choices: list[tuple[Callable[[int], Made], float]] = [
            (self._new, 5.0 if scope.predicate is None else 1.5),
            (self._rebind, 3.0),
            (self._augment, 1.5),
            (self._permute, 2.0 * options.carries),
            (self._store, 2.5),
            (self._inplace, 1.5 * options.inplace),
            (self._atomic, 0.8 * options.atomics),
            (self._fence, 0.1 * options.atomics),
        ]
        if nested and count > 1:
            choices += [
                (self._for, 2.5),
                (self._static, 0.5),
                (self._while, 0.7),
                (self._branch, 1.2),
                (self._predicate, 1.2),
            ]
        if scope.ids is not None:
            return [choice for choice in choices if choice[0] not in (self._inplace, self._static)]
        if nested and scope.predicate is None:
            choices.append((self._products, 0.7 * options.products))
        if scope.predicate is None and "predicated" not in scope.contexts:
            choices.append((self._write_shared, 2.0 if scope.buffers else 0.0))
        return choices

    # Names

    def _new(self, count: int) -> Made:
        """Bind a new name; sometimes to a scalar."""
        scope = self.scope
        shape = () if scope.dice.chance(0.12) else scope.known_shape()
        return [self.bind(scope.dtype(), shape)]

    def bind(self, dtype: str, shape: Shape, depth: int | None = None) -> tree.Stmt:
        """Bind a new name to an expression of a type."""
        value = self._expressions.draw(dtype, shape, depth)
        name = self.scope.fresh("s" if not shape else "v")
        self.scope.names[name] = Type(dtype, shape)
        return tree.Assign((name,), (value,))

    def _mutable(self) -> list[tuple[str, Type]]:
        """Return the names that may be rebound here: under a predicate those that it fits."""
        found = [(n, t) for n, t in self.scope.names.items() if n not in self.scope.fixed]
        if self.scope.predicate is None:
            return found
        return [(n, t) for n, t in found if t.shape and fits(self.scope.predicate, t.shape)]

    def bounded(self, value: tree.Expr) -> tree.Expr:
        """Keep what a loop carries from growing without bound."""
        looped = any(context in ("for", "while") for context in self.scope.contexts)
        if not looped or not is_float(value.type.dtype) or self.scope.dice.chance(0.3):
            return value
        limit = self.scope.dice.pick((4.0, 8.0, 16.0))
        low, high = (-limit, limit) if value.type.dtype != "fp4_e2m1" else (-2.0, 3.0)
        return tree.Apply("clamp", (value, tree.Number(low), tree.Number(high)))

    def _rebind(self, count: int) -> Made:
        names = self._mutable()
        if not names:
            return []
        name, type_ = self.scope.dice.pick(names)
        value = self.bounded(self._expressions.draw(type_.dtype, type_.shape))
        return [tree.Assign((name,), (value,))]

    def _augment(self, count: int) -> Made:
        names = [(n, t) for n, t in self._mutable() if t.dtype != "bool"]
        if not names:
            return []
        name, type_ = self.scope.dice.pick(names)
        floats = ("add", "sub", "mul")
        fn = self.scope.dice.pick(floats if is_float(type_.dtype) else (*floats, "and", "or", "xor"))
        value = self._expressions._operand(type_.dtype, type_.shape, 2)  # pyright: ignore[reportPrivateUsage]
        return [tree.Augment(tree.Name(name, type_), fn, value)]

    def _permute(self, count: int) -> Made:
        """Exchange names of one type: at once, or through another name."""
        dice = self.scope.dice
        names = self._mutable()
        if not names:
            return []
        _, type_ = dice.pick(names)
        same = [n for n, t in names if t == type_]
        if len(same) < 2:
            if self.scope.predicate is not None:
                return []
            return [self.bind(type_.dtype, type_.shape)]
        return self._exchange(dice.shuffled(same)[: dice.between(2, 3)], type_)

    def _exchange(self, chosen: list[str], type_: Type) -> Made:
        """Give each name the value of the next."""
        dice = self.scope.dice
        values = [self._turned(tree.Name(n, type_)) for n in (*chosen[1:], chosen[0])]
        if dice.chance(0.4):
            values[-1] = (
                self.bounded(tree.Apply("add", (values[-1], values[0]))) if type_.dtype != "bool" else values[-1]
            )
        if dice.chance(0.5):
            return [tree.Assign(tuple(chosen), tuple(values))]
        kept = self.scope.fresh("t")
        first: Made = [tree.Assign((kept,), (values[-1],))]
        middle: Made = [tree.Assign((n,), (v,)) for n, v in zip(chosen[:-1], values[:-1], strict=True)]
        return [*first, *middle, tree.Assign((chosen[-1],), (tree.Name(kept, type_),))]

    # Tensors

    def _owned(self) -> list[Region]:
        return [region for region in self.scope.regions.values() if region.role == "own"]

    def _fits_predicate(self, shape: Shape) -> bool:
        return self.scope.predicate is None or fits(self.scope.predicate, shape)

    def _store(self, count: int) -> Made:
        owned = self._owned()
        if not owned:
            return []
        return self.store(self.scope.dice.pick(owned))

    def store(self, region: Region, value: tree.Expr | None = None) -> Made:
        """Store a value, or an expression that is drawn, to a tensor that the program owns a part of."""
        scope, dice = self.scope, self.scope.dice
        for _ in range(4):
            shape = value.type.shape if value is not None else self._storable(region)
            axes = Access(scope, region, write=True).axes(shape)
            if axes is None or tree.index_shape(axes) != shape or not self._fits_predicate(shape):
                if value is not None:
                    return []
                continue
            dtype = region.tensor.dtype
            own = dtype if not dice.chance(0.2 * dice.options.narrowing) else scope.dtype()
            stored = value if value is not None else self._expressions.draw(own, shape)
            fn = ""
            plain = not any(isinstance(axis, tree.NewAxis) for axis in axes)
            if value is None and own == dtype and dtype != "bool" and plain and dice.chance(0.12):
                fn = dice.pick(("add", "sub", "mul"))
            saturate = "@saturate" in region.tensor.policy
            made = tree.Store(
                region.tensor.name, axes, dtype, stored, int(dice.chance(0.15)) if not fn else 0, fn, saturate
            )
            return [made]
        return []

    def somewhere(self, scope: Scope, value: tree.Expr) -> Made:
        """Store a tile to a tensor of which the program owns a part; where none takes it, sums of rows, or its sum."""
        whole = tree.Reduce("sum", value, None)
        for stored in (value, tree.Reduce("sum", value, 0), whole) if len(value.type.shape) > 1 else (value, whole):
            for region in scope.dice.shuffled(self._owned()):
                if made := Statements(scope).store(region, stored):
                    return made
        return []

    def _storable(self, region: Region) -> Shape:
        """Return a shape that a program's part of a tensor can take: often the whole of it."""
        scope, dice = self.scope, self.scope.dice
        if scope.ids is not None:
            return scope.ids.own.shape
        if dice.chance(0.35):
            return scope.known_shape()
        shape: list[int] = []
        for axis, size in enumerate(region.tensor.shape):
            limit = region.parts[axis][1] if axis in region.parts else max(size, 1)
            if axis in region.parts and limit == 1:
                continue
            shape.append(
                limit if dice.chance(0.7) else dice.pick([s for s in scope.palette.sizes if s <= limit] or [limit])
            )
        while elements(tuple(shape)) > scope.palette.limit:
            shape[shape.index(max(shape))] = max(max(shape) // 2, 1)
        return tuple(shape) if shape and dice.chance(0.93) else ()

    def _write_shared(self, count: int) -> Made:
        return shared.write_again(self.scope)

    def _products(self, count: int) -> Made:
        return products(self.scope) if self.scope.work <= 4 else []

    def _inplace(self, count: int) -> Made:
        """Load a part of a tensor, move or change it, and store it to the same tensor."""
        owned = self._owned()
        if not owned:
            return []
        region = self.scope.dice.pick(owned)
        if self.scope.dice.chance(0.35):
            return Statements(replace(self.scope, favourite=region.tensor.name)).store(region)
        return moves.move(self.scope, region)

    def _atomic(self, count: int) -> Made:
        scope, dice = self.scope, self.scope.dice
        regions = [r for r in scope.regions.values() if r.role == "accumulate" or (r.role == "own" and _counts(r))]
        if not regions:
            return []
        region = dice.pick(regions)
        owned = region.role == "own"
        dtype = region.tensor.dtype
        if is_float(dtype) and scope.palette.profile != "fast":
            functions = ["max", "min"]
        else:
            functions = ["add", "add", "add", "max", "min"]
        if not is_float(dtype):
            functions += ["and", "or", "xor"]
        if owned:
            functions += ["exchange", "compare_exchange", "load", "store"]
        shape = self._storable(region)
        axes = Access(scope, region, write=owned).axes(shape, picks=0.6)
        if (
            axes is None
            or any(isinstance(a, tree.NewAxis) for a in axes)
            or not self._fits_predicate(tree.index_shape(axes))
        ):
            return []
        shape = tree.index_shape(axes)
        fn = dice.pick(functions) if owned else region.fn
        value = None if fn == "load" else self._expressions.draw(dtype, shape, 2)
        # Small numbers: integers, whose sums no order rounds, or multiples of a fraction.
        if value is not None and not owned and fn == "add" and is_float(dtype):
            value = tree.Cast(tree.Cast(value, "i8"), dtype)
            if dice.rarely(0.5):
                value = tree.Apply("mul", (value, tree.Number(0.3)))
        compare = self._expressions.draw(dtype, shape, 1) if fn == "compare_exchange" else None
        order = dice.pick(_ORDERS.get(fn, _ORDERS["update"])) if dice.chance(0.25) else ""
        # What a program owns, no other one changes.
        scopes = ("mesh", "group", "cluster") if owned else ("mesh",)
        within = dice.pick(scopes) if dice.chance(0.2) else ""
        atomic = tree.Atomic(fn, region.tensor.name, axes, dtype, value, compare, order, within)
        if owned and fn != "store" and scope.predicate is None and dice.chance(0.6):
            name = scope.fresh()
            scope.names[name] = Type(dtype, shape)
            return [tree.Assign((name,), (atomic,))]
        return [tree.Evaluate(atomic)]

    def _fence(self, count: int) -> Made:
        dice = self.scope.dice
        return [tree.Fence(dice.pick(_ORDERS["update"][1:]), dice.pick(("group", "cluster", "device", "mesh")))]

    # Control flow

    def _body(self, scope: Scope, count: int) -> tree.Block:
        made = Statements(scope).block(max(count, 1))
        return tuple(made)

    def _bounds(self) -> tuple[tree.Expr, tree.Expr, tree.Expr, list[int]]:
        """Return the bounds of a loop and the values that its variable takes; some loops do not run at all."""
        dice, scope = self.scope.dice, self.scope
        low, step, trips = dice.between(0, 2), dice.pick((1, 1, 1, 2, 3, 8)), dice.between(0, 4)
        if scope.work == 1 and dice.chance(0.08):
            trips = dice.between(5, 17)
        dims = [name for name, (least, most) in scope.offsets.items() if name in scope.dims and least == most]
        if dims and dice.chance(0.2):
            name = dice.pick(dims)
            size, step = scope.offsets[name][0], dice.pick(scope.palette.sizes)
            if size <= 6 * step:
                return tree.Number(0), tree.Name(name, INDEX), tree.Number(step), list(range(0, size, step))
        if trips == 0 and dice.chance(0.6):
            trips = 2
        high = low + step * trips - (dice.between(0, step - 1) if trips else 0)
        values = list(range(low, high, step))
        given = [p for p in scope.params if isinstance(p, tree.ScalarParam) and p.dtype == "i64" and p.python]
        if given and "helper" not in scope.contexts and dice.chance(0.5):
            param = dice.pick(given)
            if int(param.value) > 0 and dice.chance(0.2):
                values = list(range(low, high, int(param.value)))
                return tree.Number(low), tree.Number(high), tree.Name(param.name, INDEX), values
            high_value = int(param.value) + dice.between(0, 2)
            move = high_value - int(param.value)
            upper: tree.Expr = tree.Name(param.name, INDEX)
            upper = tree.Apply("add", (upper, tree.Number(move))) if move else upper
            return tree.Number(0), upper, tree.Number(1), list(range(high_value))
        return tree.Number(low), tree.Number(high), tree.Number(step), values

    def _for(self, count: int) -> Made:
        scope = self.scope
        if scope.ids is None and scope.predicate is None and scope.dice.rarely(0.25 * scope.dice.options.starts):
            return started(scope, self._scalar_condition(), self.somewhere)
        return self._loop(count, static=False)

    def _static(self, count: int) -> Made:
        return self._loop(count, static=True)

    def _loop(self, count: int, static: bool) -> Made:
        scope, dice = self.scope, self.scope.dice
        before: Made = []
        carried: list[str] = []
        if dice.chance(dice.options.carries * 0.7):
            before, carried = self._carried()
        if static:
            low, step, trips = dice.between(0, 2), dice.pick((1, 2)), dice.between(0, 3)
            values = list(range(low, low + step * trips, step))
            bounds = [tree.Number(low), tree.Number(low + step * trips), tree.Number(step)]
        else:
            *bounds, values = self._bounds()
        if scope.work * max(len(values), 1) > _MOST_WORK:
            return before
        var = scope.fresh("k")
        inner = scope.inner("unrolled" if static else "for", len(values))
        inner.offsets[var] = (min(values, default=0), max(values, default=0))
        if static:
            inner.unrolled |= {var}
        body = self._body(inner, dice.between(1, max(min(count - 1, 6), 1)))
        if len(carried) > 1 and dice.chance(0.85):
            own = Statements(inner).carry(carried, scope.names)
            body = (*body, *own) if dice.chance(0.5) else (*own, *body)
        loop = tree.For(var, bounds[0], bounds[1], bounds[2], body, static)
        return [*before, loop, *(self._compared(before, carried) if carried and dice.chance(0.4) else ())]

    def _compared(self, before: Made, carried: list[str]) -> Made:
        """Use what a loop started from once more behind it, beside what became of that."""
        start = before[0]
        assert isinstance(start, tree.Assign)
        (first,), type_ = start.names, self.scope.names[start.names[0]]
        name = self.scope.fresh()
        self.scope.names[name] = type_
        pair = (tree.Name(first, type_), tree.Name(carried[-1], type_))
        return [tree.Assign((name,), (tree.Apply("sub", pair),))]

    def _carried(self) -> tuple[Made, list[str]]:
        """Bind two or three names of one type, often from one value, that a loop may carry and permute."""
        dice, scope = self.scope.dice, self.scope
        if scope.predicate is not None:
            return [], []
        dtype, shape = dice.pick(scope.palette.dtypes), self._carried_shape()
        if dice.chance(0.5):
            dtype = accumulator(dtype)
        first = scope.fresh()
        value = self._kept(dtype, shape)
        made: Made = [tree.Assign((first,), (value,))]
        scope.names[first] = Type(dtype, shape)
        names = [] if dice.chance(0.5) else [first]
        for _ in range(dice.between(2, 3) - len(names)):
            source = tree.Name(first, Type(dtype, shape))
            name = scope.fresh()
            value = source
            if dice.chance(0.75):
                value = tree.Apply(dice.pick(("add", "sub", "mul")), (source, self._expressions.number(dtype)))
            made.append(tree.Assign((name,), (value,)))
            scope.names[name] = Type(dtype, shape)
            names.append(name)
        return made, names

    def _carried_shape(self) -> Shape:
        """Return a shape, often one that a tile and its transpose have."""
        scope = self.scope
        if scope.ids is not None or not scope.dice.chance(0.45):
            return scope.known_shape()
        size = scope.dice.pick([size for size in scope.palette.sizes if size**2 <= scope.palette.limit] or [8])
        return size, size

    def _kept(self, dtype: str, shape: Shape) -> tree.Expr:
        """Return what is kept in a buffer: a scan, a product, a reduction, or what costs more than reading it back."""
        again = (
            self._expressions.again(dtype, shape) if self.scope.palette.reuse and self.scope.dice.chance(0.7) else None
        )
        if again is not None:
            return again
        kind = self.scope.dice.weighted((("computed", 0.5), ("costly", 0.3), ("any", 0.2)))
        found = self._expressions.computed(dtype, shape) if kind == "computed" and self.scope.ids is None else None
        value = found or self._expressions.draw(dtype, shape, 3 if kind == "costly" else None)
        if kind == "costly" and is_float(dtype) and self.scope.palette.approximate:
            return tree.Apply("sqrt", (tree.Apply("abs", (value,)),))
        if kind == "costly" and is_int(dtype):
            return tree.Apply("mod", (value, tree.Number(self.scope.dice.pick((7, 11, 13)))))
        return value

    def carry(self, names: list[str], known: Mapping[str, Type]) -> Made:
        """Rebind names of one type by each other, and by others of their type that are known before the loop."""
        dice, type_ = self.scope.dice, known[names[0]]
        others = [name for name, other_type in known.items() if other_type == type_]
        made: Made = []
        kind = dice.pick(("permute", "step", "both"))
        if kind != "permute":
            for name in names:
                other = self._turned(tree.Name(dice.pick(names if dice.chance(0.6) else others), type_))
                fn = dice.pick(("add", "sub", "maximum"))
                value = tree.Apply(fn, (tree.Name(name, type_), other if dice.chance(0.5) else tree.Number(1)))
                made.append(tree.Assign((name,), (self.bounded(value),)))
        if kind != "step":
            made += self._exchange(dice.shuffled(names), type_)
        return made

    def _turned(self, name: tree.Name) -> tree.Expr:
        """Return a tile, or sometimes its transpose where that is of the same shape."""
        shape = name.own.shape
        if len(shape) != 2 or shape[0] != shape[1] or not self.scope.dice.chance(0.5):
            return name
        return tree.Transpose(name, (1, 0), self.scope.dice.between(0, 1))

    def _while(self, count: int) -> Made:
        """Count to a bound; sometimes stop earlier when a value says so."""
        scope, dice = self.scope, self.scope.dice
        trips = dice.between(0, 3)
        if scope.work * max(trips, 1) > _MOST_WORK:
            return []
        counter = scope.fresh("c")
        name = tree.Name(counter, Type("i32"))
        condition: tree.Expr = tree.Apply("lt", (name, tree.Number(trips)))
        if dice.chance(0.4):
            more = self._expressions.condition(())
            condition = tree.Apply(dice.pick(("and", "and")), (condition, more))
        inner = scope.inner("while", trips)
        body = self._body(inner, dice.between(1, max(min(count - 2, 5), 1)))
        step = tree.Assign((counter,), (tree.Apply("add", (name, tree.Number(1))),))
        start = tree.Assign((counter,), (tree.Cast(tree.Number(0), "i32"),))
        return [start, tree.While(condition, (*body, step))]

    def _branch(self, count: int) -> Made:
        scope, dice = self.scope, self.scope.dice
        condition = self._scalar_condition()
        inner, other = scope.inner("if"), scope.inner("if")
        then = self._body(inner, dice.between(1, max(min(count - 1, 4), 1)))
        orelse = self._body(other, dice.between(1, 3)) if dice.chance(0.6) else ()
        if orelse and scope.predicate is None and dice.chance(0.3):
            dtype, shape = scope.dtype(), scope.known_shape()
            name = scope.fresh()
            values = [Expressions(s).draw(dtype, shape) for s in (inner, other)]
            then, orelse = (
                (*then, tree.Assign((name,), (values[0],))),
                (*orelse, tree.Assign((name,), (values[1],))),
            )
            scope.names[name] = Type(dtype, shape)
        return [tree.If(condition, then, orelse)]

    def _scalar_condition(self) -> tree.Expr:
        """Return a condition on what the program or the loop knows of itself, or on a value."""
        scope, dice = self.scope, self.scope.dice
        whole = self._expressions.whole() if scope.palette.reuse and dice.rarely(0.6) else None
        if whole is not None:
            return whole
        if scope.offsets and dice.chance(0.6):
            name = dice.pick(list(scope.offsets))
            low, high = scope.offsets[name]
            fn = dice.pick(("lt", "ge", "eq", "ne", "gt"))
            return tree.Apply(fn, (tree.Name(name, INDEX), tree.Number(dice.between(low, high + 1))))
        return self._expressions.condition(())

    def _predicate(self, count: int) -> Made:
        """Draw an `if` on a tile, whose condition fits a tile that exists or a tensor's part."""
        scope, dice = self.scope, self.scope.dice
        shapes = [t.shape for t in scope.names.values() if t.shape and t.dtype != "bool"]
        if scope.predicate is not None:
            shapes = [shape for shape in shapes if fits(scope.predicate, shape)]
        if not shapes:
            return []
        shape = dice.pick(shapes)
        if len(shape) > 1 and dice.chance(0.2) and scope.predicate is None:
            shape = shape[1:] if dice.chance(0.5) else (*shape[:-1], 1)
        condition = self._expressions.condition(shape)
        if condition.type.shape != shape:
            return []
        inner = replace(scope.inner("predicated"), predicate=shape)
        then = self._body(inner, dice.between(1, max(min(count - 1, 4), 1)))
        other = replace(scope.inner("predicated"), predicate=shape)
        orelse = self._body(other, dice.between(1, 2)) if dice.chance(0.4) else ()
        return [tree.If(condition, then, orelse)]


def _counts(region: Region) -> bool:
    """Whether a tensor's dtype has atomics."""
    return region.tensor.dtype != "bool"
