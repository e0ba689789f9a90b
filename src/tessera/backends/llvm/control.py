"""Control flow: `scf` loops and branches, with a phi for every unit that is carried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tessera.backends.llvm.emitter import Emitter, Handlers
from tessera.backends.llvm.text import phi_text
from tessera.backends.llvm.types import LLVMType

CONTROL = Handlers()


def _flatten(emitter: Emitter, values: Sequence[SSAValue]) -> tuple[list[LLVMType], list[str]]:
    carried = [pair for value in values for pair in emitter.carried(value)]
    return [type_ for type_, _ in carried], [unit for _, unit in carried]


def _unflatten(emitter: Emitter, values: Sequence[SSAValue], units: Sequence[str]) -> None:
    rest = iter(units)
    for value in values:
        emitter.bind_carried(value, [next(rest) for _ in emitter.carried_types(value.type)])


class _Phis:
    """Phis at the head of a loop whose second source is known only when the body has been written."""

    def __init__(self, emitter: Emitter, types: Sequence[LLVMType], start: Sequence[str], source: str):
        self.fn = emitter.fn
        self.start, self.source, self.types = start, source, types
        self.names = [self.fn.fresh("phi") for _ in types]
        self.places = [self.fn.reserve() for _ in types]

    def close(self, units: Sequence[str], source: str) -> None:
        """Give the units that come back from `source`."""
        rows = zip(self.names, self.places, self.types, self.start, units, strict=True)
        for name, place, type_, first, unit in rows:
            self.fn.fill(place, f"{name} = {phi_text(str(type_), [(first, self.source), (unit, source)])}")


def _block_of(region: Any) -> Block:
    return region.block


def _operands(block: Block) -> list[SSAValue]:
    assert block.last_op is not None
    return list(block.last_op.operands)


@CONTROL.register(scf.ForOp)
def emit_for(emitter: Emitter, op: scf.ForOp) -> None:
    """Emit a canonical counted loop: preheader, head with phis and `slt`, body, back edge (not to unroll)."""
    fn, block = emitter.fn, _block_of(op.body)
    lower, upper, step = (emitter.unit(v) for v in (op.lb, op.ub, op.step))
    types, start = _flatten(emitter, list(op.iter_args))
    index = emitter.unit_type(op.lb.type)
    head, body, exit_ = fn.label("for.head"), fn.label("for.body"), fn.label("for.exit")
    before = fn.block
    fn.branch(head)
    fn.start(head)
    phis = _Phis(emitter, [index, *types], [lower, *start], before)
    counter, *carried = phis.names
    fn.branch_if(emitter.ops.compare("slt", index, counter, upper), body, exit_)
    fn.start(body)
    emitter.bind(block.args[0], [counter])
    _unflatten(emitter, block.args[1:], carried)
    emitter.emit_block(block)
    _, yielded = _flatten(emitter, _operands(block))
    following = fn.assign(f"add nsw {index} {counter}, {step}")
    phis.close([following, *yielded], fn.block)
    fn.branch(head, f", !llvm.loop {emitter.module.loop()}")
    fn.start(exit_)
    _unflatten(emitter, list(op.results), carried)


@CONTROL.register(scf.IfOp)
def emit_if(emitter: Emitter, op: scf.IfOp) -> None:
    """Emit a branch; results become phis."""
    fn = emitter.fn
    has_else = bool(op.false_region.blocks)
    then, join = fn.label("then"), fn.label("join")
    otherwise = fn.label("else") if has_else else join
    fn.branch_if(emitter.unit(op.cond), then, otherwise)
    ends: list[tuple[list[str], str]] = []
    for label, region in ((then, op.true_region), (otherwise, op.false_region)):
        if label == join:
            continue
        fn.start(label)
        block = _block_of(region)
        emitter.emit_block(block)
        ends.append((_flatten(emitter, _operands(block))[1], fn.block))
        fn.branch(join)
    fn.start(join)
    types = [type_ for result in op.results for type_ in emitter.carried_types(result.type)]
    sources = list(zip(*(units for units, _ in ends), strict=True))
    labels = [label for _, label in ends]
    phis = [
        fn.phi(str(type_), list(zip(units, labels, strict=True))) for type_, units in zip(types, sources, strict=True)
    ]
    _unflatten(emitter, list(op.results), phis)


@CONTROL.register(scf.WhileOp)
def emit_while(emitter: Emitter, op: scf.WhileOp) -> None:
    """Emit a loop that tests in its first region."""
    fn, before, after = emitter.fn, _block_of(op.before_region), _block_of(op.after_region)
    types, start = _flatten(emitter, list(op.arguments))
    head, body, exit_ = fn.label("while.head"), fn.label("while.body"), fn.label("while.exit")
    source = fn.block
    fn.branch(head)
    fn.start(head)
    phis = _Phis(emitter, types, start, source)
    _unflatten(emitter, before.args, phis.names)
    emitter.emit_block(before)
    condition, *passed = _operands(before)
    for value, argument, result in zip(passed, after.args, op.results, strict=True):
        emitter.bind(argument, emitter.units(value))
        emitter.bind(result, emitter.units(value))
    fn.branch_if(emitter.unit(condition), body, exit_)
    fn.start(body)
    emitter.emit_block(after)
    phis.close(_flatten(emitter, _operands(after))[1], fn.block)
    fn.branch(head, f", !llvm.loop {emitter.module.loop()}")
    fn.start(exit_)


@CONTROL.register(scf.YieldOp, scf.ConditionOp)
def emit_region_end(emitter: Emitter, op: scf.YieldOp | scf.ConditionOp) -> None:
    """Emit nothing: the op that holds the region reads the operands."""
