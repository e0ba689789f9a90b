"""Loops: the parallel grid, `range`, `static_range`, tuples and `while`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from xdsl.dialects.builtin import i1
from xdsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp, YieldOp
from xdsl.ir import Block, Region, SSAValue

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.branches import branch
from tessera.frontend.builder import Builder
from tessera.frontend.carry import Attempts, Carried, Retry, as_type, carried_by, drop, finish
from tessera.frontend.convert import apply, constant
from tessera.frontend.counting import RangeSpec
from tessera.frontend.evaluate import evaluate, execute, statement
from tessera.frontend.expressions import truth
from tessera.frontend.flow import RESULT, LeftFor, is_endless, stop_of
from tessera.frontend.liveness import NONE, Names, names_bound, names_read
from tessera.frontend.statements import assign
from tessera.frontend.values import GridSpec, Scalar, StaticRangeSpec, Tile, Undefined, show, store_help
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import describe
from tessera.ir.types import index

Loop = ast.For | ast.While
Emit = Callable[[], Sequence[SSAValue]]
"""Emits a loop that is compiled, and returns its results."""
Learn = Callable[[Mapping[str, Any]], None]

ONLY_IN_LOOP = "it is assigned only inside a loop, which may not run"


@statement(ast.For)
def _for(node: ast.For, b: Builder) -> None:
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
    """Repeat the body for each value, at compile time, until a jump is known to leave the loop."""
    stop = stop_of(node)
    names = (b.frame.liveness.assigned(node.body) | names_bound(node.target)) & b.frame.liveness.around(node)
    _clear(b, node)
    with b.looping():
        for value in values:
            iteration = partial(_go_on, b, node, value)
            stopped = stop is not None and b.frame.env[stop]
            if stopped is True:
                return
            if stopped is False:
                iteration()
            else:
                branch(b, stopped, (lambda: None, iteration), names)


def _go_on(b: Builder, node: ast.For, value: Any) -> None:
    """Compile an iteration that no jump has left out."""
    _clear(b, node)
    assign(b, node.target, value)
    execute(b, node.body)


def _clear(b: Builder, node: Loop) -> None:
    """Clear the flag of the jumps that leave a loop."""
    stop = stop_of(node)
    if stop is not None:
        b.frame.env[stop] = False


def _grid(b: Builder, node: ast.For, spec: GridSpec) -> None:
    _check_place(b, node)
    grid = GridOp([spec.extents[dim] for dim in spec.order], [spec.blocks[dim] for dim in spec.order])
    grid.location = b.loc()
    outer = dict(b.frame.env)
    with b.into(grid.body.block):
        b.in_program = True
        offsets = tuple(Scalar(grid.body.block.args[spec.order.index(dim)]) for dim in range(len(spec.order)))
        assign(b, node.target, offsets if len(offsets) > 1 else _one(node.target, offsets))
        execute(b, node.body)
    b.in_program, b.uncommitted = False, False
    b.block.add_op(grid)
    names = (b.frame.liveness.assigned(node.body) | names_bound(node.target)) - {RESULT}
    b.frame.env = {**outer, **{name: _gone(outer.get(name)) for name in names}}


def _gone(before: Any) -> Undefined:
    """Return what a name is after a grid that assigns it, given what it was before."""
    why = "it was assigned inside a grid, where each program has its own"
    return Undefined(why, store_help((before,), "store it to a tensor"))


def _check_place(b: Builder, node: ast.For) -> None:
    """Check where a grid stands, and that no jump leaves it.

    Raises:
        LanguageError: `nested-grid`, `bad-jump`.
    """
    if b.control_depth or b.frame.caller is not None or b.in_program or b.predicate is not None:
        after_return = 0 < b.control_depth == b.free_depth and b.frame.caller is None and not b.in_program
        with b.at(node.iter):
            if after_return:
                raise LanguageError(
                    "a grid after a return that depends on a run-time condition",
                    code="nested-grid",
                    help="test the condition inside the grid and end the program there with `continue`",
                )
            raise LanguageError(
                "a grid inside another loop, branch or helper",
                code="nested-grid",
                help="the grid is declared at the top level of a kernel; use ts.tile.range inside it",
            )
    if isinstance(node, LeftFor) and node.breaks:
        with b.at(node.breaks[0]):
            raise LanguageError(
                "break in a grid",
                code="bad-jump",
                help="programs of a grid run in parallel, so that none ends the others; `continue` ends its own",
            )
    for jump in node.returns if isinstance(node, LeftFor) else ():
        if isinstance(jump, ast.Return) and jump.value is not None:
            with b.at(jump):
                raise LanguageError(
                    "return of a value inside a grid",
                    code="bad-return",
                    help="return tensors right behind the grid; `return` alone ends one program of the last grid",
                )
    if isinstance(node, LeftFor) and not node.is_last:
        with b.at(node.returns[0]):
            raise LanguageError(
                "return inside a grid that is not the last statement",
                code="bad-return",
                help="`return` ends programs of a kernel's last grid; use `continue`, which ends one of any",
            )


def _one(target: ast.expr, offsets: tuple[Scalar, ...]) -> Any:
    return offsets if isinstance(target, ast.Tuple) else offsets[0]


def _leave(b: Builder, node: Loop, carried: Carried, results: Sequence[SSAValue]) -> None:
    """Set the names after a loop; where a jump may leave it, the first result says whether one did."""
    bound = b.frame.liveness.assigned(node.body) | (names_bound(node.target) if isinstance(node, ast.For) else NONE)
    gone = Undefined(ONLY_IN_LOOP, "assign it before the loop")
    env = b.frame.env = {**b.frame.env, **dict.fromkeys(bound, gone)}
    stop = stop_of(node)
    if stop is not None:
        jumps = len(results) - len(carried.runtime_types)
        env[stop] = Scalar(results[0]) if jumps else False
        results = results[jumps:]
    carried.bind(env, results)


def _settled(b: Builder, node: Loop, carried: Carried, attempt: Callable[[list[Block]], Emit | None]) -> Emit | None:
    """Compile a loop as often as it takes to know the types that it carries; return what the last attempt gives.

    Args:
        b: the builder.
        node: the loop.
        carried: what it carries.
        attempt: compiles it, given where to note the blocks that it makes.
    """
    outer, uncommitted, role = b.frame.env, b.uncommitted, b.role
    attempts = Attempts(b, node, carried)
    loop: Emit | None = None
    for _ in attempts:
        b.frame.env, b.uncommitted, b.role = dict(outer), uncommitted, role
        blocks: list[Block] = []
        settled = False
        try:
            loop = attempt(blocks)
            settled = uncommitted or not b.uncommitted
            # The next iteration may start with copies in flight, which a barrier at its start has to wait for.
            uncommitted = b.uncommitted
        except Retry as retry:
            if retry.of not in (None, carried):  # a loop around is compiled again
                drop(blocks)
                raise
        finally:
            b.frame.env = outer
            attempts.leave()
        if settled:
            break
        drop(blocks)
    return loop


def _iteration(b: Builder, node: Loop, carried: Carried, learn: Learn) -> tuple[Any, list[SSAValue]]:
    """Compile a loop's body; return whether a jump leaves the loop there, and the values that it hands on."""
    _clear(b, node)
    with b.looping():
        execute(b, node.body)
    learn(b.frame.env)
    values = finish(b, carried, b.frame.env, node.body)
    stop = stop_of(node)
    return (False if stop is None else b.frame.env[stop]), values


def _learner(b: Builder, carried: Carried, names: Names) -> Learn:
    """Return what makes a loop carry names that it binds first, such as what a function returns in it.

    They start with values that nobody reads, in the block that is current now.
    """
    outer = b.block

    def learn(env: Mapping[str, Any]) -> None:
        new = {n: env[n] for n in names if n in env and n not in carried.names and not isinstance(env[n], Undefined)}
        if new:
            with b.into(outer):
                carried.start_with(b, new)
            raise Retry

    return learn


def _range(b: Builder, node: ast.For, spec: RangeSpec) -> None:
    carried = carried_by(b, node, NONE)
    learn = _learner(b, carried, frozenset({RESULT}))

    def attempt(blocks: list[Block]) -> Emit:
        block = Block(arg_types=[index, *carried.runtime_types])
        blocks.append(block)
        carried.bind(b.frame.env, block.args[1:])
        with b.into(block), b.nested():
            assign(b, node.target, spec.variable(b, block.args[0]))
            stopped, values = _iteration(b, node, carried, learn)
            if stopped is False:
                b.emit(YieldOp(*values))
                return partial(_counting, b, spec, carried, block)
            after = b.emit(ElementwiseOp("add", [block.args[0], spec.step])).result
            b.emit(YieldOp(after, as_type(b, stopped, i1), *values))
        return partial(_counting_until, b, spec, carried, block)

    loop = _settled(b, node, carried, attempt)
    assert loop is not None
    _leave(b, node, carried, loop())


def _counting(b: Builder, spec: RangeSpec, carried: Carried, body: Block) -> Sequence[SSAValue]:
    start = carried.start(b)
    return b.emit(ForOp(spec.lower, spec.upper, spec.step, start, Region(body))).results  # pyright: ignore


def _counting_until(b: Builder, spec: RangeSpec, carried: Carried, body: Block) -> Sequence[SSAValue]:
    """Emit a loop over a range that a jump may end: a `while` that carries the counter and whether one was taken."""
    types = [index, i1, *carried.runtime_types]
    body.insert_arg(i1, 1)
    before = Block(arg_types=types)
    with b.into(before), b.nested():
        counter, stopped = (Scalar(arg) for arg in before.args[:2])
        more = apply(b, "lt", counter, Scalar(spec.upper))
        b.emit(ConditionOp(apply(b, "and", more, apply(b, "not", stopped)).ssa, *before.args))
    start = [spec.lower, constant(b, False, i1), *carried.start(b)]
    return b.emit(WhileOp(start, types, Region(before), Region(body))).results[1:]


@statement(ast.While)
def _while(node: ast.While, b: Builder) -> None:
    outer = b.frame.env
    carried = carried_by(b, node, names_read(node.test))
    liveness = b.frame.liveness
    first = (liveness.assigned(node.body) & liveness.after(node)) - liveness.exposed(node.body)
    learn = _learner(b, carried, first if is_endless(node) else frozenset({RESULT}))

    def attempt(blocks: list[Block]) -> Emit | None:
        before = Block(arg_types=carried.runtime_types)
        after = Block(arg_types=carried.runtime_types)
        blocks += [before, after]
        condition = _loop_condition(b, node, outer, carried, before)
        if condition is False:
            return None
        b.frame.env = dict(outer)
        carried.bind(b.frame.env, after.args)
        with b.into(after), b.nested():
            stopped, values = _iteration(b, node, carried, learn)
            jumps = [] if stopped is False else [as_type(b, stopped, i1)]
            b.emit(YieldOp(*jumps, *values))
        if condition is True and not jumps:
            with b.at(node.test):
                raise _endless()
        return partial(_testing_until if jumps else _testing, b, carried, before, after, condition)

    loop = _settled(b, node, carried, attempt)
    if loop is not None:
        _leave(b, node, carried, loop())
    else:
        _clear(b, node)


def _endless() -> LanguageError:
    return LanguageError(
        "the condition of `while` never changes",
        code="endless-loop",
        help="assign what it depends on in the body, or leave the loop with break",
    )


def _testing(b: Builder, carried: Carried, before: Block, after: Block, condition: Scalar) -> Sequence[SSAValue]:
    with b.into(before), b.nested():
        b.emit(ConditionOp(condition.ssa, *before.args))
    return b.emit(WhileOp(carried.start(b), carried.runtime_types, Region(before), Region(after))).results  # pyright: ignore


def _testing_until(
    b: Builder, carried: Carried, tested: Block, after: Block, condition: Scalar | bool
) -> Sequence[SSAValue]:
    """Emit a loop that a jump may end: it carries whether one was taken, and does not test its condition then."""
    types = [i1, *carried.runtime_types]
    after.insert_arg(i1, 0)
    before = Block(arg_types=types)
    with b.into(before), b.nested():
        go_on = apply(b, "not", Scalar(before.args[0])).ssa
        if isinstance(condition, Scalar):
            go_on = _tested(b, go_on, tested, condition, before.args[1:])
        b.emit(ConditionOp(go_on, *before.args))
    start = [constant(b, False, i1), *carried.start(b)]
    return b.emit(WhileOp(start, types, Region(before), Region(after))).results


def _tested(b: Builder, unless: SSAValue, tested: Block, condition: Scalar, args: Sequence[SSAValue]) -> SSAValue:
    """Return a loop's condition, or false where `unless` is false, which leaves its ops out."""
    with b.into(tested):
        b.emit(YieldOp(condition.ssa))  # first: it may be one of the arguments
    for old, new in zip(tuple(tested.args), args, strict=True):
        old.replace_all_uses_with(new)
    for arg in reversed(tested.args):
        tested.erase_arg(arg)
    ended = Block()
    with b.into(ended):
        b.emit(YieldOp(constant(b, False, i1)))
    return b.emit(IfOp(unless, [i1], Region(tested), Region(ended))).results[0]


def _loop_condition(
    b: Builder, node: ast.While, outer: dict[str, Any], carried: Carried, before: Block
) -> bool | Scalar:
    """Compile the test of a `while`; a bool when it is constant."""
    b.frame.env = dict(outer)
    carried.bind(b.frame.env, before.args)
    with b.into(before), b.nested():
        condition = truth(b, node.test, "the condition")
        with b.at(node.test):
            if condition is True and stop_of(node) is None:
                raise _endless()
            if isinstance(condition, Tile):
                raise TypeMismatchError(
                    f"the condition of `while` is {describe(condition.type)}, not a scalar",
                    code="tile-condition",
                    help="reduce it: ts.tile.any(condition)",
                )
    return condition
