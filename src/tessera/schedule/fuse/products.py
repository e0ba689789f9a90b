"""Products of a batch with one matrix, or that are added up, are one product: of all rows, or with a longer sum."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.sums import ContractOp, ReduceOp
from tessera.ir.graph.types import ONE, array_type, dims_of, product
from tessera.ir.graph.views import BroadcastOp, ReshapeOp, SliceOp, TransposeOp
from tessera.schedule.fuse.places import insert


def merge_batches(graph: GraphOp) -> None:
    """Rewrite what a linear layer computes, and its gradients, to products of matrices.

    A sum over all leading dimensions of `aᵀ b` is `(all rows of a)ᵀ (all rows of b)`, and `a w` with one matrix `w` for
    all leading dimensions is `(all rows of a) w`.
    """
    for op in list(graph.body.block.ops):
        if isinstance(op, ReduceOp):
            _add_rows(op)
    for op in list(graph.body.block.ops):
        if isinstance(op, ContractOp):
            _join_rows(op)


def _add_rows(op: ReduceOp) -> None:
    whole, rank = op.source.owner, array_type(op.source).rank
    if not isinstance(whole, ContractOp) or not op.source.has_one_use() or op.fn.data != "sum":
        return
    source, outer = _turned(whole.left), list(range(rank - 2))
    if not outer or list(op.reduced) != outer or source is None:
        return
    rows = [_all_rows(side) for side in (source, whole.right)]
    left = TransposeOp(rows[0].result, [1, 0])
    _replace(op, [*rows, left, ContractOp(left.result, rows[1].result)])
    whole.detach()
    whole.erase()


def _join_rows(op: ContractOp) -> None:
    dims = dims_of(op.result)
    matrix = _one_matrix(op.right)
    if len(dims) < 3 or matrix is None or isinstance(op.left.owner, BroadcastOp | SliceOp | TransposeOp):
        return
    rows = _all_rows(op.left)
    found = ContractOp(rows.result, matrix[-1].result)
    _replace(op, [rows, *matrix, found, ReshapeOp(found.result, dims)])


def _all_rows(value: SSAValue) -> ReshapeOp:
    """Return a batch of matrices as one."""
    dims = dims_of(value)
    return ReshapeOp(value, [product(dims[:-1]), dims[-1]])


def _turned(value: SSAValue) -> SSAValue | None:
    """Return matrices that a value is the transposes of."""
    owner, rank = value.owner, array_type(value).rank
    if not isinstance(owner, TransposeOp) or list(owner.permutation) != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    return owner.source


def _one_matrix(value: SSAValue) -> list[ReshapeOp | TransposeOp] | None:
    """Return what makes the one matrix of which a value has many; None where they may differ."""
    source = _turned(value)
    owner = (value if source is None else source).owner
    if not isinstance(owner, BroadcastOp):
        return None
    own, rank = dims_of(owner.source), array_type(owner.result).rank
    kept = [dim for at, dim in zip(owner.places, own, strict=True) if at >= rank - 2]
    if kept != list(dims_of(owner.result)[-2:]) or any(dim != ONE for dim in own[: len(own) - 2]):
        return None
    plain = ReshapeOp(owner.source, kept)
    return [plain] if source is None else [plain, TransposeOp(plain.result, [1, 0])]


def _replace(op: ContractOp | ReduceOp, made: Sequence[Operation]) -> None:
    """Put ops in the place of one, whose result is that of the last of them."""
    insert([*made], op)
    op.result.replace_all_uses_with(made[-1].results[0])
    op.detach()
    op.erase()
