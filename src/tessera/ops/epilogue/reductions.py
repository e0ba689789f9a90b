"""Steps that combine the results of each row or column to one number, beside what the kernel stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import tessera as ts
from tessera.errors import CallError, caller_location
from tessera.frontend.annotations import ConstexprAnnotation
from tessera.frontend.structure import ConstantField, Field, Layout, TensorField
from tessera.ops import arrays
from tessera.ops.epilogue.chain import FORMALS, Step, bad_argument, wrong_rank
from tessera.ops.refusals import checked
from tessera.ops.templates import annotated

P, B, L = ts.dims("P B L")

Line = Literal["row", "col"]
Combine = Literal["sum", "max", "min", "absmax"]

SLOT = 16
"""Columns (or rows) of the result that share one partial result; tiles are multiples of it."""


@ts.function
def _neutral(op: Any) -> Any:
    return 0.0 if op == "sum" or op == "absmax" else (float("inf") if op == "min" else -float("inf"))


@ts.function
def _combine(x: Any, op: Any, axis: Any) -> Any:
    if op == "absmax":
        return ts.tile.reduce(ts.tile.abs(x), axis=axis, op="max")
    return ts.tile.reduce(x, axis=axis, op=op)


@ts.function
def _reduce(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    """Store a tile's partial results, and the neutral element in the other slots that it covers."""
    across, along = (x.shape[1], x.shape[0]) if self.axis == "row" else (x.shape[0], x.shape[1])
    assert across % SLOT == 0, "an epilogue's reduction needs tiles of a multiple of 16 rows and columns"
    first, start = (cols, rows) if self.axis == "row" else (rows, cols)
    lanes = first + ts.tile.arange(across, dtype=ts.i64)
    if self.axis == "row":
        masked = ts.tile.where((lanes < self.cols)[None, :], x, _neutral(self.op))
        part = _combine(masked, self.op, 1)
    else:
        masked = ts.tile.where((lanes < self.rows)[:, None], x, _neutral(self.op))
        part = _combine(masked, self.op, 0)
    is_first = ts.tile.arange(across // SLOT) < 1
    spread = ts.tile.where(is_first[:, None], part[None, :], _neutral(self.op))
    slot = first // SLOT
    at = 0 if batch is None else batch
    self.partials[slot : slot + across // SLOT, at, start : start + along] = spread
    return x


def _finish(partials: Any, out: Any, op: Any) -> Any:
    for b, i in ts.tile.grid((B, 1), (L, 128)):
        total = ts.tile.full((128,), _neutral(op), ts.f32)
        for p in ts.tile.range(0, P, SLOT):
            part = ts.tile.load(partials[p : p + SLOT, b, i : i + 128], fill=_neutral(op))
            both = ts.tile.reduce(part, axis=0, op="max" if op == "absmax" else op)
            if op == "sum":
                total = total + both
            elif op == "min":
                total = ts.tile.minimum(total, both)
            else:
                total = ts.tile.maximum(total, both)
        out[b, i : i + 128] = total


_finish_kernel = ts.kernel(
    annotated(
        _finish,
        {
            "partials": ts.Tensor[P, B, L, ts.f32],
            "out": ts.Tensor[B, L, ts.f32],
            "op": ConstexprAnnotation(str),
        },
    )
)


class _Reduction(Step):
    """A step with partial results.

    Args:
        out: where results go.
        axis: `row` for one number of each row, `col` for one of each column.
        op: how results are combined.
        values: the partial results; `out` itself where there are none yet.
    """

    __slots__ = ("axis", "op", "out")

    def __init__(self, out: Any, axis: Line, op: Combine, rank: int, values: tuple[Any, ...]) -> None:
        own: str | int = "batch" if rank == 2 else 1
        fields: tuple[tuple[str, Field], ...] = (
            ("partials", TensorField(("slots", own, "rows" if axis == "row" else "cols"), ts.f32)),
            ("axis", ConstantField(axis)),
            ("op", ConstantField(op)),
        )
        super().__init__(Layout.of(f"{axis}_{op}", _reduce, FORMALS, fields), values, lambda x: x)
        self.out = out
        self.axis: Line = axis
        self.op: Combine = op
        self.needs_sizes = True

    @property
    def reduces(self) -> str:
        """What its numbers belong to."""
        return self.axis

    def bound(self, sizes: Mapping[str, int]) -> Step:
        """Return the step with memory for partial results, once the tensor they are combined to is checked."""
        rows, cols = sizes["rows"], sizes["cols"]
        along, across = (rows, cols) if self.axis == "row" else (cols, rows)
        shape = arrays.view(self.out, self.layout.label).shape
        batch = sizes.get("batch", 1)
        if shape != ((along,) if "batch" not in sizes else (batch, along)):
            raise CallError(
                f"{self.layout.label}: the tensor has the shape {shape}, and the result "
                f"{'' if batch == 1 else f'{batch} times '}{along} {self.axis}s",
                code="wrong-shape",
                location=caller_location(),
                help="give one element for each",
            )
        partials = arrays.maker(self.out, (-(-across // SLOT), batch, along), ts.f32)(self.out)
        return _Reduction(self.out, self.axis, self.op, len(shape), (partials,))

    def finish(self, stream: Any = None) -> None:
        """Combine the partial results, in a fixed order."""
        out = self.out if len(self.out.shape) == 2 else self.out[None]
        named: dict[str, Any] = {} if stream is None else {"stream": stream}
        _finish_kernel(*self.values, out, self.op, **named)


@checked
def row_sum(out: Any) -> Step:
    """Write the sum of each row to a tensor, beside what the kernel stores; the results pass on unchanged.

    Args:
        out: f32 `(M,)`, or `(B, M)` in a batch.
    """
    return reduction(out, "row", "sum")


@checked
def row_max(out: Any) -> Step:
    """Write the largest element of each row; see `row_sum`.

    Args:
        out: f32 `(M,)`, or `(B, M)` in a batch.
    """
    return reduction(out, "row", "max")


@checked
def col_sum(out: Any) -> Step:
    """Write the sum of each column; see `row_sum`.

    Args:
        out: f32 `(N,)`, or `(B, N)` in a batch.
    """
    return reduction(out, "col", "sum")


@checked
def col_max(out: Any) -> Step:
    """Write the largest element of each column; see `row_sum`.

    Args:
        out: f32 `(N,)`, or `(B, N)` in a batch.
    """
    return reduction(out, "col", "max")


@checked
def reduction(out: Any, axis: Literal["row", "col"], op: Combine) -> Step:
    """Combine each row's or column's results to one number, at this place of the chain.

    Each tile stores partial results, and a second small launch combines them in a fixed order: no atomics, so the
    bits are the same on every run. Of no elements, sums and largest absolute values are 0, the largest is -inf and the
    smallest inf.

    Args:
        out: f32 tensor that is written: one element for each row or column, with a batch before it in a batch.
        axis: `row` for one number of each row, `col` for one of each column.
        op: `sum`, `max`, `min`, or `absmax` for the largest absolute value.

    Raises:
        CallError: `wrong-rank`, `wrong-dtype` or `bad-argument`.
    """
    if axis not in ("row", "col") or op not in ("sum", "max", "min", "absmax"):
        raise bad_argument(f"reduction: axis {axis!r}, op {op!r}", "row or col; sum, max, min or absmax")
    label = f"{axis}_{op}"
    found = arrays.view(out, label)
    if found.dtype != ts.f32:
        raise CallError(
            f"{label}: the tensor is {found.dtype}",
            code="wrong-dtype",
            location=caller_location(),
            help="pass f32",
        )
    if len(found.shape) not in (1, 2):
        raise wrong_rank(label, found.shape, "a vector, or (B, n) in a batch")
    return _Reduction(out, axis, op, len(found.shape), (out,))
