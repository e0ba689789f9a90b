"""Which values of a kernel something comes back to: those that inputs move and that move outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection

from xdsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp, YieldOp
from xdsl.ir import Block, Operation, SSAValue

from tessera.autodiff.tiles.accesses import is_float
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.elementwise import BitcastOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.walking import ops_in


class Activity:
    """What moves with what.

    Args:
        kernel: the kernel.
        inputs: the tensors whose gradients are asked for.
        outputs: the tensors whose cotangents are given.
    """

    def __init__(self, kernel: KernelOp, inputs: Collection[SSAValue], outputs: Collection[SSAValue]) -> None:
        ops = list(ops_in(kernel))
        self.smooth: set[SSAValue] = {*inputs}
        """Floats, and tensors of them, that move when the inputs do."""
        self._touched: set[SSAValue] = {*inputs}
        """Values of any dtype that depend on the inputs."""
        self.useful: set[SSAValue] = {*outputs}
        """Values, and tensors, that the outputs depend on."""
        _repeat(lambda: [self._follow(op) for op in ops], self.smooth, self._touched)
        _repeat(lambda: [self._need(op) for op in reversed(ops)], self.useful)

    def __contains__(self, value: object) -> bool:
        """Return whether anything comes back to a value or a tensor."""
        return value in self.smooth and value in self.useful

    def touches(self, value: SSAValue) -> bool:
        """Return whether a value of any dtype depends on the inputs."""
        return value in self._touched

    def _mark(self, value: SSAValue, *sources: SSAValue | None) -> None:
        """Note what a value moves with: floats with floats; integers that are taken for floats with all."""
        found = [source for source in sources if source is not None]
        if any(source in self._touched for source in found):
            self._touched.add(value)
        if is_float(value) and any(source in self.smooth for source in found):
            self.smooth.add(value)

    def _follow(self, op: Operation) -> None:
        match op:
            case LoadOp() | GatherOp():
                self._mark(op.result, op.tensor, op.fill)
                if any(self.touches(operand) for operand in op.operands):
                    self._touched.add(op.result)
            case StoreOp() | ScatterOp():
                self._mark(op.tensor, op.value)
            case AtomicOp():
                self._mark(op.tensor, op.value, op.compare)
                if op.result is not None:
                    self._mark(op.result, op.tensor)
            case BitcastOp():
                self._mark(op.result, op.source)
                if is_float(op.result) and self.touches(op.source):
                    self.smooth.add(op.result)
            case _:
                self._follow_others(op)

    def _follow_others(self, op: Operation) -> None:
        for value, source in _handed_on(op):
            self._mark(value, source)
        if not isinstance(op, ForOp | WhileOp | KernelOp):
            for result in op.results:
                self._mark(result, *op.operands)
        if isinstance(op, ForOp | WhileOp | IfOp) and any(self.touches(operand) for operand in op.operands):
            self._touched.update(op.results)

    def _need(self, op: Operation) -> None:
        match op:
            case LoadOp() | GatherOp():
                if op.result in self.useful:
                    self.useful.add(op.tensor)
            case StoreOp() | ScatterOp() | AtomicOp():
                if op.tensor in self.useful and op.value is not None:
                    self.useful.add(op.value)
            case _:
                self.useful.update(source for value, source in _handed_on(op) if value in self.useful)
                if not op.regions and any(result in self.useful for result in op.results):
                    self.useful.update(op.operands)


def _handed_on(op: Operation) -> list[tuple[SSAValue, SSAValue]]:
    """Return the values that regions take and give, each with one that it may be."""
    match op:
        case ForOp():
            end = op.body.block.last_op
            assert end is not None, "a loop's body ends with its yield"
            carried = list(zip(op.body.block.args[1:], op.results, op.iter_args, end.operands, strict=True))
            return [
                (value, source)
                for arg, result, start, after in carried
                for value in (arg, result)
                for source in (start, after)
            ]
        case WhileOp():
            before, after = op.before_region.block, op.after_region.block
            tested, end = before.last_op, after.last_op
            assert isinstance(tested, ConditionOp), "a loop tests"
            assert isinstance(end, YieldOp), "a loop's body ends with its yield"
            pairs = [(arg, source) for args in (op.arguments, end.arguments) for arg, source in _zip(before, args)]
            pairs += [(arg, source) for arg, source in _zip(after, tested.args)]
            return [*pairs, *zip(op.results, tested.args, strict=True)]
        case IfOp():
            ends = [region.block.last_op for region in op.regions if region.blocks]
            return [pair for end in ends if end is not None for pair in zip(op.results, end.operands, strict=True)]
        case _:
            return []


def _zip(block: Block, sources: Collection[SSAValue]) -> list[tuple[SSAValue, SSAValue]]:
    return list(zip(block.args, sources, strict=True))


def _repeat(step: Callable[[], object], *found: set[SSAValue]) -> None:
    """Repeat a step until it finds nothing more."""
    size = -1
    while size != (size := sum(map(len, found))):
        step()
