"""A step that is a group of maps, as graphs have them, with operands and results beside the product's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import Any, Literal

import tessera as ts
from tessera.data import dataclass
from tessera.frontend.group.accesses import Shape
from tessera.frontend.group.tiles import computed
from tessera.frontend.structure import ConstantField, Field, Layout, ScalarField, TensorField
from tessera.numerics.dtypes import DType
from tessera.ops.epilogue.chain import FORMALS, Step

Axis = Literal["tensor", "row", "col", "full"]
"""What of a result an array's elements belong to: all of it, rows, columns, or each element."""


@dataclass(frozen=True, slots=True)
class Beside:
    """An array that a step reads or writes beside the result.

    Args:
        axis: what its elements belong to.
        batched: whether each matrix of a batch has its own.
        dtype: its dtype.
    """

    axis: Axis
    batched: bool
    dtype: DType

    def layout(self, label: str, entry: Any) -> Layout:
        """Return how a kernel takes it."""
        own = {"tensor": (1,), "row": ("rows",), "col": ("cols",), "full": ("rows", "cols")}[self.axis]
        dims: tuple[str | int, ...] = ("batch", *own) if self.batched else own
        fields: tuple[tuple[str, Field], ...] = (
            ("values", TensorField(dims, self.dtype)),
            ("axis", ConstantField(self.axis)),
            ("batched", ConstantField(self.batched)),
        )
        return Layout.of(label, entry, FORMALS, fields)


@dataclass(frozen=True, slots=True)
class Maps:
    """A group of maps of a product's result.

    Args:
        ops: their text.
        form: how they see a tile: axis 0 goes along rows, 1 along columns; the first result is the step's.
        source: the number of the product among the group's operands.
        reads: the other arrays that it reads, in the order of the form.
        writes: what it writes beside the step's result, in that order; last the product itself, where it is wanted.
        dtype: dtype of the step's result.
        flops: operations for each element.
    """

    ops: str
    form: Shape
    source: int
    reads: tuple[Beside, ...]
    writes: tuple[Beside, ...]
    dtype: DType
    flops: int

    @property
    def layout(self) -> Layout:
        """What of the step is compiled in."""
        fields: tuple[tuple[str, Field], ...] = (
            ("ops", ConstantField(self.ops)),
            ("form", ConstantField(json.dumps(self.form.as_data()))),  # keys tell tuples apart that share parts
            ("source", ConstantField(self.source)),
            ("operands", tuple(one.layout("operand", _part) for one in self.reads)),
            ("goals", tuple(one.layout("goal", _put) for one in self.writes)),
            *((f"n{at}", ScalarField(ts.i64)) for at in range(len(self.form.sizes))),
        )
        return Layout.of("maps", _maps, FORMALS, fields)

    @property
    def weight(self) -> int:
        """The registers that it needs beside the result, as of a step: for what of each whole array is under way."""
        whole = [one.dtype.bytes for one in (*self.reads, *self.writes) if one.axis == "full"]
        held = sum(2 if size == 1 else ceil(size / 4) for size in whole)  # bytes are loaded one by one
        return sum(held > most for most in (2, 4))

    def step(self, arrays: Sequence[Any], sizes: Sequence[int]) -> Step:
        """Return the step.

        Args:
            arrays: what it reads, then what it writes beside the result.
            sizes: the sizes that the ops ask for.
        """
        return Step(self.layout, (*arrays, *sizes), _no_reference, self.flops, self.dtype, self.weight)


@ts.function
def _maps(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    return computed(self, x, rows, cols, batch)


@ts.function
def _part(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> Any:
    """Load what of an operand belongs to a tile."""
    if self.axis == "tensor":
        return self.values[batch, 0] if self.batched else self.values[0]
    if self.axis == "full":
        if self.batched:
            return self.values[batch, rows : rows + x.shape[0], cols : cols + x.shape[1]]
        return self.values[rows : rows + x.shape[0], cols : cols + x.shape[1]]
    start, size = (rows, x.shape[0]) if self.axis == "row" else (cols, x.shape[1])
    return self.values[batch, start : start + size] if self.batched else self.values[start : start + size]


@ts.function
def _put(self: Any, x: Any, rows: Any, cols: Any, batch: Any) -> None:
    """Store a tile."""
    if self.batched:
        self.values[batch, rows : rows + x.shape[0], cols : cols + x.shape[1]] = x
    else:
        self.values[rows : rows + x.shape[0], cols : cols + x.shape[1]] = x


def _no_reference(_x: Any) -> Any:
    raise NotImplementedError("the graph says what it computes")
