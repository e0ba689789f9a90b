"""What stands outside of groups reads arrays in memory: constants are written first, other reductions made rows."""

from __future__ import annotations

from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.structure import CallOp, GraphOp, ReturnOp
from tessera.ir.graph.sums import PartsOp, ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import ONE, array_type, dims_of
from tessera.ir.graph.views import ConcatOp, PlaceOp, ReshapeOp, SliceOp, StopOp, TransposeOp
from tessera.schedule.fuse.joins import join, own_parts
from tessera.schedule.fuse.moves import move
from tessera.schedule.fuse.places import LOOSE, PLACED, is_view, root_of

_FLOATS = ("f64", "f32", "bf16", "f16")
_INTEGERS = ("i8", "u8", "i16", "i32", "i64")


def prepare(graph: GraphOp) -> None:
    """Rewrite a graph so that all that is left to kernels of groups can be one."""
    _tidy(graph)
    for op in list(graph.body.block.ops):
        if isinstance(op, StopOp):
            op.result.replace_all_uses_with(op.source)
            op.detach()
            op.erase()
    for op in list(graph.body.block.ops):
        if isinstance(op, CastOp) and _is_own(op):
            op.result.replace_all_uses_with(op.source)
            op.detach()
            op.erase()
    if any(isinstance(op, SliceOp | TakeOp | PlaceOp | ConcatOp) for op in graph.body.block.ops):
        join(graph)
        _tidy(graph)
        move(graph)
        _tidy(graph)
        own_parts(graph)
    for op in list(graph.body.block.ops):
        if isinstance(op, ReduceOp):
            _make_rows(op)
            _take_parts(op)
    for op in list(graph.body.block.ops):
        if (not isinstance(op, PLACED) and not is_view(op)) or (isinstance(op, ReduceOp) and library_reduces(op)):
            _write_constants(op)


def _tidy(graph: GraphOp) -> None:
    """Let ops that give the same be one, and drop those that nothing needs."""
    _share(graph)
    for op in reversed(list(graph.body.block.ops)):
        if op.results and not isinstance(op, CallOp) and not any(result.first_use for result in op.results):
            op.detach()
            op.erase()


def _share(graph: GraphOp) -> None:
    """Let ops that give the same be one; calls may do more than give, and results each have memory of their own."""
    known: dict[Any, Operation] = {}
    for op in list(graph.body.block.ops):
        if isinstance(op, CallOp) or not op.results or _is_returned(op):
            continue
        properties = sorted((name, str(value)) for name, value in op.properties.items())  # 0 and -0 differ
        key = op.name, tuple(op.operands), tuple(properties), tuple(op.result_types)
        first = known.setdefault(key, op)
        if first is not op:
            for mine, theirs in zip(op.results, first.results, strict=True):
                mine.replace_all_uses_with(theirs)
            op.detach()
            op.erase()


def _is_returned(op: Operation) -> bool:
    """Return whether an op gives a result of the graph, or what one is a view of."""
    users = [use.operation for result in op.results for use in result.uses]
    return any(isinstance(user, ReturnOp) or (_only_views(user) and _is_returned(user)) for user in users)


def _only_views(op: Operation) -> bool:
    return is_view(op) or isinstance(op, ReshapeOp | SliceOp)


def library_reduces(op: ReduceOp) -> bool:
    """Return whether the library has a reduction along its dimensions."""
    type_ = array_type(op.source)
    if op.fn.data == "sum":
        return type_.dtype.name in (*_FLOATS, "i64")
    one = len(op.reduced) in (1, type_.rank)
    return op.fn.data in ("max", "min") and one and type_.dtype.name in (*_FLOATS, *_INTEGERS)


def _make_rows(op: ReduceOp) -> None:
    """Let a reduction that neither the library nor a row's program has go along the last dimensions of a copy."""
    rank = array_type(op.source).rank
    left = [axis for axis in range(rank) if axis not in op.reduced]
    order = [*left, *op.reduced]
    if library_reduces(op) or order == sorted(order):
        return
    turned = TransposeOp(op.source, order)
    copied = CastOp(turned.result, array_type(turned.result).dtype)
    rows = ReduceOp(copied.result, op.fn.data, range(len(left), rank))
    _insert([turned, copied, rows], op)
    op.result.replace_all_uses_with(rows.result)
    op.detach()
    op.erase()


def _is_own(op: CastOp) -> bool:
    """Return whether an op copies what is computed for it alone, but for the shape."""
    value = op.source
    while isinstance(value.owner, ReshapeOp) and value.has_one_use():
        value = value.owner.source
    same = array_type(op.source).element == array_type(op.result).element
    return same and value.has_one_use() and isinstance(value.owner, MapOp | CastOp | TakeOp)


INNER, OUTER = 1024, 64
"""Elements along the last dimension, and along others, that a program combines."""


def _take_parts(op: ReduceOp) -> None:
    """Let the kernel that computes what the library reduces combine neighbours first: it writes a fraction."""
    if op.parent_block() is None or not isinstance(op.source.owner, MapOp | CastOp) or goes_along_rows(op):
        return
    dims = dims_of(op.source)
    wide = [axis for axis in op.reduced if dims[axis] != ONE]
    if not wide or not library_reduces(op):
        return
    axis = wide[-1]
    last = axis == max(at for at, dim in enumerate(dims) if dim != ONE)
    parts = PartsOp(op.source, op.fn.data, axis, INNER if last else OUTER)
    _insert([parts], op)
    op.operands[0] = parts.result


def goes_along_rows(op: ReduceOp) -> bool:
    """Return whether each row of a reduction is a program's; the library has code for wide ones and for columns."""
    dims = dims_of(op.source)
    left = [axis for axis, dim in enumerate(dims) if axis not in op.reduced and dim != ONE]
    along = [axis for axis in op.reduced if dims[axis] != ONE]
    last = not left or not along or left[-1] < along[0]
    return last and (bool(left) or not along or not library_reduces(op))


def _write_constants(op: Operation) -> None:
    """Let an op outside of groups read its constants, and views of them, from memory."""
    for place, operand in enumerate(op.operands):
        if isinstance(root_of(operand).owner, LOOSE):
            op.operands[place] = _written(operand, op)


def _written(value: SSAValue, op: Operation) -> SSAValue:
    copy = CastOp(value, array_type(value).dtype)
    _insert([copy], op)
    return copy.result


def _insert(made: list[Operation], before: Operation) -> None:
    block = before.parent_block()
    assert block is not None, "an op of a graph is in its block"
    for one in made:
        one.location = before.location
        block.insert_op_before(one, before)
