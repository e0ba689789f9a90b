"""Loops: the parallel grid, `range`, `static_range`, tuples and `while`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, cast

from xdsl.dialects.scf import ConditionOp, ForOp, WhileOp, YieldOp
from xdsl.ir import Block, Region

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.carry import Attempts, Carried, Retry, carried_by, finish
from tessera.frontend.counting import RangeSpec
from tessera.frontend.evaluate import evaluate, execute, statement
from tessera.frontend.expressions import truth_of
from tessera.frontend.liveness import NONE, assigned, names_bound, names_read
from tessera.frontend.statements import assign
from tessera.frontend.values import GridSpec, Scalar, StaticRangeSpec, Tile, Undefined, show
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
            _unrolled(b, node, values)
        case tuple():
            _unrolled(b, node, cast(tuple[Any, ...], spec))
        case _:
            with b.at(node.iter):
                raise LanguageError(
                    f"cannot loop over {show(spec)}",
                    code="bad-loop",
                    help="loop over ts.tile.grid, ts.tile.range, ts.tile.static_range or a tuple",
                )


def _unrolled(b: Builder, node: ast.For, values: Iterable[Any]) -> None:
    """Repeat the body for each value, at compile time."""
    for value in values:
        assign(b, node.target, value)
        execute(b, node.body)


def _grid(b: Builder, node: ast.For, spec: GridSpec) -> None:
    if b.frame.depth or b.frame.caller is not None or b.in_program or b.predicate is not None:
        with b.at(node.iter):
            raise LanguageError(
                "a grid inside another loop, branch or helper",
                code="nested-grid",
                help="the grid is declared at the top level of a kernel; use ts.tile.range inside it",
            )
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


def _erase(block: Block) -> None:
    block.erase(safe_erase=False)


def _leave(b: Builder, node: ast.For | ast.While, outer: dict[str, Any], carried: Carried, results: Any) -> None:
    """Set the names after a loop."""
    bound = assigned(node.body) | (names_bound(node.target) if isinstance(node, ast.For) else NONE)
    gone = Undefined(ONLY_IN_LOOP, "assign it before the loop")
    b.frame.env = {**outer, **dict.fromkeys(bound, gone)}
    carried.bind(b.frame.env, list(results))


def _range(b: Builder, node: ast.For, spec: RangeSpec) -> None:
    outer = b.frame.env
    carried = carried_by(b, node, frozenset())
    uncommitted = b.uncommitted
    attempts = Attempts(b, node, carried)
    for _ in attempts:
        block = Block(arg_types=[index, *carried.runtime_types])
        env = b.frame.env = dict(outer)
        carried.bind(env, block.args[1:])
        b.uncommitted = uncommitted
        try:
            with b.into(block), b.nested():
                assign(b, node.target, spec.variable(b, block.args[0]))
                execute(b, node.body)
                b.emit(YieldOp(*finish(b, carried, b.frame.env, node.body)))
        except Retry:
            _erase(block)
            continue
        finally:
            b.frame.env = outer
            attempts.leave()
        if b.uncommitted and not uncommitted:
            # The next iteration starts with copies in flight, which a barrier at its start has to wait for.
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
    carried = carried_by(b, node, names_read(node.test))
    uncommitted = b.uncommitted
    attempts = Attempts(b, node, carried)
    for _ in attempts:
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
                b.emit(YieldOp(*finish(b, carried, b.frame.env, node.body)))
        except Retry:
            _erase(before)
            _erase(after)
            continue
        finally:
            b.frame.env = outer
            attempts.leave()
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
                    "the condition of `while` never changes",
                    code="endless-loop",
                    help="assign what it depends on in the body",
                )
            if isinstance(truth, Tile):
                raise TypeMismatchError(
                    f"the condition of `while` is {describe(truth.type)}, not a scalar",
                    code="tile-condition",
                    help="reduce it: ts.tile.any(condition)",
                )
        b.emit(ConditionOp(truth.ssa, *before.args))
    return True
