"""Operands that are computed from what a loop loads: dequantised, scaled, added up on the way to the product.

The copy engine fetches the raw tiles like operands, and consumers read them from the ring::

    %x = load %A[%m, %k]                    %x = shared_load %ring[%slot]
    %a = cast %x : i8 -> bf16       =>      %a = cast %x : i8 -> bf16
    %next = mma %a, %b, %acc                %next = mma %a, %b, %acc

A warpgroup instruction takes its left operand from registers, its right one from shared memory. So a product whose
right operand alone is computed is transposed: `a @ b` is `(bᵀ @ aᵀ)ᵀ`, and transposing what threads hold is free,
unless its rows are reduced, as scores of attention are: those of a transpose lie across all warps. A right operand that
is still computed is written to shared memory, where a fence hands it to the instruction::

    barrier; shared_store %b, %buffer; proxy_fence; barrier
    %next = mma %a, %buffer, %acc

A small load that the copy engine cannot fetch (a column of scales) stays with the threads that use it, one iteration
ahead in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter
from tessera.ir.loops import remade, with_arguments
from tessera.ir.notes import Unfit
from tessera.ir.tile.elementwise import BitcastOp, CastOp, ElementwiseOp, RoundTf32Op
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    ProxyFenceOp,
    SharedLoadOp,
    SharedStoreOp,
    SharedTransposeOp,
)
from tessera.ir.tile.structure import KernelOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.schedule.gpu.copies import Staged, qualifies, stored_transposed
from tessera.schedule.hopper.boxes import ahead_of, check_box, name_of
from tessera.schedule.hopper.limits import right_panels, why_not_staged
from tessera.schedule.hopper.rings import top_of

COMPUTES = (ElementwiseOp, CastOp, BitcastOp, RoundTf32Op, TransposeOp, BroadcastOp, ReshapeOp)
_MAPS = (ElementwiseOp, CastOp, BitcastOp, RoundTf32Op)
SMALL_BYTES = 1024
"""Most bytes of a tile that consumers load ahead: it takes few registers a thread."""


@dataclass(frozen=True)
class Product:
    """A product as warpgroups will compute it.

    Args:
        op: the product.
        turned: whether it is computed as the transpose of the product of the transposed operands.
    """

    op: MmaOp
    turned: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth."""
        rows, columns = shape_of(self.op.acc.type)
        depth = shape_of(self.op.a.type)[1]
        return (columns, rows, depth) if self.turned else (rows, columns, depth)

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Names of the dtypes of the left operand, the right one and the sum."""
        a, b, acc = (dtype_of(element_of(value.type)).name for value in (self.op.a, self.op.b, self.op.acc))
        if self.op.compute.data == "tf32":
            a = b = "tf32"
        return (b, a, acc) if self.turned else (a, b, acc)

    @property
    def right(self) -> SSAValue:
        """The operand that the instruction reads from shared memory."""
        return self.op.a if self.turned else self.op.b


def raw_boxes(kernel: KernelOp, loop: scf.ForOp, stored: set[SSAValue]) -> tuple[list[Staged], dict[LoadOp, str]]:
    """Return the loads of a loop that become copies which threads read, and why the others do not."""
    found: list[Staged] = []
    plain: dict[LoadOp, str] = {}
    for op in loop.body.block.ops:
        if not isinstance(op, LoadOp) or qualifies(op) or not isinstance(op.result.type, TileType):
            continue
        try:
            _check_raw(kernel, op, loop, stored)
        except Unfit as reason:
            plain[op] = str(reason)
        else:
            is_row = op.result.type.rank == 1
            found.append(Staged(op, False, "none") if is_row else Staged(op, stored_transposed(kernel, op), "panels"))
    return found, plain


def _check_raw(kernel: KernelOp, op: LoadOp, loop: scf.ForOp, stored: set[SSAValue]) -> None:
    if not ahead_of(op, loop):
        raise Unfit(f"where the tile of {name_of(kernel, op)} is depends on what the loop computes")
    if memory_of(op.tensor) in stored:
        raise Unfit(f"{name_of(kernel, op)} is stored to by the same launch")
    check_box(kernel, op)


def is_direct(value: SSAValue) -> bool:
    """Return whether a product reads an operand from shared memory as it was copied there."""
    owner = value.owner
    while isinstance(owner, TransposeOp):
        owner = owner.source.owner
    return isinstance(owner, LoadOp) and qualifies(owner)


def computed_from(value: SSAValue) -> set[LoadOp]:
    """Return the loads that a tile is computed from, element by element."""
    return {owner for owner in sources_of(value) if isinstance(owner, LoadOp)}


def sources_of(value: SSAValue) -> set[Operation | Block]:
    """Return what gives the tiles that a tile is computed from, element by element."""
    seen: set[SSAValue] = set()
    ahead = [value]
    while ahead:
        value = ahead.pop()
        if value not in seen and isinstance(value.owner, COMPUTES):
            ahead += value.owner.operands
        seen.add(value)
    return {value.owner for value in seen if not isinstance(value.owner, COMPUTES)}


def reduces_rows(op: MmaOp) -> bool:
    """Return whether rows of a product are reduced, or those of what follows from it element by element."""
    seen: set[SSAValue] = set()
    ahead: list[SSAValue] = [op.result]
    while ahead:
        value = ahead.pop()
        users = [use.operation for use in value.uses]
        if any(isinstance(user, ReduceOp) and user.axis.data == 1 for user in users):
            return True
        seen.add(value)
        ahead += {user.results[0] for user in users if _keeps_places(user, value)} - seen
    return False


def _keeps_places(op: Operation, value: SSAValue) -> bool:
    """Return whether an op makes elements of a tile of those in the same places."""
    return isinstance(op, _MAPS) or (isinstance(op, MmaOp) and op.acc is value)


def sink(load: LoadOp) -> None:
    """Move a load of a row down to the first op that computes with it, behind other shapes of it: it takes registers.

    Its loop stores nothing to what it reads.
    """
    block, moved = load.parent, list[Operation]([load])
    assert block is not None
    for op in moved:
        users = [use.operation for result in op.results for use in result.uses]
        moved += [user for user in users if isinstance(user, ReshapeOp | BroadcastOp) and user.parent is block]
    users = {top_of(use.operation, block) for op in moved for result in op.results for use in result.uses} - set(moved)
    first = next((op for op in block.ops if op in users), None)
    if first is not None:
        for op in moved:
            op.detach()
            block.insert_op_before(op, first)


def read_raw(staged: Staged, buffer: SSAValue) -> None:
    """Let threads read the buffer where they loaded the tile."""
    load = staged.load
    insert = Inserter(InsertPoint.before(load), load)
    load.result.replace_all_uses_with(insert.value(SharedLoadOp(buffer)))
    Rewriter.erase_op(load)


def turn(op: MmaOp) -> MmaOp:
    """Replace a product by the transpose of the product of the transposed operands; return the new one."""
    insert = Inserter(InsertPoint.before(op), op)
    a, b = _transposed(insert, op.a), _transposed(insert, op.b)
    new = MmaOp(b, a, _transposed(insert, op.acc), op.compute.data)
    insert.add(new)
    op.result.replace_all_uses_with(insert.value(TransposeOp(new.result, [1, 0])))
    old = (op.a.owner, op.b.owner, op.acc.owner)
    Rewriter.erase_op(op)
    for owner in old:  # a transpose without a use would make its load look like more than an operand
        if isinstance(owner, TransposeOp) and not owner.result.uses.get_length():
            Rewriter.erase_op(owner)
    return new


def carry_turned(loop: scf.ForOp) -> scf.ForOp:
    """Let a loop carry the transposes of the tiles that it transposes both before their use and after it."""
    end, first = loop.body.block.last_op, 1
    assert end is not None
    turned = [
        place
        for place, (argument, value) in enumerate(zip(loop.body.block.args[first:], end.operands, strict=True))
        if _is_turn(value.owner) and all(_is_turn(use.operation) for use in argument.uses)
    ]
    if not turned:
        return loop
    before = Inserter(InsertPoint.before(loop), loop)
    initial = list(loop.iter_args)
    region = loop.detach_region(0)
    for place in turned:
        old, value = region.block.args[first + place], end.operands[place].owner
        assert isinstance(value, TransposeOp)
        initial[place] = _transposed(before, initial[place])
        end.operands[place] = value.source
        new = region.block.insert_arg(initial[place].type, first + place)
        for use in list(old.uses):
            use.operation.results[0].replace_all_uses_with(new)
            Rewriter.erase_op(use.operation)
        region.block.erase_arg(old)
        if not value.result.uses.get_length():
            Rewriter.erase_op(value)
    made = scf.ForOp(loop.lb, loop.ub, loop.step, initial, region)
    made.attributes.update(loop.attributes)
    before.add(made)
    after = Inserter(InsertPoint.after(made), made)
    for place, (old, new) in enumerate(zip(loop.results, made.results, strict=True)):
        if place in turned and old.uses.get_length():
            new = after.value(TransposeOp(new, [1, 0]))
        old.replace_all_uses_with(new)
    Rewriter.erase_op(loop)
    return made


def _is_turn(op: object) -> bool:
    return isinstance(op, TransposeOp) and op.permutation == (1, 0)


def _transposed(insert: Inserter, value: SSAValue) -> SSAValue:
    owner = value.owner
    if isinstance(owner, TransposeOp) and owner.permutation == (1, 0):
        return owner.source
    return insert.value(TransposeOp(value, [1, 0]))


def staged_bytes(product: Product) -> int:
    """Return the bytes of shared memory that a product's computed right operand takes."""
    if is_direct(product.right):
        return 0
    _, columns, depth = product.shape
    return columns * depth * dtype_of(element_of(product.right.type)).bytes


def stage_right(op: MmaOp, body: Block, along_k: bool) -> None:
    """Write a product's computed right operand to shared memory before it.

    Args:
        op: the product.
        body: the grid's block, which allocates the buffer.
        along_k: whether to store it with K contiguous.
    """
    depth, columns = shape_of(op.b.type)
    alloc = AllocSharedOp((columns, depth) if along_k else (depth, columns), element_of(op.b.type), "panels")
    Inserter(InsertPoint.at_start(body), op).add(alloc)
    insert = Inserter(InsertPoint.before(op), op)
    buffer = insert.value(SharedTransposeOp(alloc.result, [1, 0])) if along_k else alloc.result
    insert.add(BarrierOp())  # products of the iteration before have read it
    insert.add(SharedStoreOp(op.b, buffer))
    insert.add(ProxyFenceOp())
    insert.add(BarrierOp())
    op.operands[1] = buffer


def check_staged(product: Product) -> None:
    """Check that a computed right operand fills whole panels along K or along the columns.

    Raises:
        Unfit: it does not.
    """
    _, columns, depth = product.shape
    if (reason := why_not_staged(dtype_of(element_of(product.right.type)), columns, depth)) is not None:
        raise Unfit(reason)


def stored_along_k(kernel: KernelOp, op: MmaOp) -> bool:
    """Return whether to store a computed right operand with K contiguous: as its loads are, where sizes allow."""
    depth, columns = shape_of(op.b.type)
    along_k, along_columns = right_panels(dtype_of(element_of(op.b.type)), columns, depth)
    return along_k and (not along_columns or _runs_along_rows(kernel, op.b))


def spread_rows(kernel: KernelOp, products: Sequence[MmaOp], raw: set[LoadOp]) -> None:
    """Let products take the rows of their sums in the order in which threads read 32-bit left operands best.

    All sums of a launch share one order, so it is left alone unless every left operand qualifies.
    """
    for op in products:
        loads = computed_from(op.a)
        wide = all(dtype_of(element_of(load.result.type)).bytes == 4 for load in loads)
        if is_direct(op.a) or not loads <= raw or not wide or not _runs_along_rows(kernel, op.a):
            return
    for op in products:
        decisions.SPREAD_ROWS.write(op)


def _runs_along_rows(kernel: KernelOp, value: SSAValue) -> bool:
    """Return whether a tile's first axis is the contiguous one of what it is computed from."""
    owner = value.owner
    if isinstance(owner, TransposeOp):
        return not _runs_along_rows(kernel, owner.source)
    if isinstance(owner, LoadOp):
        return stored_transposed(kernel, owner)
    sources = [v for v in owner.operands if len(shape_of(v.type)) == 2] if isinstance(owner, COMPUTES) else []
    return bool(sources) and all(_runs_along_rows(kernel, source) for source in sources)


def load_ahead(loop: scf.ForOp, loads: list[LoadOp]) -> scf.ForOp:
    """Load small tiles one iteration ahead of their use, which then does not wait for memory."""
    if not loads:
        return loop
    before = Inserter(InsertPoint.before(loop), loop)
    counter = loop.body.block.args[0]
    first = [_reload(before, op, loop, {counter: loop.lb}) for op in loads]
    count = len(loop.body.block.args)
    loop = with_arguments(loop, first)
    block = loop.body.block
    start = Inserter(InsertPoint.at_start(block), loop)
    following = start.binary("add", block.args[0], loop.step)
    nexts = [_reload(start, op, loop, {block.args[0]: following}) for op in loads]
    for op, argument in zip(loads, block.args[count:], strict=True):
        op.result.replace_all_uses_with(argument)
        Rewriter.erase_op(op)
    end = block.last_op
    assert end is not None
    end.operands = [*end.operands, *nexts]
    return loop


def _reload(insert: Inserter, op: LoadOp, loop: scf.ForOp, known: dict[SSAValue, SSAValue]) -> SSAValue:
    offsets = [remade(insert, offset, loop, known) for offset in op.offsets]
    return insert.value(LoadOp(op.tensor, offsets, op.size_list, op.dropped))


def is_small(op: LoadOp) -> bool:
    """Return whether a load without mask or fill is small enough to be held a whole iteration."""
    tile = op.result.type
    assert isinstance(tile, TileType)
    return op.mask is None and op.fill is None and prod(tile.shape) * tile.dtype.bytes <= SMALL_BYTES
