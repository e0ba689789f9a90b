"""Takes turns of warpgroups back where no warpgroup could end its own.

Two warpgroups start their products in turn: one waits in `take` until the other one has come to `pass`. A step between
the two that all warps take together, such as an exchange of elements between warps, would never end::

    turn take                              (the other warpgroup waits here)
    %a = tensor_core_start ...
    %b = exchange_warps %x  in %buffer     (this one waits for the other)
    %c = tensor_core_start ...
    turn pass

Which tiles are exchanged is known once all have their layouts. Turns order nothing but time, so a function is right
without them.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation

from tessera.ir.notes import add_note
from tessera.ir.target.cluster import ClusterBarrierOp, ClusterWaitOp
from tessera.ir.target.exchange import ExchangeWarpsOp
from tessera.ir.target.memory import BarrierOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.warpgroup import TurnOp
from tessera.ir.walking import ops_in

_TOGETHER = (BarrierOp, ClusterBarrierOp, ClusterWaitOp, ExchangeWarpsOp)


def take_back_turns(func: FuncOp) -> None:
    """Erase the turns of a function if warps of both warpgroups meet within one.

    Args:
        func: the function, with all its barriers.
    """
    turns = [op for op in ops_in(func) if isinstance(op, TurnOp)]
    taken = [op for op in turns if op.step.data == "take"]
    if any(isinstance(inner, _TOGETHER) for take in taken for op in _within(take) for inner in op.walk()):
        for op in turns:
            op.detach()
            op.erase()
        add_note(func, "pipeline", "no turns: all warps exchange elements between the products of one")


def _within(take: TurnOp) -> Iterator[Operation]:
    """Yield what a warpgroup does during a turn."""
    op = take.next_op
    while op is not None and not isinstance(op, TurnOp):
        yield op
        op = op.next_op
