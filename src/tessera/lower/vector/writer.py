"""Where new TIR-T ops go: the current block and location, loops, branches, and constants kept once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from xdsl.dialects import scf
from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tessera.ir.layouts import LinearLayout
from tessera.ir.target.arithmetic import ConstantOp, SplatOp
from tessera.ir.target.types import FragmentType, fragment_of
from tessera.ir.types import index
from tessera.lower.scalars import Scalars


class _CachedScalars(Scalars):
    """Scalars whose constants are emitted once, at the start of the function."""

    def __init__(self, writer: Writer):
        super().__init__(writer.insert, lambda: writer.location)
        self._entry = writer.block
        self._constants: dict[tuple[str, object], SSAValue] = {}

    def constant(self, value: int | float, type_: Attribute = index) -> SSAValue:
        """Return a constant."""
        key = (repr(value), type_)
        if key not in self._constants:
            op = ConstantOp(value, type_)
            first = self._entry.first_op
            if first is None:
                self._entry.add_op(op)
            else:
                self._entry.insert_op_before(op, first)
            self._constants[key] = op.result
        return self._constants[key]


class Writer:
    """Appends ops to the current block.

    Args:
        block: the entry block of the function.
    """

    def __init__(self, block: Block):
        self.block = block
        self.entry = block
        self.location: LocationAttr = UNKNOWN_LOC
        self.scalars: Scalars = _CachedScalars(self)

    def insert(self, op: Operation) -> None:
        """Append an op at the current location."""
        op.location = self.location
        self.block.add_op(op)

    def value(self, op: Operation) -> SSAValue:
        """Append an op and return its first result."""
        self.insert(op)
        return op.results[0]

    def at_entry(self, op: Operation) -> SSAValue:
        """Put an op at the start of the function and return its first result."""
        first = self.entry.first_op
        op.location = self.location
        if first is None:
            self.entry.add_op(op)
        else:
            self.entry.insert_op_before(op, first)
        return op.results[0]

    @contextmanager
    def inside(self, block: Block) -> Generator[None]:
        """Append to another block for a while."""
        before, self.block = self.block, block
        yield
        self.block = before

    def loop(
        self,
        lower: SSAValue | int,
        upper: SSAValue | int,
        step: SSAValue | int,
        carried: Sequence[SSAValue],
        body: Callable[[SSAValue, Sequence[SSAValue]], Sequence[SSAValue]],
    ) -> list[SSAValue]:
        """Append `scf.for`; `body(index, carried)` writes an iteration and returns what it carries on."""
        start, stop, by = (self.scalars.constant(v) if isinstance(v, int) else v for v in (lower, upper, step))
        block = Block(arg_types=[index, *(v.type for v in carried)])
        with self.inside(block):
            self.insert(scf.YieldOp(*body(block.args[0], list(block.args[1:]))))
        op = scf.ForOp(start, stop, by, list(carried), block)
        self.insert(op)
        return list(op.results)

    def branch(
        self,
        condition: SSAValue,
        then: Callable[[], Sequence[SSAValue]],
        otherwise: Callable[[], Sequence[SSAValue]] | None = None,
    ) -> list[SSAValue]:
        """Append `scf.if`; each side writes its block and returns its results."""
        blocks = [Block(), Block()]
        types: list[Attribute] = []
        for block, side in zip(blocks, (then, otherwise), strict=True):
            with self.inside(block):
                results = list(side()) if side is not None else []
                self.insert(scf.YieldOp(*results))
                types = [r.type for r in results]
        false_region = Region(blocks[1]) if otherwise is not None else None
        op = scf.IfOp(condition, types, Region(blocks[0]), false_region)
        self.insert(op)
        return list(op.results)

    def splat(self, value: SSAValue, width: int) -> SSAValue:
        """Return a scalar as a chunk of `width` lanes; a fragment stays."""
        if width == 1 or fragment_of(value.type) is not None:
            return value
        return self.value(SplatOp(value, chunk_layout(width)))


def chunk_layout(width: int) -> LinearLayout:
    """Return the layout of a chunk: neighbouring elements in the lanes of one vector."""
    return LinearLayout.make({"register": [(1 << bit,) for bit in range(width.bit_length() - 1)]}, (width,))


def chunk_type(element: Attribute, width: int) -> Attribute:
    """Return the type of a chunk of `width` elements, the element itself for one."""
    return element if width == 1 else FragmentType.of(element, chunk_layout(width))
