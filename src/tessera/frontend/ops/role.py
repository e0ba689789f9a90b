"""Compiles roles: what producers and consumers hold is checked, what they ask for is left to the schedule."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Operation

from tessera.errors import LanguageError
from tessera.frontend import tile
from tessera.frontend.builder import Builder, OpenRole
from tessera.frontend.convert import static_int
from tessera.frontend.evaluate import evaluate, statement, unsupported
from tessera.frontend.regions import Enter, Leave
from tessera.frontend.registry import compiles
from tessera.frontend.values import RoleSpec, show
from tessera.ir.tile.shared import CpAsyncOp, SharedScatterOp, SharedStoreOp
from tessera.ir.tile.types import TileType
from tessera.ir.tile.writes import Stores

PRODUCER_WARPS = 4


@compiles(tile.role)
def _role(b: Builder, kind: Any, warps: Any, registers: Any) -> RoleSpec:
    if kind not in ("producer", "consumer"):
        raise LanguageError(
            f"role: no role is called {show(kind)}", code="bad-argument", help='one of "producer", "consumer"'
        )
    asked: list[tuple[str, int]] = []
    if registers is not None:
        asked.append((f"{kind}_registers", static_int(b, registers, "role: the registers")))
    if warps is not None:
        count = static_int(b, warps, "role: the warps")
        if kind == "consumer":
            asked.append(("num_warps", count))
        elif count != PRODUCER_WARPS:
            raise LanguageError(
                f"role: {count} warps of producers", code="bad-argument", help=f"producers have {PRODUCER_WARPS}"
            )
    for name, value in asked:
        if value < 1:
            raise LanguageError(f"role: {name} is {value}", code="bad-argument", help="give a positive number")
    return RoleSpec(kind, tuple(asked))


@statement(Enter)
def _enter(node: Enter, b: Builder) -> None:
    spec: Any = evaluate(b, node.value)
    if not isinstance(spec, RoleSpec):
        raise unsupported(ast.With([], []))
    if b.role is not None:
        raise LanguageError("a role inside a role", code="nested-role", help="end the first one before")
    if node.jump is not None:
        with b.at(node.jump):
            raise LanguageError(
                "a jump leaves a role",
                code="role-jump",
                help="put the `break`, `continue` or `return` behind the `with` block",
            )
    for name, value in spec.asked:
        if b.asked.setdefault(name, value) != value:
            raise LanguageError(
                f"{name} is {value} here and {b.asked[name]} in a role before",
                code="role-conflict",
                help="all producers are one role, and so are all consumers",
            )
    b.role = OpenRole(spec, b.block, b.block.last_op, node.value)


@statement(Leave)
def _leave(node: Leave, b: Builder) -> None:
    role, b.role = b.role, None
    assert role is not None, "regions end where they begin"
    inside = _since(role)
    if role.spec.kind == "producer":
        _check(inside, _computes, "producer-computes", "a producer computes or stores", "move it to a consumer")
    else:
        _check(inside, _copies, "consumer-copies", "a consumer starts a copy", "move it to a producer")


def _since(role: OpenRole) -> Sequence[Operation]:
    op = role.before.next_op if role.before is not None else role.block.first_op
    found: list[Operation] = []
    while op is not None:
        found += op.walk()
        op = op.next_op
    return found


def _check(
    inside: Sequence[Operation], is_wrong: Callable[[Operation], bool], code: str, message: str, help: str
) -> None:
    for op in inside:
        if is_wrong(op):
            raise LanguageError(f"{message}: {op.name.split('.')[-1]}", code=code, help=help)


def _computes(op: Operation) -> bool:
    if isinstance(op, Stores | SharedStoreOp | SharedScatterOp):
        return True
    return any(isinstance(result.type, TileType) for result in op.results)


def _copies(op: Operation) -> bool:
    return isinstance(op, CpAsyncOp)
