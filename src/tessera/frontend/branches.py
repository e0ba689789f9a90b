"""Branches: `if` at compile time, on a run-time scalar, and on a tile."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

from xdsl.dialects.scf import IfOp, YieldOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.data import dataclass
from tessera.errors import TypeMismatchError
from tessera.frontend.builder import Builder, Frame
from tessera.frontend.carry import GONE, Retry, alike, as_type, blank, drop, like, show_type
from tessera.frontend.convert import apply, default_element, operand
from tessera.frontend.evaluate import execute, statement
from tessera.frontend.exact import same
from tessera.frontend.expressions import is_runtime, truth
from tessera.frontend.flow import RESULT, Guard, Split, is_flag
from tessera.frontend.values import (
    Scalar,
    Shared,
    TensorValue,
    Tile,
    Undefined,
    Unless,
    Value,
    is_number,
    leaves,
    rebuild,
    store_help,
)
from tessera.ir.tile.types import element_of
from tessera.ir.types import index

ONE_BRANCH = "it is assigned in one branch only"
NO_BRANCH = "it is assigned in no branch"
HELP = "assign it before the `if`"
BOTH = "assign it before the `if`, or in both branches"


@statement(ast.If)
def _if(node: ast.If, b: Builder) -> None:
    condition = truth(b, node.test, "the condition")
    if isinstance(condition, bool):
        _arm(b, node, condition)
    elif isinstance(condition, Tile):
        _predicated(b, node, condition)
    else:
        names = b.frame.liveness.assigned([*node.body, *node.orelse]) & b.frame.liveness.after(node)
        with b.hoisting() if isinstance(node, Split | Guard) else nullcontext():
            branch(b, condition, (partial(_arm, b, node, True), partial(_arm, b, node, False)), names)


def _arm(b: Builder, node: ast.If, taken: bool) -> None:
    """Compile one side of an `if`; the flag of jumps that it tests is known there."""
    if isinstance(node, Split | Guard) and isinstance(node.test, ast.Name) and is_flag(node.test.id):
        b.frame.env[node.test.id] = taken
        if not taken:
            _define(b.frame.env, node.test.id)
    execute(b, node.body if taken else node.orelse)


def _define(env: dict[str, Any], flag: str) -> None:
    """Bind the names that have a value wherever `flag` is not set."""
    for name, value in env.items():
        if isinstance(value, Unless):
            left = tuple(flags for flags in value.flags if flag not in flags)
            env[name] = replace(value, flags=left) if left else value.value


@dataclass(frozen=True, slots=True)
class _Joined:
    """What a name is after two arms.

    Args:
        template: its value after one of them.
        parts: for each leaf an example, and the type that both arms give (None when it is no run-time value).
        without: the arm that gives no value, as it does not go on.
        unless: the flags that are set where it has no value.
    """

    template: Any
    parts: Sequence[tuple[Any, Attribute | None]] = ()
    without: int | None = None
    unless: tuple[frozenset[str], ...] = ()

    @property
    def types(self) -> list[Attribute]:
        """The types of the values in the IR."""
        return [type_ for _, type_ in self.parts if type_ is not None]

    def yielded(self, b: Builder, arm: int, value: Any) -> list[SSAValue]:
        """Return what an arm hands on, given what the name is there."""
        if self.without == arm:
            return [blank(b, type_) for type_ in self.types]
        pairs = zip(leaves(_known(value)), self.parts, strict=True) if self.parts else ()
        return [as_type(b, leaf, type_) for leaf, (_, type_) in pairs if type_ is not None]

    def bound(self, given: Iterator[SSAValue]) -> Any:
        """Return what the name is bound to, given the results in the IR."""
        if isinstance(self.template, Undefined):
            return self.template
        parts = iter([leaf if type_ is None else like(leaf, next(given)) for leaf, type_ in self.parts])
        value = rebuild(self.template, parts)
        return Unless(ONE_BRANCH, BOTH, value, self.unless) if self.unless else value


def branch(b: Builder, condition: Scalar, arms: Sequence[Callable[[], None]], names: Iterable[str]) -> None:
    """Compile an `if` on a run-time scalar to `scf.if`.

    Args:
        b: the builder.
        condition: what decides.
        arms: compile what runs where it holds, and where it does not.
        names: those that the arms bind and that live on; they are the op's results.
    """
    blocks = [Block(), Block()]
    try:
        _branch(b, condition, blocks, arms, names)
    except Retry:
        drop(blocks)
        raise


def _branch(
    b: Builder, condition: Scalar, blocks: Sequence[Block], arms: Sequence[Callable[[], None]], names: Iterable[str]
) -> None:
    outer, uncommitted = b.frame.env, b.uncommitted
    envs, flags = list[dict[str, Any]](), list[bool]()
    for block, arm in zip(blocks, arms, strict=True):
        b.frame.env, b.uncommitted = dict(outer), uncommitted
        try:
            with b.into(block), b.nested():
                arm()
        finally:
            envs.append(b.frame.env)
            flags.append(b.uncommitted)
            b.frame.env = outer
    b.uncommitted = any(flags)
    jumped = [_jumped(outer, env) for env in envs]
    joined = {name: _agree(b, name, [env.get(name, GONE) for env in envs], jumped) for name in sorted(names)}
    for arm, (block, env) in enumerate(zip(blocks, envs, strict=True)):
        with b.into(block):
            b.emit(YieldOp(*(v for name, join in joined.items() for v in join.yielded(b, arm, env.get(name, GONE)))))
    types = [type_ for join in joined.values() for type_ in join.types]
    op = b.emit(IfOp(condition.ssa, types, Region(blocks[0]), Region(blocks[1])))
    given = iter(op.results)
    unknown = dict.fromkeys(
        (name for name in envs[0] if name not in outer), Undefined("it is assigned in a branch", HELP)
    )
    b.frame.env = {**outer, **unknown, **{name: join.bound(given) for name, join in joined.items()}}


def _jumped(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    """Return the flags that every path through an arm has set: none unless all of them jump."""
    return frozenset(n for n, v in after.items() if is_flag(n) and v is True and before.get(n) is not True)


def _known(value: Any) -> Any:
    return value.value if isinstance(value, Unless) else value


def _agree(b: Builder, name: str, sides: Sequence[Any], jumped: Sequence[frozenset[str]]) -> _Joined:
    """Return what a name is after two arms, given what it is after each and the flags that each has set.

    An arm that jumps need not bind what is read only where it does not.

    Raises:
        TypeMismatchError: `branch-type-mismatch`, `return-mismatch`.
    """
    values = [_known(side) for side in sides]
    unless = tuple(flags for side in sides if isinstance(side, Unless) for flags in side.flags)
    gone = [arm for arm, value in enumerate(values) if isinstance(value, Undefined)]
    if not gone:
        return _Joined(values[0], _agree_parts(b, name, *values), unless=unless)
    without = gone[0]
    if len(gone) == 2 or not (jumped[without] or name == RESULT):
        return _Joined(Undefined(ONE_BRANCH if len(gone) == 1 else NO_BRANCH, BOTH))
    if name != RESULT:
        unless += (jumped[without],)
    value = values[1 - without]
    parts = [(leaf, leaf.type if isinstance(leaf, Value) else None) for leaf in leaves(value)]
    return _Joined(value, parts, without, unless)


def _agree_parts(b: Builder, name: str, left: Any, right: Any) -> list[tuple[Any, Attribute | None]]:
    first, second = list(leaves(left)), list(leaves(right))
    if len(first) != len(second):
        raise _disagree(name, left, right)
    return [_agree_leaf(b, name, at, a, c) for at, (a, c) in enumerate(zip(first, second, strict=True))]


def _agree_leaf(b: Builder, name: str, at: int, left: Any, right: Any) -> tuple[Any, Attribute | None]:
    if left is right:
        return left, None
    if is_number(left) and is_number(right):
        if same(left, right):
            return left, None
        types = {default_element(left), default_element(right)}
        if len(types) == 1:
            return left, types.pop()
        if isinstance(left, bool) or isinstance(right, bool):
            raise _disagree(name, left, right)
        return left, default_element(0.0)
    strong = [v for v in (left, right) if isinstance(v, Tile | Scalar)]
    if len(strong) == 2 and alike(strong[0].type, strong[1].type) and type(left) is type(right):
        chosen = strong[1] if element_of(strong[0].type) == index else strong[0]
        return chosen, chosen.type
    if len(strong) == 1 and isinstance(strong[0], Tile) and any(_holds(v, strong[0]) for v in (left, right)):
        return strong[0], strong[0].type
    if len(strong) == 1 and isinstance(strong[0], Scalar) and (is_number(left) or is_number(right)):
        return strong[0], strong[0].type
    if not strong and same(left, right):
        return left, None
    if len(strong) == 2 and isinstance(left, Scalar) and isinstance(right, Scalar):
        _retype(b, name, at, left, right)
    raise _disagree(name, left, right)


def _retype(b: Builder, name: str, at: int, left: Scalar, right: Scalar) -> None:
    """Let a number that a loop carries, or a helper returns, have the type that another path gives.

    Raises:
        Retry: when either is one.
    """
    starts: tuple[Any, Any] = left, right
    for carried in reversed(b.carrying):  # a number before a loop takes the type that the loop gives it
        starts = carried.retype(starts[0], right.type), carried.retype(starts[1], left.type)
    if name == RESULT:
        _retype_returned(b.frame, at, (left.type, right.type))


def _retype_returned(frame: Frame, at: int, types: Sequence[Attribute]) -> None:
    """Let the numbers that a helper returns from a loop have the type of what it returns elsewhere.

    Raises:
        Retry: when there are such numbers.
    """
    floating, known = default_element(0.0), frame.returned.get(at)
    own = {*frame.given.get(at, ()), known}
    others = [type_ for type_ in types if type_ not in own] or [floating]
    if at in frame.given and len(others) == 1 and others[0] != known and known in (None, floating):
        frame.returned[at] = others[0]
        raise Retry(frame)


def _holds(value: Any, tile: Tile) -> bool:
    """Return whether a value is a shared buffer that holds such a tile: it is read where the other is a tile."""
    return isinstance(value, Shared) and alike(value.type, tile.type)


def _disagree(name: str, left: Any, right: Any) -> TypeMismatchError:
    if name == RESULT:
        one, other = ("nothing" if value is None else show_type(value) for value in (left, right))
        tensors = isinstance(left, TensorValue) or isinstance(right, TensorValue)
        return TypeMismatchError(
            f"{one} is returned on one path and {other} on another",
            code="return-mismatch",
            help=f"return {'the same tensors' if tensors else 'values of one shape and dtype'} on every path",
        )
    return TypeMismatchError(
        f"{name!r} is {show_type(left)} after one branch and {show_type(right)} after the other",
        code="branch-type-mismatch",
        help=store_help((left, right), "give it one type in both branches"),
    )


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
    for name in sorted(b.frame.liveness.assigned([*node.body, *node.orelse])):
        left, right = (e.get(name, GONE) for e in envs)
        if name in b.frame.liveness.after(node):
            env[name] = _select(b, name, condition, left, right)
        else:
            env[name] = Undefined("it is assigned in a branch", HELP)
    b.frame.env = env


def _select(b: Builder, name: str, condition: Tile, left: Any, right: Any) -> Any:
    if left is right:
        return left
    if isinstance(left, Undefined) or isinstance(right, Undefined):
        return Undefined(ONE_BRANCH, BOTH)
    first, second = list(leaves(left)), list(leaves(right))
    if len(first) != len(second) or not first:
        raise _disagree(name, left, right)
    return rebuild(left, iter([_select_leaf(b, name, condition, a, c) for a, c in zip(first, second, strict=True)]))


def _select_leaf(b: Builder, name: str, condition: Tile, left: Any, right: Any) -> Any:
    if left is right or (not is_runtime(left) and not is_runtime(right) and same(left, right)):
        return left
    values = [operand(b, value) for value in (left, right)] if all(map(_selectable, (left, right))) else []
    strong = [value for value in values if isinstance(value, Value)]
    if not values or len({value.dtype for value in strong}) > 1:
        raise _disagree(name, left, right)
    return apply(b, "select", condition, *values)


def _selectable(value: Any) -> bool:
    return is_number(value) or isinstance(value, Tile | Scalar)
