"""Draws programs: a seed decides the kernel, its helpers, and the arrays that it runs on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tessera.tools.fuzz import generate_shared as shared
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_assembly import assembled
from tessera.tools.fuzz.generate_debug import instrumented
from tessera.tools.fuzz.generate_dims import spelled
from tessera.tools.fuzz.generate_expressions import Expressions
from tessera.tools.fuzz.generate_host import assuming, in_narrow_integers
from tessera.tools.fuzz.generate_jumps import jumping
from tessera.tools.fuzz.generate_knobs import CPU_KNOBS, any_of
from tessera.tools.fuzz.generate_operands import moved
from tessera.tools.fuzz.generate_plans import Plan
from tessera.tools.fuzz.generate_scope import INDEX, Dice, Options, Palette, Region, Scope, palette
from tessera.tools.fuzz.generate_statements import Statements
from tessera.tools.fuzz.generate_strides import strided
from tessera.tools.fuzz.generate_tuples import tupled
from tessera.tools.fuzz.types import INTS, Shape, Type, elements, is_float, is_int

_KNOBS = (
    ("num_warps", (1, 2, 4, 8)),
    ("stages", (1, 2, 3)),
    ("group_m", (1, 2)),
    ("pipeline", (0, 1)),
    ("bulk_stores", (0, 1)),
    ("ping_pong", (0, 1)),
    ("keep_copies", (0, 1, 1)),
    ("batch", (1, 2, 4)),
    ("chunk", (8, 8, 16, 32)),
    *CPU_KNOBS,
)


_Weights = tuple[tuple[int, float], ...]
_EXTENTS: dict[str, tuple[_Weights, _Weights, _Weights]] = {
    "small": (((0, 9.0), (1, 1.0)), ((1, 9.0), (2, 1.0)), ((1, 3.0), (2, 2.0), (3, 1.0))),
    "": (
        ((0, 6.0), (1, 2.0), (2, 1.0)),
        ((1, 7.0), (2, 2.5), (3, 0.5)),
        ((1, 2.0), (3, 4.0), (6, 3.0), (12, 1.2), (22, 0.25)),
    ),
    "long": (((0, 2.0), (1, 1.0)), ((1, 3.0), (2, 2.0), (3, 1.0)), ((22, 3.0), (30, 1.0))),
}
"""How many helpers, grids and statements programs have, by their extent."""


def generate(seed: int, options: Options | None = None) -> tree.Program:
    """Return the program of a seed."""
    dice, places = _dice(seed, options), random.Random(f"debug {seed}")
    program, jumps = _drawn(seed, dice), random.Random(f"jumps {seed}")
    operands = random.Random(f"operands {seed}")
    if operands.random() < dice.options.moved:
        program = moved(program, operands)
    if jumps.random() < dice.options.jumps:
        program = jumping(program, jumps)
    dims = random.Random(f"dims {seed}")
    if dims.random() < dice.options.dims:
        program = spelled(program, dims)
    steps = random.Random(f"steps {seed}")
    if steps.random() < dice.options.steps:
        program = strided(program, steps)
    orders = random.Random(f"orders {seed}")
    if orders.random() < dice.options.orders:
        program = replace(program, grids=tuple(_reordered(grid, orders) for grid in program.grids))
    host = random.Random(f"host {seed}")
    if host.random() < dice.options.narrow_extents:
        program = in_narrow_integers(program, host)
    if host.random() < dice.options.assumes:
        program = assuming(program, host)
    if host.random() < dice.options.assembly:
        program = assembled(program, host)
    tuples = random.Random(f"tuples {seed}")
    if tuples.random() < dice.options.tuples:
        program = tupled(program, tuples)
    program = _fixed(program, dice.options.fixed)
    return instrumented(program, places) if places.random() < dice.options.debug else program


def _reordered(grid: tree.Grid, rng: random.Random) -> tree.Grid:
    """Let dimensions of a grid vary in another order."""
    count = len(grid.vars)
    return replace(grid, order=tuple(rng.sample(range(count), count))) if count > 1 else grid


def _fixed(program: tree.Program, knobs: tuple[tuple[str, int | str], ...]) -> tree.Program:
    """Give a program knobs, whatever it was drawn with."""
    return replace(program, knobs=tuple({**dict(program.knobs), **dict(knobs)}.items()))


def _dice(seed: int, options: Options | None) -> Dice:
    return Dice(random.Random(seed), options or Options(), random.Random(f"aside {seed}"))


def _drawn(seed: int, dice: Dice) -> tree.Program:
    profile = dice.pick(("strict", "deterministic")) if dice.chance(dice.options.profiles) else "fast"
    if dice.options.strict and dice.rarely(dice.options.strict):
        profile = "strict"
    if random.Random(f"nests {seed}").random() < dice.options.nests:
        return Plan(dice, profile).nest(seed)
    if dice.chance(dice.options.plans):
        return Plan(dice, profile).program(seed)
    return _Maker(dice, palette(dice, profile)).program(seed)


class _Maker:
    """Draws one program.

    Args:
        dice: its random choices.
        colors: its dtypes and sizes.
    """

    def __init__(self, dice: Dice, colors: Palette) -> None:
        self._dice = dice
        self._palette = colors
        self._counter = [0]
        self._dims: dict[str, int] = {}
        self._blocks: dict[str, int] = {}
        self._tensors: list[tree.Tensor] = []
        self._params: list[tree.Param] = []
        self._helpers: list[tree.Helper] = []

    @property
    def _small(self) -> bool:
        return self._palette.extent == "small"

    def program(self, seed: int) -> tree.Program:
        """Return the program."""
        dice = self._dice
        if dice.chance(0.04):
            return self._linear(seed)
        self._grid_dims()
        self._make_tensors()
        self._scalars()
        helpers, launches, lengths = _EXTENTS[self._palette.extent]
        for _ in range(dice.weighted(helpers)):
            self._helper()
        count, length = dice.weighted(launches), dice.weighted(lengths)
        grids = tuple(self._grid(number, max(length // count, 1)) for number in range(count))
        knobs = ()
        if dice.chance(dice.options.knobs):
            chosen = dice.shuffled(_KNOBS)[: dice.between(1, 3)]
            knobs = tuple((name, dice.pick(values)) for name, values in chosen)
        if not knobs and dice.rarely(dice.options.knobs / 3):
            knobs = tuple(any_of(dice.aside, 2, self._palette.profile == "strict").items())
        params = dice.shuffled([*self._tensors, *self._params])
        # Constants have defaults, so they come last.
        params.sort(key=lambda param: isinstance(param, tree.Constant))
        return tree.Program(seed, tuple(params), tuple(self._helpers), grids, self._palette.profile, knobs)

    def _linear(self, seed: int) -> tree.Program:
        """Return a kernel over element numbers."""
        dice = self._dice
        size = dice.pick((1, 7, 33, 100, 256, 1000, 1025))
        self._dims["N"] = size
        for number in range(dice.between(1, 2)):
            self._tensor(f"X{number}", [("N", size)])
        for number in range(dice.between(0, 2)):
            self._tensor(f"A{number}", [("N", size)])
        self._scalars()
        ids = tree.Name("i", Type("i64", (size,)))
        regions = {t.name: Region(t, "own" if t.name[0] == "X" else "read") for t in self._tensors}
        scope = self._scope(regions)
        scope.ids, scope.predicate, scope.contexts = ids, (size,), ("predicated",)
        scope.names["i"] = ids.own
        scope.fixed.add("i")
        statements = Statements(scope)
        body = [statements.bind(dice.pick(self._palette.dtypes), (size,)) for _ in range(dice.between(1, 3))]
        # The kernel's grid is over the first tensor that it stores to.
        body += statements.store(regions["X0"]) + statements.block(dice.between(1, 8))
        inside = tree.If(tree.Apply("lt", (ids, tree.Name("N", INDEX))), tuple(body))
        grid = tree.Linear(("i",), (tree.Name("N", INDEX),), (max(size, 1),), (inside,))
        params = dice.shuffled([*self._tensors, *self._params])
        params.sort(key=lambda param: isinstance(param, tree.Constant))
        return tree.Program(seed, tuple(params), (), (grid,), self._palette.profile)

    # Parameters

    def _grid_dims(self) -> None:
        """Draw the dimensions that grids divide: a few programs each, the last one often ragged."""
        dice = self._dice
        rank, programs = dice.weighted(((1, 6.5), (2, 2.8), (3, 0.7))), 1
        for number in range(rank):
            block = 1 if dice.chance(0.25) else dice.pick(self._palette.sizes)
            most = max(6 // programs, 1)
            count = dice.between(1, min(most, 4))
            programs *= count
            size = block * count if dice.chance(0.5) else block * (count - 1) + dice.between(1, block)
            self._dims["MNP"[number]] = size
            self._blocks["MNP"[number]] = block

    def _free(self) -> tuple[str | int, int]:
        """Return the annotation and size of a dimension that no grid divides."""
        dice = self._dice
        size = dice.pick(self._palette.sizes)
        if dice.chance(0.2):
            size = max(size + dice.between(-3, 5), 1)
        if dice.chance(0.5):
            return size, size
        known = [name for name in self._dims if name not in self._blocks]
        if known and dice.chance(0.6):
            name = dice.pick(known)
            return name, self._dims[name]
        name = f"D{len(self._dims)}"
        if dice.chance(dice.options.empty):
            size = 0
        self._dims[name] = size
        return name, size

    def _make_tensors(self) -> None:
        dice = self._dice
        most = 1 if self._small else 3
        for number in range(dice.between(1, most)):
            dims: list[tuple[str | int, int]] = []
            for name in self._blocks:
                dims.append((name, self._dims[name]) if dice.chance(0.8) else (self._dims[name], self._dims[name]))
            dims += [self._free() for _ in range(dice.weighted(((0, 4.0), (1, 4.0), (2, 1.0))))]
            self._tensor(f"X{number}", dice.shuffled(dims)[:4])
        for number in range(dice.between(0, 1) if self._small else dice.between(1, 3)):
            dims = [
                self._free() if dice.chance(0.6) else (name := dice.pick(list(self._blocks)), self._dims[name])
                for _ in range(dice.weighted(((1, 3.0), (2, 5.0), (3, 1.5), (4, 0.4))))
            ]
            self._tensor(f"A{number}", dims)
        if dice.chance(0.25):
            size = dice.pick(self._palette.sizes)
            contents = tree.Contents("perm")
            self._tensors.append(self._laid("I0", (size,), dice.pick(("i32", "i64")), (size,), contents))
        if dice.chance(0.35 * dice.options.atomics):
            dtype = dice.pick(("i32", "i32", "f32", "f32", "f64", "f16", "bf16", *INTS))
            size = dice.pick((1, 3, 8, 17))
            small = tree.Contents("small", 0 if dtype[0] == "u" else -4, 4)
            # Whether the order of unsigned integers is that of signed ones shows in large ones only.
            wide = is_int(dtype) and dice.chance(0.8 if dtype[0] == "u" else 0.35)
            contents = tree.Contents("wide") if wide else small
            self._tensors.append(self._laid("C0", (size,), dtype, (size,), contents))

    def _tensor(self, name: str, dims: Sequence[tuple[str | int, int]]) -> None:
        dice = self._dice
        shape = tuple(size for _, size in dims)
        while elements(shape) > 40000:
            dims = dims[:-1]
            shape = tuple(size for _, size in dims)
        dtype = "bool" if dice.chance(0.03) else dice.pick(self._palette.dtypes)
        policy = ""
        if dtype == "f32" and dice.chance(0.06):
            policy = "tf32"
        elif is_float(dtype) and dtype not in ("f32", "f64") and dice.chance(0.08):
            policy = f"{dtype} @saturate"
        tensor = self._laid(name, tuple(d for d, _ in dims), dtype, shape, self._contents(dtype), policy)
        self._tensors.append(tensor)

    def _contents(self, dtype: str) -> tree.Contents:
        dice = self._dice
        if dice.chance(dice.options.special):
            return tree.Contents("special", -4 if not dtype.startswith("u") else 0, 4)
        if is_float(dtype):
            kind = dice.weighted((("small", 6.0), ("quarters", 2.0), ("wide", 1.5)))
            high = 3 if dtype.startswith("fp") else dice.pick((2, 4, 8))
            kind = dice.rough(kind)
            return tree.Contents(kind, -high, high)
        if is_int(dtype) and dice.chance(0.25):
            return tree.Contents("wide")
        low = 0 if dtype.startswith("u") or dtype == "bool" else -20
        return tree.Contents("small", low, 1 if dtype == "bool" else 20)

    def _laid(
        self,
        name: str,
        dims: tuple[str | int, ...],
        dtype: str,
        shape: Shape,
        contents: tree.Contents,
        policy: str = "",
    ) -> tree.Tensor:
        dice, rank = self._dice, len(shape)
        order, steps, offset = list(range(rank)), [1] * rank, 0
        if dice.chance(dice.options.layouts):
            if dice.chance(0.4):
                order = dice.shuffled(order)
            for axis in range(rank):
                if dice.chance(0.2):
                    steps[axis] = dice.pick((2, 3, 1, -1, -2))
            if dice.chance(0.5):
                offset = dice.pick((1, 2, 3, 4, 7, 8))
        return tree.Tensor(name, dims, dtype, shape, contents, tree.Layout(tuple(order), tuple(steps), offset), policy)

    def _scalars(self) -> None:
        dice = self._dice
        self._params.append(tree.ScalarParam("n", "i64", dice.between(0, 4), python=True))
        if dice.chance(0.5):
            self._params.append(tree.ScalarParam("z", "i64", dice.between(-4, 3), python=True))
        for number in range(dice.between(0, 2)):
            dtype = dice.pick([d for d in self._palette.dtypes if not d.startswith("fp")] or ["f32"])
            value = dice.pick((0.5, -1.5, 2.0, 3.0)) if is_float(dtype) else dice.between(0, 9)
            self._params.append(tree.ScalarParam(f"p{number}", dtype, value, dtype == "f32" and dice.chance(0.5)))
        for number in range(dice.between(0, 2)):
            value = dice.pick((0.25, 2.0, -1.0)) if dice.chance(0.5) else dice.between(0, 7)
            self._params.append(tree.Constant(f"K{number}", value))

    # Blocks

    def _scope(self, regions: dict[str, Region]) -> Scope:
        scope = Scope(self._dice, self._palette, regions, {}, {}, self._helpers, {}, self._params, self._counter, set())
        for param in self._params:
            if isinstance(param, tree.ScalarParam):
                if param.python and param.dtype == "i64":
                    scope.offsets[param.name] = (int(param.value), int(param.value))
        return scope

    def _helper(self) -> None:
        dice = self._dice
        scope = self._scope({})
        scope.offsets, scope.contexts = {}, ("helper",)
        params: list[tree.Name] = []
        shape = scope.shape()
        for number in range(dice.between(1, 3)):
            type_ = Type(scope.dtype(), shape if dice.chance(0.8) else scope.shape())
            params.append(tree.Name(f"a{number}", type_))
            scope.names[f"a{number}"] = type_
        body = [Statements(scope).bind(scope.dtype(), scope.known_shape()) for _ in range(dice.between(0, 2))]
        result = Expressions(scope).draw(dice.pick(self._palette.dtypes), shape)
        self._helpers.append(tree.Helper(scope.fresh("helper"), tuple(params), tuple(body), result))

    def _grid(self, number: int, length: int) -> tree.Grid:
        dice = self._dice
        names = list(self._blocks)
        if number and dice.chance(0.5):
            names = dice.shuffled(names)[: dice.between(1, len(names))]
        vars_ = tuple(f"{'ijk'[axis]}{number or ''}" for axis in range(len(names)))
        blocks: list[int] = []
        for name in names:
            block = self._blocks[name]
            if number and dice.chance(0.4):
                other = dice.pick(self._palette.sizes)
                block = other if self._dims[name] <= 4 * other else block
            blocks.append(block)
        extents = tuple(self._extent(name) for name in names)
        regions = self._regions(dict(zip(names, zip(vars_, blocks, strict=True), strict=True)))
        scope = self._scope(regions)
        for var, name, block in zip(vars_, names, blocks, strict=True):
            last = max(-(-self._dims[name] // block) - 1, 0) * block
            scope.offsets[var] = (0, last)
        scope.dims = frozenset(dim for tensor in self._tensors for dim in tensor.dims if isinstance(dim, str))
        for name in dice.shuffled(sorted(scope.dims))[:2]:
            scope.offsets[name] = (self._dims[name], self._dims[name])
        statements = Statements(scope)
        body: list[tree.Stmt] = []
        if dice.chance(dice.options.shared):
            for _ in range(dice.between(1, 2)):
                body += shared.allocate(scope, statements.somewhere)
        body += [
            statements.bind(dice.pick(self._palette.dtypes), scope.shape())
            for _ in range(1 if self._small else dice.between(1, 3))
        ]
        for param in self._params:
            if isinstance(param, tree.ScalarParam) and not (param.python and param.dtype == "i64"):
                scope.names[param.name] = Type(param.dtype)
                scope.fixed.add(param.name)
        body += statements.block(length)
        body += self._results(statements, scope)
        return tree.Grid(vars_, extents, tuple(blocks), tuple(body))

    def _extent(self, name: str) -> tree.Expr:
        """Return how far a grid goes: the dimension, if a tensor has it, or its size; some end before that."""
        if self._dims[name] > 1 and self._dice.rarely(0.08):
            return tree.Number(self._dims[name] - self._dice.aside.randint(1, self._dims[name] - 1))
        if any(name in tensor.dims for tensor in self._tensors):
            return tree.Name(name, INDEX)
        return tree.Number(self._dims[name])

    def _regions(self, grid: dict[str, tuple[str, int]]) -> dict[str, Region]:
        """Say what programs of a grid may do with each tensor, so that no two of them meet."""
        regions: dict[str, Region] = {}
        for tensor in self._tensors:
            regions[tensor.name] = self._region(tensor, grid)
        if not any(region.role == "own" for region in regions.values()):
            for tensor in self._tensors:
                owned = self._owned(tensor, grid)
                if owned is not None:
                    regions[tensor.name] = owned
                    break
        return regions

    def _region(self, tensor: tree.Tensor, grid: dict[str, tuple[str, int]]) -> Region:
        dice = self._dice
        if tensor.contents.kind == "perm":
            return Region(tensor, "read")
        if tensor.name.startswith("C"):
            functions = ["max", "min"] if is_float(tensor.dtype) else ["max", "min", "and", "or", "xor"]
            adds = not is_float(tensor.dtype) or self._palette.profile == "fast"
            # Of all of them a sum alone tells once from twice; of unsigned integers the order may be mistaken.
            unsigned = tensor.dtype[0] == "u"
            sums = adds and dice.chance(0.3 if unsigned else 0.6)
            orders = functions[:2] if unsigned and dice.chance(0.5) else functions
            return Region(tensor, "accumulate", fn="add" if sums else dice.pick(orders))
        if dice.chance(0.75 if tensor.name.startswith("X") else 0.2):
            owned = self._owned(tensor, grid)
            if owned is not None:
                return owned
        return Region(tensor, "read")

    def _owned(self, tensor: tree.Tensor, grid: dict[str, tuple[str, int]]) -> Region | None:
        """Assign the grid's variables to dimensions of the tensor: those of their own name first."""
        if len(tensor.shape) < len(grid) or tensor.contents.kind == "perm":
            return None
        dice = self._dice
        free = list(range(len(tensor.shape)))
        parts: dict[int, tuple[str, int]] = {}
        for name, part in grid.items():
            named = [axis for axis in free if tensor.dims[axis] == name or tensor.shape[axis] == self._dims[name]]
            axis = dice.pick(named) if named and dice.chance(0.95) else dice.pick(free)
            free.remove(axis)
            parts[axis] = part
        return Region(tensor, "own", parts)

    def _results(self, statements: Statements, scope: Scope) -> list[tree.Stmt]:
        """Store what the program computed last."""
        dice = self._dice
        owned = [region for region in scope.regions.values() if region.role == "own"]
        made: list[tree.Stmt] = []
        tiles = [(name, type_) for name, type_ in scope.names.items() if type_.shape]
        for name, type_ in reversed(tiles[-1 if self._small else -3 :]):
            if owned:
                region = dice.pick(owned)
                made += statements.store(region, tree.Name(name, type_))
        if owned and not made:
            made += statements.store(dice.pick(owned))
        return made
