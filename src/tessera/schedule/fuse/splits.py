"""Rows of a product that are split afterwards are split first, so that all maps of it are of one shape.

%y = tessera_graph.map "add"(%p, %q)                %a = tessera_graph.reshape %p -> <["B", "S", "N"]>
%z = tessera_graph.reshape %y                  →    %b = tessera_graph.reshape %q -> <["B", "S", "N"]>
       -> <["B", "S", "N"]>                         %z = tessera_graph.map "add"(%a, %b)
                                                    %y = tessera_graph.reshape %z -> <["B*S", "N"]>

Rows that are split lie where they lay: no element moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.sums import ContractOp
from tessera.ir.graph.types import ONE, dims_of
from tessera.ir.graph.views import BroadcastOp, ReshapeOp
from tessera.schedule.fuse.places import insert
from tessera.schedule.fuse.selection import of_others
from tessera.target.dims import Dim


def split_first(graph: GraphOp) -> None:
    """Rewrite a graph's maps of products."""
    follows: dict[SSAValue, bool] = {}
    for op in list(graph.body.block.ops):
        if isinstance(op, ReshapeOp) and _splits_rows(op):
            before = op.source.owner
            again = isinstance(before, ReshapeOp) and dims_of(before.source) == dims_of(op.result)
            if again or _follows(op.source, follows):
                op.result.replace_all_uses_with(_split(op.source, dims_of(op.result), follows))
                op.detach()
                op.erase()


def _splits_rows(op: ReshapeOp) -> bool:
    old, new = dims_of(op.source), dims_of(op.result)
    return len(old) == 2 < len(new) and op.places is None and old[-1] == new[-1]


def _follows(value: SSAValue, known: dict[SSAValue, bool]) -> bool:
    """Return whether a value is computed of a product by maps."""
    if value not in known:
        op = value.owner
        known[value] = isinstance(op, MapOp | CastOp) and any(
            isinstance(one.owner, ContractOp) or _follows(one, known) for one in op.operands
        )
    return known[value]


def _split(value: SSAValue, dims: Sequence[Dim], follows: dict[SSAValue, bool]) -> SSAValue:
    """Return a value whose rows are split, which is computed so where it follows from a product."""
    op = value.owner
    if isinstance(op, ReshapeOp) and dims_of(op.source) == tuple(dims):
        return op.source
    if isinstance(op, BroadcastOp):
        return _spread(op, dims)
    if not (isinstance(op, MapOp | CastOp) and follows.get(value)):
        return _reshaped(value, dims)
    args = [_split(arg, dims, follows) for arg in op.operands]
    made = of_others(op, args)
    joined = ReshapeOp(made.result, dims_of(value))
    insert([made, joined], op)
    value.replace_all_uses_with(joined.result)
    follows[joined.result] = False
    op.detach()
    op.erase()
    return made.result


def _spread(op: BroadcastOp, dims: Sequence[Dim]) -> SSAValue:
    """Return what is repeated along rows, columns or both as an array whose rows are split."""
    source, own = op.source, dims_of(op.source)
    last = len(dims) - 1
    rows = [axis for axis, at in enumerate(op.places) if at == 0 and own[axis] != ONE]
    columns = [axis for axis, at in enumerate(op.places) if at == 1]
    made: list[Operation] = []
    thin = [*(dims[:-1] if rows else ()), *(own[axis] for axis in columns)]
    if list(own) != thin:
        made.append(ReshapeOp(source, thin))
        source = made[-1].results[0]
    made.append(BroadcastOp(source, dims, [*(range(last) if rows else ()), *(last for _ in columns)]))
    insert(made, op)
    return made[-1].results[0]


def _reshaped(value: SSAValue, dims: Sequence[Dim]) -> SSAValue:
    made = ReshapeOp(value, dims)
    owner = value.owner
    if isinstance(owner, Operation):
        block, after = owner.parent_block(), owner
        assert block is not None, "an op of a graph is in its block"
        made.location = owner.location
        block.insert_op_after(made, after)
    else:
        block = owner
        assert block.first_op is not None, "a graph ends with its return"
        insert([made], block.first_op)
    return made.result
