"""Draws programs that add up in loops inside loops: several axes, one row twice, products of small tiles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_plan_parts import Axis, Parts
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.types import accumulator, is_float

_FUNCTIONS = {"sum": ("add", 0), "max": ("maximum", -100), "min": ("minimum", 100)}
"""How reductions go on from a value, and what they begin with."""
_OUTER = "IJ"
"""Dimensions of the loops around the innermost."""


def nests(parts: Parts) -> tree.Grid:
    """Reduce several axes of a tensor, each in a loop of its own, by steps that may need what others came to."""
    dice = parts.dice
    products = dice.chance(0.25)
    dtype = dice.pick(("bf16", "f16", "f32", "i8") if products else ("f32", "f32", "bf16", "f16", "f64", "i32", "u8"))
    block = dice.pick((8, 16, 32, 64) if products else (1, 4, 16, 32, 64, 100))
    widths = (8, 16, 32) if products else (1, 2, 4, 5, 8, 16, 20, 32, 64)
    width = dice.pick([width for width in widths if width * block <= 1024])
    extent = parts.size("N", block, 3)
    parts.size("K", width, 4)
    outer = _OUTER[: dice.pick((1, 1, 2))]
    for name in outer:
        parts.dims[name] = 0 if dice.chance(dice.options.empty) else dice.between(1, 9 if len(outer) == 1 else 4)
    axis: Axis = ("N", tree.Name("n", INDEX), block)
    nest = _Nest(parts, dtype, outer, axis, ("K", tree.Name("k", INDEX), width), dice.chance(0.5), products)
    nest.build()
    return tree.Grid(("n",), (extent,), (block,), tuple(parts.body))


@dataclass(frozen=True)
class _Here:
    """Where statements go.

    Args:
        around: counters of the loops around it.
        known: what earlier loops of the same step computed.
        into: the statements so far.
        only: the only name that may be updated, if any.
    """

    around: tuple[tree.Name, ...]
    known: tuple[tree.Name, ...]
    into: list[tree.Stmt]
    only: str = ""

    @property
    def outer(self) -> tuple[str, ...]:
        """Dimensions of the loops around it."""
        return tuple(counter.name.upper() for counter in self.around)


@dataclass(slots=True)
class _Nest:
    """Loops in loops.

    Args:
        parts: the program.
        dtype: of what is added up.
        outer: dimensions of the loops around the innermost, from the outside.
        rows: what a program computes a block of.
        inner: what the innermost loop adds up.
        along: whether neighbours in memory are added up, not neighbours of the results.
        products: whether the innermost loop multiplies tiles.
    """

    parts: Parts
    dtype: str
    outer: str
    rows: Axis
    inner: Axis
    along: bool
    products: bool
    states: list[tree.Name] = field(default_factory=list[tree.Name])
    """What the nest computes."""
    reductions: dict[str, str] = field(default_factory=dict[str, str])
    """How each name is added up."""

    def build(self) -> None:
        """Draw the nest, and store what it computes."""
        parts, dice = self.parts, self.parts.dice
        for number in range(1 if dice.chance(0.6) else 2):
            op = "sum" if self.products or dice.chance(0.6) else dice.pick(("max", "min"))
            self.states.append(self._begin(f"total{number}", op, parts.body))
        self._level(_Here((), (), parts.body))
        used = {dim for tensor in parts.tensors for dim in tensor.dims}
        if not used.issuperset((*self.outer, "K")):  # bounds of loops that load nothing
            parts.tensor("bounds", (*self.outer, "K"), self.dtype)
        for number, total in enumerate(self.states):
            dims = tuple(size if at else "N" for at, size in enumerate(total.own.shape))
            out = parts.tensor(f"totals{number}", dims, total.own.dtype)
            parts.body.append(tree.Store(out.name, self._place(total), out.dtype, total))

    def _place(self, total: tree.Name) -> tuple[tree.Axis, ...]:
        rest = tuple(tree.Span(None, size) for size in total.own.shape[1:])
        return tree.Span(self.rows[1], self.rows[2]), *rest

    def _begin(self, name: str, op: str, into: list[tree.Stmt]) -> tree.Name:
        """Bind what a reduction begins with."""
        shape = (self.rows[2], self.inner[2]) if self.products else (self.rows[2],)
        self.reductions[name] = op
        wide, first = accumulator(self.dtype), _FUNCTIONS[op][1]
        start = tree.Number(max(first, 0) if wide.startswith("u") else first)
        return self.parts.bind(tree.Full(shape, start, wide), into, name)

    def _level(self, here: _Here) -> None:
        """Draw a loop: around others, or the innermost."""
        dice = self.parts.dice
        if len(here.around) == len(self.outer):
            self._innermost(here)
            return
        name = self.outer[len(here.around)]
        counter, body = tree.Name(name.lower(), INDEX), list[tree.Stmt]()
        inside = replace(here, around=(*here.around, counter), into=body)
        for number in range(dice.pick((1, 1, 2, 2, 3))):
            kind = dice.weighted((("level", 5.0), ("own", 3.0), ("single", 1.0), ("faded", 0.4), ("kept", 0.5)))
            if kind == "own":
                mine = self._own(inside, f"own{len(here.around)}{number}")
                inside = replace(inside, known=(*inside.known, mine))
            elif kind == "single":
                self._single(inside)
            elif kind == "level" or here.only:
                self._level(inside)
            elif kind == "faded":
                self._faded(inside)
            else:
                self._kept(inside)
        low, step = dice.pick((0, 0, 0, 0, 1)), dice.pick((1, 1, 1, 1, 2))
        here.into.append(
            tree.For(counter.name, tree.Number(low), tree.Name(name, INDEX), tree.Number(step), tuple(body))
        )

    def _own(self, here: _Here, name: str) -> tree.Name:
        """Compute something for the loops behind it, and sometimes take it in."""
        dice = self.parts.dice
        op = "sum" if self.products else dice.pick(("sum", "max", "min"))
        mine = self._begin(name, op, here.into)
        self._level(replace(here, only=name))
        if dice.chance(0.6):
            total = dice.pick(self.states)
            fn = dice.pick(("add", "maximum", "minimum"))
            here.into.append(tree.Assign((total.name,), (tree.Apply(fn, (total, mine)),)))
        return mine

    def _single(self, here: _Here) -> None:
        """Take in one row without a loop."""
        tensor = self.parts.tensor(f"R{len(self.parts.tensors)}", (*here.outer, "N"), self.dtype)
        row = self.parts.load(tensor, *map(tree.At, here.around), tree.Span(self.rows[1], self.rows[2]))
        value: tree.Expr = tree.Cast(row, accumulator(self.dtype))
        if self.products:
            value = tree.Expand(value, (1,), 1)
        self._update(value, here)

    def _faded(self, here: _Here) -> None:
        """Negate what was computed so far, or multiply integers, so that steps cannot change places."""
        total = self.parts.dice.pick(self.states)
        factor = tree.Number(-1.0 if is_float(total.own.dtype) else 3)
        here.into.append(tree.Assign((total.name,), (tree.Apply("mul", (total, factor)),)))

    def _kept(self, here: _Here) -> None:
        """Store what was computed so far, for each step."""
        total = self.parts.dice.pick(self.states)
        dims = (*here.outer, *(size if at else "N" for at, size in enumerate(total.own.shape)))
        out = self.parts.tensor(f"S{len(self.parts.tensors)}", dims, total.own.dtype)
        here.into.append(tree.Store(out.name, (*map(tree.At, here.around), *self._place(total)), out.dtype, total))

    def _innermost(self, here: _Here) -> None:
        """Go along the last dimension by blocks."""
        dice, (name, _, width) = self.parts.dice, self.inner
        inside = replace(here, into=[])
        if self.products:
            self._multiply(inside)
        else:
            for _ in range(1 if here.only or dice.chance(0.8) else 2):
                self._add(inside)
        low: tree.Expr = tree.Number(0)
        high: tree.Expr = tree.Name(name, INDEX)
        kind = dice.weighted((("all", 8.0), ("below", 1.0), ("from", 1.0), ("fixed", 1.0)))
        if kind == "below":  # a triangle
            more = tree.Apply("mul", (tree.Apply("add", (here.around[-1], tree.Number(1))), tree.Number(width)))
            high = tree.Apply("minimum", (high, more))
        elif kind == "from":
            low = here.around[-1]
        elif kind == "fixed":
            high = tree.Number(width * dice.between(1, 3))
        here.into.append(tree.For(name.lower(), low, high, tree.Number(width), tuple(inside.into)))

    def _add(self, here: _Here) -> None:
        """Reduce a block, as it is or as what others came to changes it."""
        dice, at = self.parts.dice, 1 if self.along else 0
        wide = accumulator(self.dtype)
        value: tree.Expr = tree.Cast(self._block(here.around), wide)
        if dice.chance(0.3):
            shared = tree.Cast(self._block(here.around[dice.between(0, 1) :]), wide)
            value = tree.Apply(dice.pick(("add", "sub", "mul", "maximum")), (value, shared))
        if here.known and dice.chance(0.7):
            other = tree.Expand(dice.pick(here.known), (at,), 1)
            value = tree.Apply(dice.pick(("sub", "minimum", "maximum")), (value, other))
        elif dice.chance(0.1):  # what it adds up needs what it came to
            total = tree.Apply("clamp", (dice.pick(self.states), tree.Number(0), tree.Number(8)))
            other = tree.Expand(total, (at,), 1)  # sums stay exact, in whatever order
            value = tree.Apply(dice.pick(("minimum", "maximum")), (value, other))
        if dice.chance(0.2):
            one = tree.Full(value.type.shape, tree.Number(1), wide)
            value = tree.Where(tree.Apply("gt", (value, tree.Number(0))), value, one)
        self._update(value, here, at)

    def _block(self, around: tuple[tree.Name, ...]) -> tree.Expr:
        """Load a block of a tensor, often one that was loaded before, that has the dimensions of some loops around."""
        axes = [self.rows, self.inner] if self.along else [self.inner, self.rows]
        dims = (*(counter.name.upper() for counter in around), *(name for name, _, _ in axes))
        same = [tensor for tensor in self.parts.tensors if tensor.name[0] == "X" and tensor.dims == dims]
        if same and self.parts.dice.chance(0.5):
            tensor = self.parts.dice.pick(same)
        else:
            tensor = self.parts.tensor(f"X{len(self.parts.tensors)}", dims, self.dtype)
        return self.parts.load(tensor, *map(tree.At, around), *(tree.Span(at, size) for _, at, size in axes))

    def _multiply(self, here: _Here) -> None:
        """Add up a product, as convolutions do for each of their taps."""
        name, k, width = self.inner
        left = self._block(here.around)
        weights = self.parts.tensor(f"W{len(self.parts.tensors)}", (*here.outer, name, width), self.dtype)
        right = self.parts.load(weights, *map(tree.At, here.around), tree.Span(k, width), tree.Span(None, width))
        total = tree.Name(here.only or self.states[0].name, self.states[0].own)
        if not self.along:
            left = tree.Transpose(left, (1, 0), 1)
        here.into.append(tree.Assign((total.name,), (tree.Mma(left, right, total),)))

    def _update(self, value: tree.Expr, here: _Here, axis: int | None = None) -> None:
        """Take a value, or its reduction along an axis, into what is computed."""
        dice = self.parts.dice
        total = dice.pick(self.states)
        total = tree.Name(here.only, total.own) if here.only else total
        op = self.reductions[total.name] if dice.chance(0.9) else dice.pick(tuple(_FUNCTIONS))
        taken = value if axis is None else tree.Reduce(op, value, axis)
        here.into.append(tree.Assign((total.name,), (tree.Apply(_FUNCTIONS[op][0], (total, taken)),)))
