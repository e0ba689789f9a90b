"""Puts `break`, `continue` and early `return` into programs that are drawn.

What is drawn from a seed otherwise stays the same. Jumps leave out no part of what orders asynchronous copies: a loop
or program with explicit shared memory is left only where it has not touched that memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.types import Type, is_float, is_int

_SHARED = (
    tree.AllocShared,
    tree.StoreShared,
    tree.UpdateShared,
    tree.CopyAsync,
    tree.Commit,
    tree.Wait,
    tree.Barrier,
)
_SIMPLE = (tree.Assign, tree.Augment, tree.Store, tree.Evaluate)
_COMPARISONS = ("lt", "ge", "eq", "ne", "gt")
_COUNT = tree.Name("t0", Type("i32"))
"""Counts the iterations of all loops of a program, which stores it at its end: so one too many is seen."""
_OFTEN = 0.3
"""How often a jump stands at a place where one may."""


def jumping(program: tree.Program, rng: random.Random) -> tree.Program:
    """Return a program with jumps at random places.

    Args:
        program: the program.
        rng: what the places, kinds and conditions are drawn from.
    """
    ints = [p for p in program.params if isinstance(p, tree.ScalarParam) and p.python and p.dtype == "i64"]
    constants = [tree.Constexpr(p.value, p.name) for p in program.params if isinstance(p, tree.Constant)]
    maker = _Jumps(rng, [tree.Name(param.name, INDEX) for param in ints], constants)
    last = len(program.grids) - 1
    grids = tuple(maker.grid(grid, number == last) for number, grid in enumerate(program.grids))
    program = replace(program, grids=grids, helpers=tuple(map(maker.helper, program.helpers)))
    counting = [number for number, grid in enumerate(grids) if _counts(grid)]
    return maker.with_number(program, rng.choice(counting)) if counting and rng.random() < 0.4 else program


def _counts(grid: tree.Grid) -> bool:
    first = next(iter(grid.body), None)
    return isinstance(first, tree.Assign) and first.names == (_COUNT.name,)


def _weak(value: tree.Expr) -> tree.Expr:
    """Return the number that a scalar is made of, which has its type from what is returned elsewhere."""
    return value.x if isinstance(value, tree.Cast) and isinstance(value.x, tree.Number) else value


def _touches_shared(node: tree.Node) -> bool:
    return any(isinstance(part, _SHARED) for part in tree.walk(node))


@dataclass(frozen=True)
class _Place:
    """What is around the statements of a block.

    Args:
        jumps: the jumps that may stand there.
        counters: the loop and grid variables, with values near those that they take.
        names: tiles and scalars whose values a condition may ask for.
        in_helper: whether parameters of the kernel are out of sight.
        of_ids: whether tiles are parts of a kernel without a grid, whose number of elements nothing depends on.
        predicated: whether an `if` on a tile is around.
    """

    jumps: tuple[tree.Stmt, ...] = ()
    counters: tuple[tuple[tree.Name, Sequence[int]], ...] = ()
    names: dict[str, Type] = field(default_factory=dict[str, Type])
    in_helper: bool = False
    of_ids: bool = False
    predicated: bool = False

    def inside(self, *jumps: tree.Stmt, more: tuple[tuple[tree.Name, Sequence[int]], ...] = ()) -> _Place:
        """Return the place inside a loop or branch."""
        return replace(self, jumps=jumps, counters=(*self.counters, *more), names=dict(self.names))

    def bind(self, statement: tree.Stmt) -> None:
        """Note the names that a statement binds."""
        if isinstance(statement, tree.Assign):
            self.names.update({n: v.type for n, v in zip(statement.names, statement.values, strict=True)})


@dataclass(frozen=True)
class _Jumps:
    """Draws jumps.

    Args:
        rng: the random choices.
        params: integer parameters.
        constants: constant parameters.
    """

    rng: random.Random
    params: Sequence[tree.Name]
    constants: Sequence[tree.Constexpr]

    def grid(self, grid: tree.Grid, last: bool) -> tree.Grid:
        """Return a launch with jumps."""
        if isinstance(grid, tree.Linear):
            body = self.block(grid.body, _Place(of_ids=True))
            if self.rng.random() < 0.3:
                body = (tree.If(self._compare(self.rng.choice(self.params), 2), (tree.Return(),)), *body)
            return replace(grid, body=body)
        counters = tuple(
            (tree.Name(var, INDEX), (0, block, 2 * block)) for var, block in zip(grid.vars, grid.blocks, strict=True)
        )
        jumps = (tree.Continue(), *([tree.Return()] if last else []))
        body, place = grid.body, _Place(jumps, counters)
        for depth in range(self.rng.choice((0, 1, 1, 2))):
            body = self._looped(body, f"w{depth}")
        shown = self._where_to_store(grid)
        if shown is None:
            return replace(grid, body=self.block(body, place))
        place.names[_COUNT.name] = _COUNT.own
        start = tree.Assign((_COUNT.name,), (tree.Cast(tree.Number(0), "i32"),))
        end = replace(shown, value=tree.Cast(_COUNT, shown.dtype), fn="add", form=0)
        return replace(grid, body=(start, *self.block(body, place), end))

    def _where_to_store(self, grid: tree.Grid) -> tree.Store | None:
        """Return a store of the grid's whose place is known at its end, None where there is none."""
        known = {*grid.vars, *(param.name for param in self.params)}

        def names(axes: tuple[tree.Axis, ...]) -> set[str]:
            return {node.name for axis in axes for node in tree.walk(axis) if isinstance(node, tree.Name)}

        found = [
            statement
            for statement in grid.body
            if isinstance(statement, tree.Store)
            and statement.dtype in ("f32", "f64", "i32", "i64", "i16", "u32")
            and all(isinstance(axis, tree.At | tree.Span) for axis in statement.axes)
            and names(statement.axes) <= known
        ]
        return self.rng.choice(found) if found else None

    def _looped(self, body: tree.Block, name: str) -> tree.Block:
        """Return a body whose end, which touches no shared memory, is repeated by a loop."""
        rng = self.rng
        least = max((at + 1 for at, statement in enumerate(body) if _touches_shared(statement)), default=0)
        if least >= len(body):
            return body
        at = rng.randint(least, len(body) - 1)
        head, tail, trips = body[:at], body[at:], rng.randint(1, 3)
        if rng.random() < 0.6:
            low, step, static = rng.randint(0, 2), rng.choice((1, 1, 2, 5)), rng.random() < 0.3
            high: tree.Expr = tree.Number(low + step * trips)
            if self.params and not static and rng.random() < 0.2:
                high = rng.choice(self.params)
            return (*head, tree.For(name, tree.Number(low), high, tree.Number(step), tail, static))
        counter = tree.Name(name, Type("i32"))
        start = tree.Assign((name,), (tree.Cast(tree.Number(0), "i32"),))
        count = tree.Assign((name,), (tree.Apply("add", (counter, tree.Number(1))),))
        return (*head, start, tree.While(tree.Apply("lt", (counter, tree.Number(trips))), (*tail, count)))

    def helper(self, helper: tree.Helper) -> tree.Helper:
        """Return a helper that may return earlier."""
        type_ = Type(helper.result.type.dtype, helper.result.type.shape)
        place = _Place(names={param.name: param.own for param in helper.params}, in_helper=True)
        body: list[tree.Stmt] = []
        for statement in (*helper.body, None):
            if self.rng.random() < 0.4:
                body += self._returning(type_, place)
            if statement is not None:
                body.append(statement)
                place.bind(statement)
        return replace(helper, body=tuple(body))

    def with_number(self, program: tree.Program, at: int) -> tree.Program:
        """Return a program of which a grid adds to its count what a helper gives that returns scalars and numbers."""
        type_, grid = Type(self.rng.choice(("i8", "u8", "i16", "i32", "u32", "i64"))), program.grids[at]
        given = tree.Name("a0", type_)
        place = _Place(names={given.name: type_}, counters=((given, (0, 1, *grid.blocks)),), in_helper=True)
        body = tuple(s for _ in range(self.rng.randint(1, 3)) for s in self._returning(type_, place))
        call = tree.Call("number", (tree.Cast(tree.Name(self.rng.choice(grid.vars), INDEX), type_.dtype),), type_)
        start, *rest = grid.body
        counting = replace(grid, body=(start, tree.Augment(_COUNT, "add", tree.Cast(call, "i32")), *rest))
        grids = (*program.grids[:at], counting, *program.grids[at + 1 :])
        helper = tree.Helper("number", (given,), body, given)
        return replace(program, grids=grids, helpers=(*program.helpers, helper))

    def _returning(self, type_: Type, place: _Place) -> list[tree.Stmt]:
        """Return statements of a helper that may return a value of a type: at once, or from a loop that makes it."""
        value, rng = self._of_type(type_, place), self.rng
        if rng.random() < 0.5:
            return [self._branch((tree.Return(_weak(value)),), place)]
        name, var = f"r{len(place.names)}", tree.Name(f"t{len(place.names)}", INDEX)
        weak = _weak(value)
        made = weak if isinstance(weak, tree.Number) else tree.Name(name, type_)
        inner = place.inside(tree.Return(made), tree.Break(), more=((var, range(4)),))
        inner.names[name] = type_
        step = tree.Assign((name,), (tree.Apply("maximum", (tree.Name(name, type_), self._of_type(type_, place))),))
        body: list[tree.Stmt] = [] if type_.dtype == "bool" else [step]
        body.insert(rng.randint(0, len(body)), self._branch((inner.jumps[0],), inner))
        if rng.random() < 0.3:
            body.append(self._branch((tree.Break(),), inner))
        loop = tree.For(
            var.name, tree.Number(0), tree.Number(rng.randint(0, 3)), tree.Number(1), tuple(body), rng.random() < 0.3
        )
        place.names[name] = type_
        return [tree.Assign((name,), (value,)), loop]

    def _of_type(self, type_: Type, place: _Place) -> tree.Expr:
        names = [name for name, own in place.names.items() if Type(own.dtype, own.shape) == type_]
        if names and self.rng.random() < 0.8:
            return tree.Name(self.rng.choice(names), type_)
        value = True if type_.dtype == "bool" else 1.0 if is_float(type_.dtype) else 1
        number = tree.Number(value)
        return tree.Full(type_.shape, number, type_.dtype) if type_.shape else tree.Cast(number, type_.dtype)

    # Blocks

    def block(self, block: tree.Block, place: _Place) -> tree.Block:
        """Return a block with jumps; those of its own only up to where it touches shared memory."""
        result: list[tree.Stmt] = []
        left = list(block)
        while left:
            jumps = place.jumps and (not any(map(_touches_shared, left)) or not any(map(_touches_shared, result)))
            if jumps and self._may_leave(left) and self.rng.random() < _OFTEN:
                result += self._leave(left, place)
                continue
            statement = left.pop(0)
            result += self._inside(statement, place, any(map(_touches_shared, block)))
            place.bind(statement)
        return tuple(result)

    def _may_leave(self, left: Sequence[tree.Stmt]) -> bool:
        return not isinstance(left[0], tree.Wait | tree.Barrier | tree.Commit)

    def _leave(self, left: list[tree.Stmt], place: _Place) -> list[tree.Stmt]:
        """Return a branch that may jump, and take what it holds of the statements that are left, at least one."""
        rng, jump = self.rng, self.rng.choice(place.jumps)
        count = 0
        while count < min(len(left), 2) and isinstance(left[count], _SIMPLE):
            count += 1
        next_, form = tuple(left[:count]), rng.choice(("plain", "after", "else", "mixed"))
        if not next_ or form == "plain":
            made: list[tree.Stmt] = [self._branch((jump,), place), left.pop(0)]
            made[1:] = self._inside(made[1], place, False)
            place.bind(made[-1])
            return made
        del left[:count]
        branch = self._branch((jump,), place)
        if form == "after":
            made = [replace(branch, then=(next_[0], jump)), *next_]
        elif form == "else":
            made = [replace(branch, orelse=next_)]
        else:
            made = [tree.If(self._condition(place), (branch, *next_), next_)]
        for statement in next_:
            place.bind(statement)
        return made

    def _inside(self, statement: tree.Stmt, place: _Place, ordered: bool) -> list[tree.Stmt]:
        """Return what becomes of a statement: jumps are put into loops and branches."""
        returns = tuple(j for j in place.jumps if isinstance(j, tree.Return) and not ordered)
        own = (tree.Break(), tree.Continue(), *returns)
        if isinstance(statement, tree.For | tree.While):
            jumps = () if _touches_shared(statement) else own
            loop = replace(statement, orelse=self._otherwise(place)) if jumps and not ordered else statement
            if jumps and _COUNT.name in place.names and not place.predicated:
                loop = replace(loop, body=(self._counted(), *loop.body))
            return self._for(loop, place, jumps) if isinstance(loop, tree.For) else self._while(loop, place, jumps)
        if isinstance(statement, tree.If):
            tile = statement.predicates
            jumps = () if tile or ordered else place.jumps
            parts = [
                self.block(part, replace(place.inside(*jumps), predicated=place.predicated or tile))
                for part in (statement.then, statement.orelse)
            ]
            return [replace(statement, then=parts[0], orelse=parts[1])]
        return [statement]

    def _otherwise(self, place: _Place) -> tree.Block:
        """Return what a loop does where no `break` has left it: mostly nothing."""
        if _COUNT.name not in place.names or place.predicated or self.rng.random() < 0.5:
            return ()
        return self.block((self._counted(),), place.inside(*place.jumps))

    def _counted(self) -> tree.Augment:
        return tree.Augment(_COUNT, "add", tree.Number(self.rng.randint(1, 9)))

    def _for(self, loop: tree.For, place: _Place, jumps: tuple[tree.Stmt, ...]) -> list[tree.Stmt]:
        var = tree.Name(loop.var, INDEX)
        step = int(loop.step.value) if isinstance(loop.step, tree.Number) else 1
        first = int(loop.lower.value) if isinstance(loop.lower, tree.Number) else 0
        values = range(first, first + 4 * step, step)
        body = self.block(loop.body, place.inside(*jumps, more=((var, values),)))
        made: list[tree.Stmt] = [replace(loop, body=body)]
        ints = [tree.Name(n, t) for n, t in place.names.items() if is_int(t.dtype) and _is_asked(t) and n[0] in "sv"]
        if ints and jumps and not place.predicated and self.rng.random() < 0.4:
            kept = self.rng.choice(ints)
            before = tree.Assign((loop.var,), (tree.Cast(tree.Number(self.rng.randint(0, 9)), "i64"),))
            made = [before, *made, tree.Augment(kept, "add", tree.Cast(var, kept.own.dtype))]
        return made

    def _while(self, loop: tree.While, place: _Place, jumps: tuple[tree.Stmt, ...]) -> list[tree.Stmt]:
        """Put jumps into a loop whose last statement counts; sometimes only a jump ends it."""
        *rest, step = loop.body
        inner = place.inside(*jumps)
        body = self.block(tuple(rest), inner)
        skips = any(isinstance(node, tree.Continue) for part in body for node in tree.walk(part))
        body = (step, *body) if skips else (*body, step)
        if self.rng.random() < 0.2 and isinstance(step, tree.Assign):  # by a name, which says whether to go on
            name = f"go_{step.names[0]}"
            again = tree.Assign((name,), (loop.condition,))
            body = (step, again, *body[1:]) if skips else (*body, again)
            return [again, replace(loop, condition=tree.Name(name, Type("bool")), body=body)]
        if not jumps or self.rng.random() < 0.6:
            return [replace(loop, body=body)]
        test = tree.If(loop.condition, (), (tree.Break(),))
        if skips or self.rng.random() < 0.3:
            return [replace(loop, condition=tree.Number(True), body=(test, *body))]
        endless = replace(loop, condition=tree.Number(True), body=(*body, test))
        kept = self._bound_first(body)
        place.names.update(kept)
        pairs = [(old, new) for new, type_ in kept.items() for old, own in place.names.items() if own == type_]
        use = [(old, new) for old, new in pairs if old not in kept and kept[new].shape]
        if not use or place.predicated:
            return [endless]
        old, new = self.rng.choice(use)
        return [endless, tree.Assign((old,), (tree.Name(new, kept[new]),))]

    def _bound_first(self, body: tree.Block) -> dict[str, Type]:
        """Return the names that a body binds before a jump may leave it."""
        found = _Place()
        for statement in body:
            if any(isinstance(node, tree.Jump) for node in tree.walk(statement)):
                break
            found.bind(statement)
        return found.names

    # Conditions

    def _branch(self, then: tuple[tree.Stmt, ...], place: _Place) -> tree.If:
        return tree.If(self._condition(place), then)

    def _condition(self, place: _Place) -> tree.Expr:
        """Return a condition on a variable, a parameter, or what a tile holds."""
        rng, kind = self.rng, self.rng.random()
        values = [] if place.of_ids else [(name, own) for name, own in place.names.items() if _is_asked(own)]
        if kind < 0.08:
            parts = (self._condition(place), self._condition(place))
            return tree.Apply(rng.choice(("and", "or")), parts, rng.randint(0, 1))
        if place.counters and kind < 0.55:
            name, near = rng.choice(place.counters)
            return self._compare(name, rng.choice(near))
        if values and kind < 0.9:
            name, own = rng.choice(values)
            value: tree.Expr = tree.Name(name, own)
            value = tree.Reduce(rng.choice(("max", "min")), value, None) if own.shape else value
            return self._compare(value, rng.randint(0 if own.dtype.startswith("u") else -2, 5))
        if self.params and not place.in_helper and rng.random() < 0.6:
            return self._compare(rng.choice(self.params), rng.randint(0, 4))
        left = tree.Number(rng.randint(0, 4))
        if self.constants and not place.in_helper:
            left = rng.choice(self.constants)
        return tree.Known(rng.choice(_COMPARISONS), left, tree.Number(rng.randint(0, 4)))

    def _compare(self, value: tree.Expr, number: int) -> tree.Expr:
        other = float(number) if is_float(value.type.dtype) else number
        return tree.Apply(self.rng.choice(_COMPARISONS), (value, tree.Number(other)))


def _is_asked(own: Type) -> bool:
    return own.dtype != "bool" and not own.weak
