"""Splits products with few rows where their right operand is masked: a branch multiplies it as it lies in memory.

Before::

    %kept = select (%n + arange < %length), (load %v[%n, 0]), 0.0
    %sum = mma %weights, %kept, %acc

After::

    %sum = scf.if (%n <= %n + 63 < %length) { yield mma %weights, (load %v[%n, 0]), %acc }
    else { yield mma %weights, (select (%n + arange < %length), (load %v[%n, 0]), 0.0), %acc }

Few rows take no longer than memory gives the operand, if it is read in place. A mask would have it copied, though all
tiles but the last of a sequence are whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in
from tessera.lower.vector.packing import FEW_ROWS
from tessera.schedule.cpu.boxes import source_box
from tessera.schedule.cpu.cpu_pass import CpuPass

LESSER = {"lt": 0, "le": 0, "gt": 1, "ge": 1}
"""Which side of a comparison is the lesser one."""
MOST_PARTS = 16
"""Ops of a mask at most: the answer for a tile takes no longer than a row of it."""


@dataclass(frozen=True)
class SplitMasksPass(CpuPass):
    """Rewrites products whose right operand is a masked box of a tensor.

    Args:
        target: the CPU.
        knobs: without `in_place`, no operand is read where it lies.
    """

    name: ClassVar[str] = "split-masks"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite the products of every kernel of the module in place."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)] if self.knobs.in_place != 0 else []:
            for op in [op for op in ops_in(kernel) if isinstance(op, MmaOp)]:
                mask = _mask(op) if shape_of(op.a.type)[0] <= FEW_ROWS else None
                if mask is not None:
                    _split(op, mask)


def _mask(op: MmaOp) -> ElementwiseOp | None:
    """Return the choice between a product's right operand, a box, and something else by a mask with one answer."""
    chosen = _source(op.b)
    if not isinstance(chosen, ElementwiseOp) or chosen.fn.data != "select":
        return None
    box, mask = source_box(chosen.args[1]), chosen.args[0]
    if box is None or len(box[0].kept) != 2 or not _reads_last(box[0], op):
        return None
    return chosen if sum(1 for _ in _parts(mask)) <= MOST_PARTS and _answerable(mask) else None


def _source(value: SSAValue) -> Operation | Block:
    """Return what makes a matrix, but for conversions and transposes."""
    while isinstance(value.owner, CastOp | TransposeOp):
        value = value.owner.source
    return value.owner


def _reads_last(load: LoadOp, op: Operation) -> bool:
    """Return whether nothing is written between a load and an op after it in its block."""
    between = load.next_op
    while between is not None and between is not op:
        if between.regions or (effect_of(between) > Effect.RANDOM and not isinstance(between, LoadOp)):
            return False
        between = between.next_op
    return between is op


def _parts(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the tiles that a tile is made of, each as often as it is used."""
    yield value
    if isinstance(value.owner, Operation):
        for operand in value.owner.operands:
            if isinstance(operand.type, TileType):
                yield from _parts(operand)


def _answerable(mask: SSAValue) -> bool:
    """Return whether a mask compares sums of positions and scalars."""
    owner = _unmoved(mask)
    if not isinstance(owner, ElementwiseOp):
        return False
    if owner.fn.data == "and":
        return all(map(_answerable, owner.args))
    return owner.fn.data in LESSER and all(map(_is_range, owner.args))


def _unmoved(value: SSAValue) -> Operation | Block:
    """Return what makes a tile, but for repeated and added axes."""
    while isinstance(value.owner, BroadcastOp | ReshapeOp | TransposeOp):
        value = value.owner.source
    return value.owner


def _is_range(value: SSAValue) -> bool:
    if not _is_integer(value):
        return False
    owner = _unmoved(value)
    if isinstance(owner, CastOp):
        return _is_integer(owner.source) and _bits(owner.source) <= _bits(value) and _is_range(owner.source)
    if isinstance(owner, ElementwiseOp):
        return owner.fn.data == "add" and all(map(_is_range, owner.args))
    return isinstance(owner, SplatOp | ArangeOp)


def _is_integer(value: SSAValue) -> bool:
    element = element_of(value.type)
    return element == index or (dtype_of(element).kind == "int" and dtype_of(element).bits >= 32)


def _bits(value: SSAValue) -> int:
    element = element_of(value.type)
    return 64 if element == index else dtype_of(element).bits


def _split(op: MmaOp, chosen: ElementwiseOp) -> None:
    """Replace a product by a branch on whether the mask holds for the whole tile."""
    insert = Inserter(InsertPoint.before(op), op)
    whole, masked = Block(), Block()
    test = _Answer(insert).all_true(chosen.args[0])
    _write(op, whole, {chosen.result: chosen.args[1]})
    _write(op, masked, {})
    branch = scf.IfOp(test, [op.result.type], Region(whole), Region(masked))
    insert.add(branch)
    op.result.replace_all_uses_with(branch.results[0])
    _erase(op)


def _write(op: MmaOp, block: Block, instead: dict[SSAValue, SSAValue]) -> None:
    """Write a product, with all that its right operand is made of, into a block that yields it."""
    made = dict[SSAValue, SSAValue]()
    right = _copied(op.b, op, block, instead, made)
    product = op.clone({op.b: right})
    block.add_ops([product, scf.YieldOp(product.results[0])])


def _copied(
    value: SSAValue, op: Operation, block: Block, instead: dict[SSAValue, SSAValue], made: dict[SSAValue, SSAValue]
) -> SSAValue:
    """Return a tile made again in a block, if it is made beside an op."""
    value = instead.get(value, value)
    owner = value.owner
    if not isinstance(owner, Operation) or owner.parent is not op.parent or not isinstance(value.type, TileType):
        return value
    if value not in made:
        operands = {each: _copied(each, op, block, instead, made) for each in owner.operands}
        copy = owner.clone(operands)
        block.add_op(copy)
        made[value] = copy.results[0]
    return made[value]


def _erase(op: Operation) -> None:
    """Erase an op that nothing uses, and what it alone used of its block."""
    owners = dict.fromkeys(value.owner for value in op.operands)
    block = op.parent
    Rewriter.erase_op(op)
    for owner in owners:
        if isinstance(owner, Operation) and owner.parent is block and _is_unused(owner):
            _erase(owner)


def _is_unused(op: Operation) -> bool:
    """Return whether an op does nothing but give results that nothing uses."""
    return not any(result.uses.get_length() for result in op.results) and (
        isinstance(op, LoadOp) or effect_of(op) == Effect.PURE
    )


class _Answer:
    """Writes whether a mask holds for a whole tile.

    A sum may wrap around: then its ends are in the wrong order, as ranges are no longer than tiles.
    """

    def __init__(self, insert: Inserter):
        self.insert = insert

    def all_true(self, mask: SSAValue) -> SSAValue:
        """Return whether all elements are true."""
        owner = _unmoved(mask)
        assert isinstance(owner, ElementwiseOp)
        if owner.fn.data == "and":
            return self.insert.binary("and", *map(self.all_true, owner.args))
        ends = [self._ends(arg) for arg in owner.args]
        side = LESSER[owner.fn.data]
        less = "lt" if owner.fn.data in ("lt", "gt") else "le"
        total = self.insert.binary(less, ends[side][1], ends[1 - side][0])
        for low, high in ends:
            if low is not high:
                total = self.insert.binary("and", total, self.insert.binary("le", low, high))
        return total

    def _ends(self, value: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the smallest and the largest element."""
        owner, element = _unmoved(value), element_of(value.type)
        if isinstance(owner, SplatOp):
            return owner.value, owner.value
        if isinstance(owner, ArangeOp):
            first, last = (ConstantOp(at, element) for at in (0, shape_of(owner.result.type)[0] - 1))
            return self.insert.value(first), self.insert.value(last)
        if isinstance(owner, CastOp):
            low, high = self._ends(owner.source)
            first = self.insert.value(CastOp(low, element))
            return first, first if low is high else self.insert.value(CastOp(high, element))
        assert isinstance(owner, ElementwiseOp)
        (a, b), (c, d) = map(self._ends, owner.args)
        first = self.insert.binary("add", a, c)
        return first, first if a is b and c is d else self.insert.binary("add", b, d)
