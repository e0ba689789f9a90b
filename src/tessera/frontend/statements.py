"""Statements other than loops and branches."""

from __future__ import annotations

import ast
from typing import Any, cast

from xdsl.ir import Block

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.access import store_to
from tessera.frontend.builder import Builder
from tessera.frontend.calls import call
from tessera.frontend.constants import static_call
from tessera.frontend.convert import constant, default_element, materialise, operand
from tessera.frontend.evaluate import evaluate, statement, unsupported
from tessera.frontend.expressions import binary, index_items, is_runtime
from tessera.frontend.flow import RESULT, Give, Jump, Reset
from tessera.frontend.indexing import subscript
from tessera.frontend.liveness import names_bound
from tessera.frontend.tile.debug import device_assert
from tessera.frontend.values import (
    AnyView,
    GridSpec,
    LoopSpec,
    RoleSpec,
    Scalar,
    Shared,
    SharedPart,
    StaticRangeSpec,
    TensorValue,
    Text,
    Tile,
    Undefined,
    Unless,
    is_number,
    leaves,
    rebuild,
    show,
)
from tessera.ir.tile.shared import BarrierOp
from tessera.ir.tile.types import describe


@statement(ast.Pass)
def _pass(node: ast.Pass, b: Builder) -> None:
    pass


@statement(ast.Expr)
def _expr(node: ast.Expr, b: Builder) -> None:
    value = evaluate(b, node.value)
    if isinstance(value, GridSpec | LoopSpec | StaticRangeSpec | RoleSpec):
        is_role = isinstance(value, RoleSpec)
        raise LanguageError(
            f"{show(value)} by itself does nothing",
            code="unsupported-syntax",
            location=b.location(),
            help="write `with` before it, and what it does below"
            if is_role
            else "write `for … in` before it, and a body",
        )


@statement(ast.Assign)
def _assign(node: ast.Assign, b: Builder) -> None:
    value = evaluate(b, node.value)
    if any(not isinstance(target, ast.Subscript) for target in node.targets):
        with b.at(node.value):
            value = materialise(b, value)
    for target in node.targets:
        assign(b, target, value)


@statement(ast.AnnAssign)
def _annassign(node: ast.AnnAssign, b: Builder) -> None:
    if node.value is not None:
        assign(b, node.target, materialise(b, evaluate(b, node.value)))


def assign(b: Builder, target: ast.expr, value: Any) -> None:
    """Bind a target: a name, a tuple of targets, or a slice.

    Raises:
        LanguageError: `unpack` or `unsupported-syntax`.
    """
    match target:
        case ast.Name(id=name):
            b.frame.env[name] = value
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                if isinstance(part, ast.Starred):
                    with b.at(part):
                        raise unsupported(part)
            with b.at(target):
                values = _unpacked(value, len(parts))
            for part, item in zip(parts, values, strict=True):
                assign(b, part, item)
        case ast.Subscript():
            _assign_subscript(b, target, value)
        case _:
            with b.at(target):
                raise LanguageError(
                    f"cannot assign to {ast.unparse(target)}",
                    code="unsupported-syntax",
                    help="assign to a name, a tuple of names, or a slice of a tensor",
                )


def _unpacked(value: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise LanguageError(
            f"{show(value)} cannot be unpacked into {count} names", code="unpack", help="only tuples can"
        )
    parts = cast(tuple[Any, ...], value)
    if len(parts) != count:
        raise LanguageError(f"{len(parts)} values for {count} names", code="unpack", help="give one name per value")
    return parts


def _assign_subscript(b: Builder, target: ast.Subscript, value: Any) -> None:
    with b.at(target):
        store_to(b, _place(b, target), value)


def _place(b: Builder, target: ast.Subscript) -> AnyView | Shared:
    """Return what a subscript on the left of an assignment names."""
    base = evaluate(b, target.value)
    if isinstance(base, AnyView | Tile):
        raise TypeMismatchError(
            f"{show(base)} cannot be changed",
            code="not-a-slice",
            help="tiles are values: make a new one with ts.tile.where or concatenate, or store to a tensor's slice",
        )
    if not isinstance(base, TensorValue | Shared):
        raise TypeMismatchError(
            f"cannot store to an element of {show(base)}",
            code="not-a-slice",
            help="tuples and lists stay as they are: make a new one, xs[:k] + (value,) + xs[k + 1 :]"
            if isinstance(base, tuple)
            else "store to a slice of a tensor or to a shared buffer",
        )
    return subscript(b, base, index_items(b, target.slice))


@statement(ast.AugAssign)
def _augassign(node: ast.AugAssign, b: Builder) -> None:
    target = node.target
    if isinstance(target, ast.Name):
        load = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        old = evaluate(b, load)
        new = binary(b, node.op, old, evaluate(b, node.value))
        b.frame.env[target.id] = new
    elif isinstance(target, ast.Subscript):
        with b.at(target):
            place = _place(b, target)
            old = operand(b, place)
        value = evaluate(b, node.value)
        new = binary(b, node.op, old, value)
        with b.at(target):
            if isinstance(place, Shared | SharedPart):
                b.emit(BarrierOp())  # lanes need not write what they have read
            store_to(b, place, new)
    else:
        assign(b, target, None)


@statement(ast.Assert)
def _assert(node: ast.Assert, b: Builder) -> None:
    # In a build without asserts they are compiled, as one is refused in all builds or in none, and dropped.
    scratch = Block()
    with b.into(b.block if b.spec.debug else scratch):
        condition = evaluate(b, node.test)
        message = "" if node.msg is None else evaluate(b, node.msg)
        if is_runtime(condition):
            call(b, device_assert, [condition, message or ast.unparse(node.test)], {})
    scratch.erase(safe_erase=False)
    if not is_runtime(condition) and not static_call(b, "assert", bool, condition):
        raise LanguageError(
            f"assertion failed: {_text(message) or ast.unparse(node.test)}",
            code="static-assert",
            help="the condition is known at compile time and false",
        )


def _text(message: Any) -> str:
    return message if isinstance(message, str) else ""


@statement(Give)
def _give(node: Give, b: Builder) -> None:
    value = evaluate(b, node.value)
    ends_program = b.has_grid and b.in_program
    if b.frame.caller is None and not node.implicit and not ends_program:
        check_returned(b, value, node.value)
    b.frame.env[RESULT] = _returned(b, materialise(b, value))


def _returned(b: Builder, value: Any) -> Any:
    """Return what a function returns, its numbers of the types that its other results have."""
    frame, parts = b.frame, list(leaves(value))
    for at, leaf in enumerate(parts):
        if is_number(leaf) and at in frame.returned:
            parts[at] = Scalar(constant(b, leaf, frame.returned[at]))
        elif is_number(leaf):
            frame.given.setdefault(at, set()).add(default_element(leaf))
    return rebuild(value, iter(parts))


@statement(Jump)
def _jump(node: Jump, b: Builder) -> None:
    around = b.frame.predicates[0 if node.kind == "return" else -1]
    if b.predicate is not None and b.predicate is not around:
        raise TypeMismatchError(
            f"{node.kind} inside an `if` on {describe(b.predicate.type)}, not a scalar",
            code="tile-condition",
            help="reduce the condition: `if ts.tile.all(condition)`; or put what is left under an `if` on its opposite",
        )
    b.frame.env.update({name: True for target in node.targets for name in names_bound(target)})


@statement(Reset)
def _reset(node: Reset, b: Builder) -> None:
    env, (flag,) = b.frame.env, names_bound(node.targets[0])
    env[flag] = False
    for name, value in env.items():
        if isinstance(value, Unless) and any(flag in flags for flags in value.flags):
            env[name] = Undefined(value.reason, value.help)


def check_returned(b: Builder, value: Any, node: ast.AST) -> None:
    """Check that a kernel returns tensor arguments, as its annotation says.

    Raises:
        LanguageError: `bad-return`, `return-mismatch`.
    """
    single = () if value is None else (value,)
    parts = cast(tuple[Any, ...], value) if isinstance(value, tuple) else single
    with b.at(node):
        for part in parts:
            if not isinstance(part, TensorValue):
                what = show(part) if not isinstance(part, Text) else "text"
                raise LanguageError(
                    f"a kernel returns tensor arguments, not {what}",
                    code="bad-return",
                    help="store the value to a tensor argument (C[...] = x) and return that argument",
                )
        promised = b.signature.returns
        if promised is None:
            return
        given = tuple((part.param.dims, part.param.policy.dtype) for part in parts)
        if given != tuple((annotation.dims, annotation.policy.dtype) for annotation in promised):
            shown = ", ".join(str(part.param) for part in parts) or "nothing"
            raise LanguageError(
                f"the kernel returns {shown}, but its annotation says {', '.join(map(str, promised))}",
                code="return-mismatch",
                help="make the annotation after -> say what is returned",
            )
