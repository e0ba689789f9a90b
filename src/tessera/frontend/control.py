"""Loops and branches: what they carry, and how both ways out of a branch agree."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from xdsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp, YieldOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.convert import apply, boolean, constant, default_element, operand
from tessera.frontend.evaluate import evaluate, execute, statement
from tessera.frontend.expressions import is_runtime, truth_of
from tessera.frontend.liveness import assigned, names_bound, names_read
from tessera.frontend.statements import assign
from tessera.frontend.values import (
    GridSpec,
    RangeSpec,
    Scalar,
    StaticRangeSpec,
    Tile,
    Undefined,
    Value,
    is_number,
    leaves,
    rebuild,
    show,
)
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import describe
from tessera.ir.types import index

ONLY_IN_LOOP = "it is assigned only inside a loop, which may not run"


@statement(ast.For)
def _for(node: ast.For, b: Builder) -> None:
    if node.orelse:
        with b.at(node.orelse[0]):
            raise LanguageError("else after a loop", code="unsupported-syntax", help="put it after the loop")
    spec = evaluate(b, node.iter)
    match spec:
        case GridSpec():
            _grid(b, node, spec)
        case RangeSpec():
            _range(b, node, spec)
        case StaticRangeSpec(values=values):
            for value in values:
                assign(b, node.target, value)
                execute(b, node.body)
        case _:
            with b.at(node.iter):
                raise LanguageError(
                    f"cannot loop over {show(spec)}", code="bad-loop",
                    help="loop over ts.tile.grid, ts.tile.range or ts.tile.static_range",
                )  # fmt: skip


def _grid(b: Builder, node: ast.For, spec: GridSpec) -> None:
    if b.frame.depth or b.frame.caller is not None or b.in_program or b.predicate is not None:
        with b.at(node.iter):
            raise LanguageError(
                "a grid inside another loop, branch or helper", code="nested-grid",
                help="the grid is declared at the top level of a kernel; use ts.tile.range inside it",
            )  # fmt: skip
    grid = GridOp(list(spec.extents), spec.blocks)
    grid.location = b.loc()
    outer = dict(b.frame.env)
    with b.into(grid.body.block):
        b.in_program = True
        b.frame.depth += 1  # a return cannot stand here, but buffers may be allocated
        offsets = tuple(Scalar(arg) for arg in grid.body.block.args)
        assign(b, node.target, offsets if len(offsets) > 1 else _one(node.target, offsets))
        execute(b, node.body)
        b.frame.depth -= 1
    b.in_program, b.uncommitted = False, False
    b.block.add_op(grid)
    gone = Undefined("it was assigned inside a grid, where each program has its own", "store it to a tensor")
    b.frame.env = {**outer, **dict.fromkeys(assigned(node.body) | names_bound(node.target), gone)}


def _one(target: ast.expr, offsets: tuple[Scalar, ...]) -> Any:
    return offsets if isinstance(target, ast.Tuple) else offsets[0]


@dataclass(slots=True)
class Carried:
    """The values that a loop hands from one iteration to the next.

    Args:
        names: their names, sorted.
        initial: what each name is before the loop.
        types: the IR type of each leaf; None for what is no run-time value and must not change.
    """

    names: tuple[str, ...]
    initial: dict[str, Any]
    types: list[Attribute | None] = field(default_factory=list[Attribute | None])

    def __post_init__(self) -> None:
        self.types = [_carried_type(leaf) for leaf in self.leaves()]

    def leaves(self) -> list[Any]:
        """The leaves of all initial values, in order."""
        return [leaf for name in self.names for leaf in leaves(self.initial[name])]

    @property
    def runtime_types(self) -> list[Attribute]:
        """The types of the values that the IR carries."""
        return [type_ for type_ in self.types if type_ is not None]

    def bind(self, env: dict[str, Any], values: Sequence[SSAValue]) -> None:
        """Set the names to carried IR values."""
        given = iter(values)
        for name, template in self._typed():
            parts = iter([leaf if type_ is None else _like(leaf, next(given)) for leaf, type_ in template])
            env[name] = rebuild(self.initial[name], parts)

    def _typed(self) -> list[tuple[str, list[tuple[Any, Attribute | None]]]]:
        types = iter(self.types)
        return [(name, [(leaf, next(types)) for leaf in leaves(self.initial[name])]) for name in self.names]

    def start(self, b: Builder) -> list[SSAValue]:
        """Return the initial values in the IR."""
        pairs = zip(self.leaves(), self.types, strict=True)
        return [leaf.ssa if isinstance(leaf, Value) else constant(b, leaf, t) for leaf, t in pairs if t is not None]


def _carried_type(leaf: Any) -> Attribute | None:
    if isinstance(leaf, Tile | Scalar):
        return leaf.type
    return default_element(leaf) if is_number(leaf) else None


def _like(leaf: Any, ssa: SSAValue) -> Value:
    if isinstance(leaf, Value):
        return type(leaf)(ssa, leaf.policy)
    return Scalar(ssa)


class Retry(Exception):
    """A loop body has to be compiled again with what its first attempt taught."""


def _finish(b: Builder, carried: Carried, env: dict[str, Any], body: Sequence[ast.stmt]) -> list[SSAValue]:
    """Return the values at the end of a loop's body, of the carried types.

    Raises:
        Retry: when a Python number before the loop should have had another type.
        TypeMismatchError: `loop-type-changed`.
        LanguageError: `cannot-carry`.
    """
    results: list[SSAValue] = []
    position = 0
    for name in carried.names:
        before, after = carried.initial[name], env[name]
        old, new = list(leaves(before)), list(leaves(after))
        if isinstance(after, Undefined) or len(old) != len(new):
            raise _changed(b, body, name, before, after)
        for was, now in zip(old, new, strict=True):
            expected = carried.types[position]
            if expected is None:
                if was is not now and was != now:
                    raise _cannot_carry(b, body, name, was)
            elif isinstance(now, Value) and now.type == expected:
                results.append(now.ssa)
            elif is_number(now) and not isinstance(was, Tile):
                results.append(_number(b, carried, position, was, now, expected))
            elif is_number(was) and isinstance(now, Scalar):
                carried.types[position] = now.type
                raise Retry
            else:
                raise _changed(b, body, name, was, now)
            position += 1
    return results


def _number(
    b: Builder, carried: Carried, position: int, was: Any, now: bool | int | float, expected: Attribute
) -> SSAValue:
    if is_number(was) and isinstance(now, float) and expected == index:
        carried.types[position] = default_element(now)
        raise Retry
    return constant(b, now, expected)


def show_type(value: Any) -> str:
    """Return a carried value as diagnostics show it."""
    if isinstance(value, Tile):
        return describe(value.type)
    return show(value)


def _show_after(value: Any) -> str:
    return "not defined on every path" if isinstance(value, Undefined) else show_type(value)


def _last_assignment(body: Sequence[ast.stmt], name: str) -> ast.AST:
    found: ast.AST = body[0]
    for statement_ in body:
        for node in ast.walk(statement_):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and name in names_bound(node):
                found = node
    return found


def _changed(b: Builder, body: Sequence[ast.stmt], name: str, before: Any, after: Any) -> TypeMismatchError:
    help = "give it one type before and after"
    if isinstance(after, Tile) and (not isinstance(before, Tile) or before.shape != after.shape):
        help = f"start with a tile of that type: ts.tile.zeros({after.shape}, ts.{after.dtype})"
    elif isinstance(after, Value) and isinstance(before, Value) and before.dtype != after.dtype:
        help = f"convert it in the body with .to(ts.{before.dtype}), or start with ts.{after.dtype}"
    error = TypeMismatchError(
        f"{name!r} is {show_type(before)} before the loop and {_show_after(after)} after its body",
        code="loop-type-changed", help=help,
    )  # fmt: skip
    error.location = b.frame.locate(_last_assignment(body, name))
    return error


def _cannot_carry(b: Builder, body: Sequence[ast.stmt], name: str, value: Any) -> LanguageError:
    error = LanguageError(
        f"{name!r} ({show(value)}) is rebound in a loop", code="cannot-carry",
        help="only tiles and numbers can change from one iteration to the next; for stages of a buffer, "
        "allocate (stages, M, N) and index it with the stage number",
    )  # fmt: skip
    error.location = b.frame.locate(_last_assignment(body, name))
    return error


def _carried(b: Builder, node: ast.For | ast.While, also: frozenset[str]) -> Carried:
    liveness, env = b.frame.liveness, b.frame.env
    needed = liveness.exposed(node.body) | liveness.after(node) | also
    names = sorted(name for name in assigned(node.body) & needed if not isinstance(env.get(name, _GONE), Undefined))
    return Carried(tuple(names), {name: env[name] for name in names})


_GONE = Undefined("", "")


def _erase(block: Block) -> None:
    block.erase(safe_erase=False)


def _leave(b: Builder, node: ast.For | ast.While, outer: dict[str, Any], carried: Carried, results: Any) -> None:
    """Set the names after a loop."""
    bound = assigned(node.body) | (names_bound(node.target) if isinstance(node, ast.For) else frozenset())
    gone = Undefined(ONLY_IN_LOOP, "assign it before the loop")
    b.frame.env = {**outer, **dict.fromkeys(bound, gone)}
    carried.bind(b.frame.env, list(results))


def _range(b: Builder, node: ast.For, spec: RangeSpec) -> None:
    outer = b.frame.env
    carried = _carried(b, node, frozenset())
    uncommitted = b.uncommitted
    for _ in range(len(carried.types) + 2):
        block = Block(arg_types=[index, *carried.runtime_types])
        env = b.frame.env = dict(outer)
        carried.bind(env, block.args[1:])
        b.uncommitted = uncommitted
        try:
            with b.into(block), b.nested():
                assign(b, node.target, Scalar(block.args[0]))
                execute(b, node.body)
                b.emit(YieldOp(*_finish(b, carried, b.frame.env, node.body)))
        except Retry:
            _erase(block)
            continue
        finally:
            b.frame.env = outer
        if b.uncommitted and not uncommitted:
            # The next iteration starts with copies in flight, which a barrier at its beginning has to wait for.
            uncommitted = True
            _erase(block)
            continue
        break
    loop = b.emit(ForOp(spec.lower, spec.upper, spec.step, carried.start(b), Region(block)))  # pyright: ignore
    _leave(b, node, outer, carried, loop.results)


@statement(ast.While)
def _while(node: ast.While, b: Builder) -> None:
    if node.orelse:
        with b.at(node.orelse[0]):
            raise LanguageError("else after a loop", code="unsupported-syntax", help="put it after the loop")
    outer = b.frame.env
    carried = _carried(b, node, names_read(node.test))
    uncommitted = b.uncommitted
    for _ in range(len(carried.types) + 2):
        b.uncommitted = uncommitted
        before = Block(arg_types=carried.runtime_types)
        after = Block(arg_types=carried.runtime_types)
        try:
            condition = _loop_condition(b, node, outer, carried, before)
            if condition is False:
                return
            b.frame.env = dict(outer)
            carried.bind(b.frame.env, after.args)
            with b.into(after), b.nested():
                execute(b, node.body)
                b.emit(YieldOp(*_finish(b, carried, b.frame.env, node.body)))
        except Retry:
            _erase(before)
            _erase(after)
            continue
        finally:
            b.frame.env = outer
        if b.uncommitted and not uncommitted:
            uncommitted = True
            _erase(before)
            _erase(after)
            continue
        break
    start = carried.start(b)
    loop = b.emit(WhileOp(start, carried.runtime_types, Region(before), Region(after)))  # pyright: ignore
    _leave(b, node, outer, carried, loop.results)


def _loop_condition(b: Builder, node: ast.While, outer: dict[str, Any], carried: Carried, before: Block) -> bool:
    """Compile the test of a `while`; False when it is constant and false."""
    b.frame.env = dict(outer)
    carried.bind(b.frame.env, before.args)
    with b.into(before), b.nested():
        value = evaluate(b, node.test)
        with b.at(node.test):
            truth = truth_of(b, value, "the condition")
            if truth is False:
                return False
            if isinstance(truth, bool):
                raise LanguageError(
                    "the condition of `while` never changes", code="endless-loop",
                    help="assign what it depends on in the body",
                )  # fmt: skip
            if isinstance(truth, Tile):
                raise TypeMismatchError(
                    f"the condition of `while` is {describe(truth.type)}, not a scalar", code="tile-condition",
                    help="reduce it: ts.tile.any(condition)",
                )  # fmt: skip
        b.emit(ConditionOp(truth.ssa, *before.args))
    return True


@statement(ast.If)
def _if(node: ast.If, b: Builder) -> None:
    value = evaluate(b, node.test)
    with b.at(node.test):
        condition = truth_of(b, value, "the condition")
    if isinstance(condition, bool):
        execute(b, node.body if condition else node.orelse)
    elif isinstance(condition, Tile):
        _predicated(b, node, condition)
    else:
        _branch(b, node, condition)


def _branch(b: Builder, node: ast.If, condition: Scalar) -> None:
    """Compile an `if` on a run-time scalar to `scf.if`, whose results are the names bound in it."""
    outer = b.frame.env
    uncommitted = b.uncommitted
    blocks, envs, flags = [Block(), Block()], list[dict[str, Any]](), list[bool]()
    for block, body in zip(blocks, (node.body, node.orelse), strict=True):
        b.frame.env, b.uncommitted = dict(outer), uncommitted
        try:
            with b.into(block), b.nested():
                execute(b, body)
        finally:
            envs.append(b.frame.env)
            flags.append(b.uncommitted)
            b.frame.env = outer
    b.uncommitted = any(flags)
    names = sorted(assigned([*node.body, *node.orelse]) & b.frame.liveness.after(node))
    results: dict[str, list[tuple[Any, Attribute | None]]] = {}
    for name in names:
        results[name] = _agree(name, *(env.get(name, _GONE) for env in envs))
    for block, env in zip(blocks, envs, strict=True):
        with b.into(block):
            yielded: list[SSAValue] = []
            for name in names:
                yielded += [_as_type(b, leaf, t) for leaf, (_, t) in _paired(env.get(name), results[name])]
            b.emit(YieldOp(*yielded))
    types = [t for name in names for _, t in results[name] if t is not None]
    op = b.emit(IfOp(condition.ssa, types, Region(blocks[0]), Region(blocks[1])))
    env = dict(outer)
    env.update({name: Undefined("it is assigned in a branch", "assign it before the `if`") for name in envs[0]
                if name not in outer})  # fmt: skip
    given = iter(op.results)
    for name in names:
        parts = [leaf if t is None else _like(leaf, next(given)) for leaf, t in results[name]]
        env[name] = rebuild(envs[0].get(name), iter(parts)) if len(parts) != 1 else parts[0]
    b.frame.env = env


def _paired(value: Any, agreed: list[tuple[Any, Attribute | None]]) -> list[tuple[Any, tuple[Any, Attribute]]]:
    found = list(leaves(value)) if len(agreed) > 1 else [value]
    return [(leaf, (like, t)) for leaf, (like, t) in zip(found, agreed, strict=True) if t is not None]


def _as_type(b: Builder, leaf: Any, type_: Attribute) -> SSAValue:
    return leaf.ssa if isinstance(leaf, Value) else constant(b, leaf, type_)


def _agree(name: str, left: Any, right: Any) -> list[tuple[Any, Attribute | None]]:
    """Return, for each leaf, an example and the type both branches give (None when it is no run-time value).

    Raises:
        TypeMismatchError: `branch-type-mismatch`.
    """
    if isinstance(left, Undefined) or isinstance(right, Undefined):
        one = "one branch only" if left is not right else "no branch"
        return [(Undefined(f"it is assigned in {one}", "assign it before the `if`, or in both branches"), None)]
    first, second = list(leaves(left)), list(leaves(right))
    if len(first) != len(second):
        raise _disagree(name, left, right)
    if not first:
        return [(left, None)]
    return [_agree_leaf(name, a, c) for a, c in zip(first, second, strict=True)]


def _agree_leaf(name: str, left: Any, right: Any) -> tuple[Any, Attribute | None]:
    if left is right:
        return left, None
    if is_number(left) and is_number(right):
        if type(left) is type(right) and left == right:
            return left, None
        types = {default_element(left), default_element(right)}
        if len(types) == 1:
            return left, types.pop()
        if isinstance(left, bool) or isinstance(right, bool):
            raise _disagree(name, left, right)
        return left, default_element(0.0)
    strong = [v for v in (left, right) if isinstance(v, Tile | Scalar)]
    if len(strong) == 2 and strong[0].type == strong[1].type and type(left) is type(right):
        return left, strong[0].type
    if len(strong) == 1 and isinstance(strong[0], Scalar) and (is_number(left) or is_number(right)):
        return strong[0], strong[0].type
    if not strong and type(left) is type(right) and left == right:
        return left, None
    raise _disagree(name, left, right)


def _disagree(name: str, left: Any, right: Any) -> TypeMismatchError:
    return TypeMismatchError(
        f"{name!r} is {show_type(left)} after one branch and {show_type(right)} after the other",
        code="branch-type-mismatch", help="give it one type in both branches",
    )  # fmt: skip


def _predicated(b: Builder, node: ast.If, condition: Tile) -> None:
    """Compile an `if` on a bool tile: stores and gathers are masked, rebinding selects."""
    outer, before = b.frame.env, b.predicate
    envs: list[dict[str, Any]] = []
    for body, own in ((node.body, condition), (node.orelse, None)):
        b.frame.env = dict(outer)
        try:
            if body:
                chosen = own or cast(Tile, apply(b, "not", condition))
                b.predicate = chosen if before is None else cast(Tile, apply(b, "and", before, chosen))
                with b.nested():
                    execute(b, body)
        finally:
            envs.append(b.frame.env)
            b.frame.env, b.predicate = outer, before
    env = dict(outer)
    for name in sorted(assigned([*node.body, *node.orelse])):
        left, right = (e.get(name, _GONE) for e in envs)
        if name in b.frame.liveness.after(node):
            env[name] = _select(b, name, condition, left, right)
        else:
            env[name] = Undefined("it is assigned in a branch", "assign it before the `if`")
    b.frame.env = env


def _select(b: Builder, name: str, condition: Tile, left: Any, right: Any) -> Any:
    if left is right:
        return left
    if isinstance(left, Undefined) or isinstance(right, Undefined):
        return Undefined("it is assigned in one branch only", "assign it before the `if`, or in both branches")
    first, second = list(leaves(left)), list(leaves(right))
    if len(first) != len(second) or not first:
        raise _disagree(name, left, right)
    return rebuild(left, iter([_select_leaf(b, name, condition, a, c) for a, c in zip(first, second, strict=True)]))


def _select_leaf(b: Builder, name: str, condition: Tile, left: Any, right: Any) -> Any:
    if left is right or (not is_runtime(left) and not is_runtime(right) and left == right):
        return left
    values = [operand(b, value) for value in (left, right)] if all(map(_selectable, (left, right))) else []
    strong = [value for value in values if isinstance(value, Value)]
    if not values or len({value.dtype for value in strong}) > 1:
        raise _disagree(name, left, right)
    boolean(b, condition, "the condition")
    return apply(b, "select", condition, *values)


def _selectable(value: Any) -> bool:
    return is_number(value) or isinstance(value, Tile | Scalar)
