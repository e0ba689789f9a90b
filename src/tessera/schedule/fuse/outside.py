"""What stands outside of groups reads arrays in memory: constants are written first, other reductions made rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.ir.attributes import exact_text
from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.structure import CallOp, GraphOp, ReturnOp
from tessera.ir.graph.sums import PartsOp, ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import ONE, array_type, dims_of
from tessera.ir.graph.views import AliasOp, ConcatOp, OwnOp, PlaceOp, ReshapeOp, SliceOp, StopOp, TransposeOp
from tessera.schedule.fuse.integers import shorten_integers
from tessera.schedule.fuse.joins import join, own_parts
from tessera.schedule.fuse.moves import move
from tessera.schedule.fuse.places import LOOSE, PLACED, insert, is_spread, is_view, root_of
from tessera.schedule.fuse.products import merge_batches
from tessera.schedule.fuse.reshapes import compute_before_reshapes
from tessera.schedule.fuse.roundings import keep_compared, round_whole
from tessera.schedule.fuse.splits import split_first
from tessera.target.dims import Dim

_FLOATS = ("f64", "f32", "bf16", "f16")
_INTEGERS = ("i8", "u8", "i16", "i32", "i64")


def prepare(graph: GraphOp) -> None:
    """Rewrite a graph so that all that is left to kernels of groups can be one."""
    _drop_names(graph)
    keep_compared(graph)
    round_whole(graph)
    _tidy(graph)
    merge_batches(graph)
    split_first(graph)
    compute_before_reshapes(graph)
    _tidy(graph)
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
    shorten_integers(graph)
    _tidy(graph)
    for op in list(graph.body.block.ops):
        if isinstance(op, ReduceOp):
            for one in _by_runs(op):
                _take_parts(one)
    for op in list(graph.body.block.ops):
        if isinstance(op, ReduceOp):
            _make_rows(op)
    for op in list(graph.body.block.ops):
        if (not isinstance(op, PLACED) and not is_view(op)) or (isinstance(op, ReduceOp) and library_reduces(op)):
            _write_constants(op)


def _drop_names(graph: GraphOp) -> None:
    """Drop ops that are there for derivatives only: they give their first operands."""
    for op in list(graph.body.block.ops):
        if isinstance(op, StopOp | AliasOp | OwnOp):
            for result, value in zip(op.results, op.operands[: len(op.results)], strict=True):
                result.replace_all_uses_with(value)
            op.detach()
            op.erase()


def _tidy(graph: GraphOp) -> None:
    """Let ops that give the same be one, and drop those that nothing needs."""
    _share(graph)
    for op in reversed(list(graph.body.block.ops)):
        if op.results and not _acts(op) and not any(result.first_use for result in op.results):
            op.detach()
            op.erase()


def _share(graph: GraphOp) -> None:
    """Let ops that give the same be one; some calls do more than give, and results each have memory of their own."""
    known: dict[Any, Operation] = {}
    for op in list(graph.body.block.ops):
        if _acts(op) or not op.results or _is_returned(op):
            continue
        properties = sorted((name, exact_text(value)) for name, value in op.properties.items())
        key = op.name, tuple(op.operands), tuple(properties), tuple(op.result_types)
        first = known.setdefault(key, op)
        if first is not op:
            for mine, theirs in zip(op.results, first.results, strict=True):
                mine.replace_all_uses_with(theirs)
            op.detach()
            op.erase()


def _acts(op: Operation) -> bool:
    """Return whether an op may do more than give its results."""
    return isinstance(op, CallOp) and op.pure is None


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


def _by_runs(op: ReduceOp) -> list[ReduceOp]:
    """Let a reduction along the last dimensions and others be two: rows first, then what they give."""
    dims = dims_of(op.source)
    last = len(dims)
    while last - 1 in op.reduced or (last and dims[last - 1] == ONE):
        last -= 1
    rest = [axis for axis in op.reduced if axis < last and dims[axis] != ONE]
    left = any(dims[axis] != ONE for axis in range(last) if axis not in op.reduced)
    rows = [axis for axis in op.reduced if axis >= last]
    if not rest or not left or not rows or not is_static(dims):
        return [op]
    first = ReduceOp(op.source, op.fn.data, rows)
    second = ReduceOp(first.result, op.fn.data, [axis for axis in op.reduced if axis < last])
    insert([first, second], op)
    op.result.replace_all_uses_with(second.result)
    op.detach()
    op.erase()
    return [first, second]


def is_static(dims: Sequence[Dim]) -> bool:
    """Return whether all sizes are known when a graph is made."""
    return all(dim.is_static for dim in dims)


MOST_HELD = 512
"""Elements along dimensions other than the last ones that a program holds beside those of neighbouring columns."""
MOST_READ_AGAIN = 2048
"""The same where the result is repeated along what it is computed of, which otherwise would be read again: a softmax or
norm of columns (on an H200, µs for 1024 in f32: softmax 84 and 64, normalize 117 and 62; sums alone 28 and 29)."""
FEW_PROGRAMS, FEW_ELEMENTS = 64, 1 << 18
"""Programs that are worth a kernel; elements for which one is anyway."""


def goes_along_columns(op: ReduceOp) -> bool:
    """Return whether a program holds all elements of a reduction along other dimensions than the last ones."""
    dims = dims_of(op.source)
    wide = [axis for axis, dim in enumerate(dims) if dim != ONE]
    along = [axis for axis in op.reduced if dims[axis] != ONE]
    if not along or not is_static(dims) or wide[-1] in along:
        return False
    if wide.index(along[-1]) - wide.index(along[0]) != len(along) - 1:
        return False
    held = prod(dims[axis].scale for axis in along)
    outer = prod(dims[axis].scale for axis in wide[:-1] if axis not in along)
    inner = dims[wide[-1]].scale
    programs = outer * -(-inner // columns_beside(held))
    most = MOST_READ_AGAIN if is_spread(op.result) else MOST_HELD
    return held <= most and (programs >= FEW_PROGRAMS or held * outer * inner <= FEW_ELEMENTS)


def rows_held(rows: int, columns: int) -> int:
    """Return how many rows of a matrix a program holds whose columns are combined in steps, all where none fits.

    A power of two, or what fills most of one; there are enough programs, or few elements.
    """
    if rows <= OUTER:
        return rows
    few = rows * columns <= FEW_ELEMENTS
    fits = [
        size
        for size in range(LEAST_HELD, OUTER + 1)
        if rows % size == 0 and (few or rows // size * -(-columns // columns_beside(size)) >= FEW_PROGRAMS)
    ]
    return max(fits, key=lambda size: (size / power_of_two(size), size), default=rows)


def columns_beside(held: int) -> int:
    """Return how many neighbouring columns a program takes which holds so many elements of each."""
    return min(max(8192 // power_of_two(held), 16), 128)


def power_of_two(size: int) -> int:
    """Return the least power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()


def _make_rows(op: ReduceOp) -> None:
    """Let a reduction that neither the library nor a row's program has go along the last dimensions of a copy."""
    rank = array_type(op.source).rank
    left = [axis for axis in range(rank) if axis not in op.reduced]
    order = [*left, *op.reduced]
    if library_reduces(op) or order == sorted(order) or goes_along_columns(op):
        return
    turned = TransposeOp(op.source, order)
    copied = CastOp(turned.result, array_type(turned.result).dtype)
    rows = ReduceOp(copied.result, op.fn.data, range(len(left), rank))
    insert([turned, copied, rows], op)
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


LEAST_HELD = 8
"""Rows from which on what a program finds of them is little beside them."""
INNER, OUTER = 1024, 64
"""Elements along the last dimension, and along others, that a program combines."""
MOST_INNER = 4096
"""Elements along the last dimension that it does where they are known."""
WHOLE = 1 << 14
"""Elements of an array that one program combines."""


def _take_parts(op: ReduceOp) -> None:
    """Let the kernel that computes what the library reduces combine neighbours first: it writes a fraction."""
    if op.parent_block() is None or goes_along_rows(op) or goes_along_columns(op):
        return
    dims = dims_of(op.source)
    wide = [axis for axis in op.reduced if dims[axis] != ONE]
    fused = isinstance(op.source.owner, MapOp | CastOp)
    if not wide or not (_is_long(op, wide) or (library_reduces(op) and (fused or _is_whole(op)))):
        return
    axis = wide[-1]
    last = axis == max(at for at, dim in enumerate(dims) if dim != ONE)
    most, count = (MOST_INNER, INNER) if last else (OUTER, OUTER)
    if dims[axis].is_static:
        count = min(power_of_two(dims[axis].scale), most)
    parts = PartsOp(op.source, op.fn.data, axis, count)
    insert([parts], op)
    op.operands[0] = parts.result
    _take_columns(op)


def _take_columns(op: ReduceOp) -> None:
    """Let columns of parts be combined in steps, of which each is a kernel's that holds what it combines."""
    dims = dims_of(op.source)
    rows = prod(dims[axis].scale for axis in op.reduced)
    left = [axis for axis in range(len(dims)) if axis not in op.reduced and dims[axis] != ONE]
    if not is_static(dims) or left != [len(dims) - 1] or rows <= MOST_HELD:
        return
    held = rows_held(rows, dims[-1].scale)
    if rows // held > MOST_HELD or held == rows:
        return
    split = ReshapeOp(op.source, [Dim((), rows // held), Dim((), held), dims[-1]])
    first = ReduceOp(split.result, op.fn.data, [1])
    second = ReduceOp(first.result, op.fn.data, [0])
    shaped = ReshapeOp(second.result, dims_of(op.result))
    insert([split, first, second, shaped], op)
    op.result.replace_all_uses_with(shaped.result)
    op.detach()
    op.erase()


def _is_long(op: ReduceOp, wide: Sequence[int]) -> bool:
    """Return whether columns, neighbours in memory, are as long as those of parts are for one program."""
    dims = dims_of(op.source)
    if not is_static(dims) or len(wide) != 1:
        return False
    return MOST_HELD < dims[wide[0]].scale <= MOST_HELD * OUTER and dims[-1].scale >= OUTER


def _is_whole(op: ReduceOp) -> bool:
    """Return whether an array of known size becomes one number."""
    return is_static(dims_of(op.source)) and not any(dim != ONE for dim in dims_of(op.result))


def goes_along_rows(op: ReduceOp) -> bool:
    """Return whether each row of a reduction is a program's; the library has code for wide ones and for columns."""
    dims = dims_of(op.source)
    left = [axis for axis, dim in enumerate(dims) if axis not in op.reduced and dim != ONE]
    along = [axis for axis in op.reduced if dims[axis] != ONE]
    last = not left or not along or left[-1] < along[0]
    few = _is_whole(op) and prod(dim.scale for dim in dims) <= WHOLE
    return last and (bool(left) or not along or few or not library_reduces(op))


def _write_constants(op: Operation) -> None:
    """Let an op outside of groups read its constants, and views of them, from memory."""
    for place, operand in enumerate(op.operands):
        if isinstance(root_of(operand).owner, LOOSE):
            op.operands[place] = _written(operand, op)


def _written(value: SSAValue, op: Operation) -> SSAValue:
    copy = CastOp(value, array_type(value).dtype)
    insert([copy], op)
    return copy.result
