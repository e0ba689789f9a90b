"""Branches: `if` at compile time, on a run-time scalar, and on a tile."""

from __future__ import annotations

import ast
from typing import Any, cast

from xdsl.dialects.scf import IfOp, YieldOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.errors import TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.carry import GONE, alike, as_type, like, show_type
from tessera.frontend.convert import apply, default_element, operand
from tessera.frontend.evaluate import evaluate, execute, statement
from tessera.frontend.exact import same
from tessera.frontend.expressions import is_runtime, truth_of
from tessera.frontend.liveness import assigned
from tessera.frontend.values import Scalar, Tile, Undefined, Value, is_number, leaves, rebuild
from tessera.ir.tile.types import element_of
from tessera.ir.types import index


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
        results[name] = _agree(name, *(env.get(name, GONE) for env in envs))
    for block, env in zip(blocks, envs, strict=True):
        with b.into(block):
            yielded: list[SSAValue] = []
            for name in names:
                yielded += [as_type(b, leaf, t) for leaf, (_, t) in _paired(env.get(name), results[name])]
            b.emit(YieldOp(*yielded))
    types = [t for name in names for _, t in results[name] if t is not None]
    op = b.emit(IfOp(condition.ssa, types, Region(blocks[0]), Region(blocks[1])))
    env = dict(outer)
    env.update(
        {
            name: Undefined("it is assigned in a branch", "assign it before the `if`")
            for name in envs[0]
            if name not in outer
        }
    )
    given = iter(op.results)
    for name in names:
        parts = [leaf if t is None else like(leaf, next(given)) for leaf, t in results[name]]
        env[name] = rebuild(envs[0].get(name), iter(parts)) if len(parts) != 1 else parts[0]
    b.frame.env = env


def _paired(value: Any, agreed: list[tuple[Any, Attribute | None]]) -> list[tuple[Any, tuple[Any, Attribute]]]:
    found = list(leaves(value)) if len(agreed) > 1 else [value]
    return [(leaf, (like, t)) for leaf, (like, t) in zip(found, agreed, strict=True) if t is not None]


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
    if len(strong) == 1 and isinstance(strong[0], Scalar) and (is_number(left) or is_number(right)):
        return strong[0], strong[0].type
    if not strong and same(left, right):
        return left, None
    raise _disagree(name, left, right)


def _disagree(name: str, left: Any, right: Any) -> TypeMismatchError:
    return TypeMismatchError(
        f"{name!r} is {show_type(left)} after one branch and {show_type(right)} after the other",
        code="branch-type-mismatch",
        help="give it one type in both branches",
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
    for name in sorted(assigned([*node.body, *node.orelse])):
        left, right = (e.get(name, GONE) for e in envs)
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
    if left is right or (not is_runtime(left) and not is_runtime(right) and same(left, right)):
        return left
    values = [operand(b, value) for value in (left, right)] if all(map(_selectable, (left, right))) else []
    strong = [value for value in values if isinstance(value, Value)]
    if not values or len({value.dtype for value in strong}) > 1:
        raise _disagree(name, left, right)
    return apply(b, "select", condition, *values)


def _selectable(value: Any) -> bool:
    return is_number(value) or isinstance(value, Tile | Scalar)
