"""Operands of tf32 products, rounded on their way to the matrix units (Hopper).

A warpgroup instruction takes f32 data and drops the bits that tf32 lacks. Operands are rounded first, to nearest even:
by the copy engine where it fetches a tile for products alone, else by the threads::

    %b = load %B[%k, %n]                 %b = load %B[%k, %n]
    %next = mma %a, %b, %acc      =>     %r = round_tf32 %b; %next = mma %a, %r, %acc

What an instruction reads from shared memory must be contiguous along K (PTX ISA 9.2, "wgmma.mma_async": only 16-bit
types have transposition bits). A tile that is not is therefore treated as a computed operand
(`schedule.hopper.prologue`): it is copied to shared memory as it lies and read from there into registers; where both
operands are of that kind, the threads transpose the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import RoundTf32Op
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import SharedType
from tessera.ir.walking import ops_in
from tessera.schedule.gpu.copies import qualifies
from tessera.schedule.hopper.boxes import is_tf32, k_dimensions
from tessera.schedule.products import needs_threads


def round_operands(kernel: KernelOp, grid: GridOp, fetched: Callable[[LoadOp], bool]) -> list[RoundTf32Op]:
    """Let threads round the operands of tf32 products that copies do not round; return what was added.

    Args:
        kernel: the kernel.
        grid: one of its launches.
        fetched: whether the producer role will fetch an operand.
    """
    products = [op for op in ops_in(grid) if isinstance(op, MmaOp) and op.compute.data == "tf32"]
    copied = {
        load
        for load in ops_in(grid)
        if isinstance(load, LoadOp)
        and qualifies(load)
        and is_tf32(load)
        and not needs_threads(True, k_dimensions(load) == {_contiguous(kernel, load)})
        and fetched(load)
    }
    added: list[RoundTf32Op] = []
    for product in products:
        for place in (0, 1):
            value = product.operands[place]
            if isinstance(value.type, SharedType) or _loaded(value.owner) in copied:
                continue
            op = RoundTf32Op(value)
            Inserter(InsertPoint.before(product), product).add(op)
            product.operands[place] = op.result
            added.append(op)
    return added


def undo(added: Sequence[RoundTf32Op]) -> None:
    """Remove what `round_operands` added."""
    for op in added:
        op.result.replace_all_uses_with(op.source)
        Rewriter.erase_op(op)


def _loaded(owner: object) -> Operation | None:
    while isinstance(owner, TransposeOp):
        owner = owner.source.owner
    return owner if isinstance(owner, LoadOp) else None


def _contiguous(kernel: KernelOp, op: LoadOp) -> int | None:
    strides = kernel.info_of(op.tensor).strides
    return strides.index(1) if 1 in strides else None
