"""Appends ops to a graph, with NumPy's rules for shapes and the language's for dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr, ModuleOp
from xdsl.ir import Operation, SSAValue

from tessera.errors import TypeMismatchError, shown
from tessera.ir.graph.callees import Callee
from tessera.ir.graph.points import CastOp, FullOp, IotaOp, MapOp, SizeOp
from tessera.ir.graph.structure import CallOp, GraphOp, ReturnOp, UpdateOp
from tessera.ir.graph.sums import ContractOp, ReduceOp, product_dtype
from tessera.ir.graph.takes import AddRowsOp, StoredOp, TakeOp
from tessera.ir.graph.types import ONE, ZERO, ArrayType, array_type, dims_of, ordered, product
from tessera.ir.graph.views import (
    AliasOp,
    BroadcastOp,
    ConcatOp,
    OwnOp,
    PlaceOp,
    ReshapeOp,
    SliceOp,
    StopOp,
    TransposeOp,
)
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, promote, promote_numbers
from tessera.numerics.functions import domain_dtype, identity_of
from tessera.target.dims import Dim

Operand = SSAValue | int | float | bool
"""An array, or a number that takes the others' dtype."""


class GraphWriter:
    """A graph that is being written.

    Args:
        name: its name.
        arguments: the types of what it takes.
        hints: sizes of the symbols at the first call.
    """

    def __init__(self, name: str, arguments: Sequence[ArrayType], hints: Mapping[str, int]) -> None:
        self.graph = GraphOp(name, arguments)
        self.hints = hints
        self.location: LocationAttr = UNKNOWN_LOC
        self.equal: dict[tuple[Dim, Dim], None] = {}
        """Sizes that have to be equal in every call of the graph, though they are written differently."""
        self.callees: dict[str, Callee] = {}
        """What calls call, by name."""

    @property
    def arguments(self) -> Sequence[SSAValue]:
        """What the graph takes."""
        return self.graph.body.block.args

    def finish(self, results: Sequence[SSAValue]) -> ModuleOp:
        """End the graph and return a module with it."""
        self._add(ReturnOp(results))
        return ModuleOp([self.graph])

    def _add(self, op: Operation) -> Any:
        op.location = self.location
        self.graph.body.block.add_op(op)
        return op.results[0] if op.results else None

    def again(self, op: Operation, operands: Sequence[SSAValue]) -> SSAValue:
        """Return what an op gives for other operands of the same types."""
        return self._add(op.clone(dict(zip(op.operands, operands, strict=True))))

    # Points

    def full(self, value: float, dtype: DType) -> SSAValue:
        """Return a number as an array without dimensions.

        Raises:
            TypeMismatchError: `out-of-range` for an integer that the dtype does not hold.
        """
        low = 0 if dtype.kind == "uint" else -(2 ** (dtype.bits - 1))
        if (dtype.is_int and not low <= value < 2**dtype.bits) or (isinstance(value, int) and abs(value) >= 2**64):
            raise TypeMismatchError(
                f"{shown(value)} is no {dtype}",
                code="out-of-range",
                help="cast the array to a dtype that holds it, or write a float",
            )
        return self._add(FullOp(value, dtype))

    def zeros_like(self, value: SSAValue) -> SSAValue:
        """Return zeros of an array's shape and dtype."""
        return self.broadcast_to(self.full(0, array_type(value).dtype), dims_of(value))

    def size(self, dim: Dim, dtype: DType) -> SSAValue:
        """Return a size as an array without dimensions."""
        return self.full(dim.scale, dtype) if dim.is_static else self._add(SizeOp(dim, dtype))

    def iota(self, dims: Sequence[Dim], axis: int, dtype: DType) -> SSAValue:
        """Return the places along a dimension."""
        return self._add(IotaOp(dims, axis, dtype))

    def cast(self, value: SSAValue, dtype: DType, loose: bool = False) -> SSAValue:
        """Return an array in another dtype; what goes on computing with it may leave a `loose` rounding out."""
        return value if array_type(value).dtype == dtype else self._add(CastOp(value, dtype, loose))

    def copy(self, value: SSAValue) -> SSAValue:
        """Return an array of its own with the same elements."""
        return self._add(CastOp(value, array_type(value).dtype))

    def stored(self, value: SSAValue) -> SSAValue:
        """Return an array as it is in memory, where parts of it lie."""
        return self._add(StoredOp(value))

    def apply(self, fn: str, *values: Operand, dtype: DType | None = None) -> SSAValue:
        """Return a function of `numerics.functions` of arrays and numbers, promoted and broadcast.

        Args:
            fn: its name.
            values: its operands.
            dtype: what they are promoted to; by default as in a kernel.

        Raises:
            TypeMismatchError: `shape-mismatch` or `dtype-mismatch`.
        """
        condition = [values[0]] if fn == "select" else []
        rest = values[len(condition) :]
        wanted = domain_dtype(fn, dtype or self.common(rest), fn)
        args = [self.as_array(value, wanted) for value in rest]
        args = [self.as_array(value, dtypes.boolean) for value in condition] + args
        dims = self.broadcast_dims([dims_of(arg) for arg in args], fn)
        return self._add(MapOp(fn, [self.broadcast_to(arg, dims) for arg in args]))

    def common(self, values: Sequence[Operand]) -> DType:
        """Return the dtype that operands are promoted to, as in a kernel."""
        strong = [array_type(value).dtype for value in values if isinstance(value, SSAValue)]
        weak = [value for value in values if not isinstance(value, SSAValue)]
        if not strong:
            floats = any(isinstance(value, float) for value in weak)
            return dtypes.f32 if floats else dtypes.i64 if not all(type(v) is bool for v in weak) else dtypes.boolean
        return promote_numbers(reduce(promote, strong), weak)

    def as_array(self, value: Operand, dtype: DType) -> SSAValue:
        """Return an operand as an array of a dtype."""
        return self.cast(value, dtype) if isinstance(value, SSAValue) else self.full(value, dtype)

    # Shapes

    def same(self, first: Dim, second: Dim) -> bool:
        """Return whether two sizes are equal; where they are at this call only, that is asked of every call."""
        if ordered(first) == ordered(second):
            return True
        values = first.value(self.hints), second.value(self.hints)
        if None in values or values[0] != values[1]:
            return False
        self.equal[first, second] = None
        return True

    def broadcast_dims(self, shapes: Sequence[Sequence[Dim]], what: str) -> tuple[Dim, ...]:
        """Return the sizes that NumPy's rules give.

        Raises:
            TypeMismatchError: `shape-mismatch`.
        """
        rank = max(map(len, shapes), default=0)
        result = [ONE] * rank
        for shape in shapes:
            for axis, dim in enumerate(shape, rank - len(shape)):
                if result[axis] == ONE:
                    result[axis] = dim
                elif dim != ONE and not self.same(dim, result[axis]):
                    texts = ", ".join(f"({', '.join(map(str, each))})" for each in shapes)
                    raise TypeMismatchError(
                        f"{what}: {texts} do not broadcast: {result[axis]} != {dim}",
                        code="shape-mismatch",
                        help="sizes must be equal or 1, counted from the last dimension",
                    )
        return tuple(result)

    def broadcast_to(self, value: SSAValue, dims: Sequence[Dim]) -> SSAValue:
        """Return an array repeated to a shape."""
        own = dims_of(value)
        if own == tuple(dims):
            return value
        value = self._agreed(value, dims)
        first = len(dims) - len(own)
        return self._add(BroadcastOp(value, dims, range(first, len(dims)))) if dims_of(value) != tuple(dims) else value

    def _agreed(self, value: SSAValue, dims: Sequence[Dim]) -> SSAValue:
        """Return an array whose sizes are written as those of a shape that it is to have."""
        own = dims_of(value)
        wanted = [dim if dim == ONE else to for dim, to in zip(own, dims[len(dims) - len(own) :], strict=True)]
        return value if list(own) == wanted else self._add(ReshapeOp(value, wanted))

    def reshape(self, value: SSAValue, dims: Sequence[Dim]) -> SSAValue:
        """Return an array's elements as another shape."""
        return value if dims_of(value) == tuple(map(ordered, dims)) else self._add(ReshapeOp(value, dims))

    def transpose(self, value: SSAValue, perm: Sequence[int]) -> SSAValue:
        """Return an array with its dimensions permuted."""
        return value if list(perm) == list(range(len(perm))) else self._add(TransposeOp(value, perm))

    def slice(self, value: SSAValue, starts: Sequence[Dim], steps: Sequence[int], dims: Sequence[Dim]) -> SSAValue:
        """Return a part of an array."""
        return self._add(SliceOp(value, starts, steps, dims))

    def place(self, value: SSAValue, dims: Sequence[Dim], starts: Sequence[Dim], steps: Sequence[int]) -> SSAValue:
        """Return zeros of a shape with an array where a slice of it would be taken from."""
        return self._add(PlaceOp(value, starts, steps, dims))

    def concat(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        """Return arrays one after another along a dimension.

        Raises:
            TypeMismatchError: `shape-mismatch`.
        """
        first = dims_of(values[0])
        agreed = [values[0]]
        for value in values[1:]:
            dims = dims_of(value)
            others = (at for at in range(len(first)) if at != axis)
            if len(dims) != len(first) or not all(self.same(dims[at], first[at]) for at in others):
                raise TypeMismatchError(
                    f"concatenate along {axis}: ({', '.join(map(str, first))}) and ({', '.join(map(str, dims))})",
                    code="shape-mismatch",
                    help="all other sizes are equal",
                )
            agreed.append(self.reshape(value, [*first[:axis], dims[axis], *first[axis + 1 :]]))
        return values[0] if len(agreed) == 1 else self._add(ConcatOp(agreed, axis))

    def take(self, value: SSAValue, places: Sequence[int | SSAValue], dims: Sequence[Dim]) -> SSAValue:
        """Return elements of an array at places.

        Args:
            value: the array.
            places: for each of its dimensions the result's that it is, or integers that broadcast to its shape.
            dims: the result's shape; of a dimension of 1 of the array each element is taken from its one.

        Raises:
            TypeMismatchError: `shape-mismatch`.
        """
        if not places or (list(places) == [*range(len(dims))] and list(dims) == list(dims_of(value))):
            return self.broadcast_to(value, dims)
        agreed = list(dims_of(value))
        indices: list[SSAValue] = []
        along: list[int] = []
        for axis, place in enumerate(places):
            if isinstance(place, int):
                agreed[axis] = self._taken(agreed[axis], dims[place])
                along.append(place)
            else:
                along.append(len(dims) + len(indices))
                indices.append(self.broadcast_to(place, dims))
        return self._add(TakeOp(self.broadcast_to(value, agreed), indices, along, dims))

    def _taken(self, own: Dim, wanted: Dim) -> Dim:
        """Return the size that a dimension has which is one of what is taken."""
        if own != ONE and not self.same(own, wanted):
            raise TypeMismatchError(
                f"take {own} elements as {wanted}", code="shape-mismatch", help="the sizes are equal"
            )
        return wanted

    def add_rows(self, value: SSAValue, index: SSAValue, count: Dim) -> SSAValue:
        """Return `count` sums of the rows of a matrix, each of those with its number in `index`."""
        return self._add(AddRowsOp(value, index, count))

    def index(self, value: SSAValue, indices: Mapping[int, SSAValue]) -> SSAValue:
        """Return elements at places along some dimensions, negative ones from the end, in NumPy's shape.

        Index arrays that stand side by side give their dimensions in their place, others in front.

        Raises:
            TypeMismatchError: `shape-mismatch`.
        """
        own, axes = dims_of(value), sorted(indices)
        shape = self.broadcast_dims([dims_of(index) for index in indices.values()], "index arrays")
        first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
        left = [dim for axis, dim in enumerate(own) if axis not in indices]
        dims = [*left[:first], *shape, *left[first:]]
        kept = iter([*range(first), *range(first + len(shape), len(dims))])
        places: list[int | SSAValue] = []
        for axis, dim in enumerate(own):
            if axis in indices:
                wide = [*dims_of(indices[axis]), *[ONE] * (len(left) - first)]
                places.append(self.reshape(self.from_start(indices[axis], dim), wide))
            else:
                places.append(next(kept))
        return self.take(value, places, dims)

    def from_start(self, index: SSAValue, size: Dim) -> SSAValue:
        """Return places that may count from the end as such that do not."""
        dtype = array_type(index).dtype
        if dtype.kind == "uint":
            return index
        wide = self.cast(index, dtypes.i64)
        return self.apply(
            "select", self.apply("lt", wide, 0), self.apply("add", wide, self.size(size, dtypes.i64)), wide
        )

    def stop(self, value: SSAValue) -> SSAValue:
        """Return an array itself, without influence on what is differentiated."""
        return self._add(StopOp(value))

    def alias(self, value: SSAValue) -> SSAValue:
        """Return an array itself as a value of its own."""
        return self._add(AliasOp(value))

    def own(self, rule: str, values: Sequence[SSAValue], inputs: Sequence[SSAValue]) -> Sequence[SSAValue]:
        """Return arrays themselves, whose derivatives by others are a rule's."""
        op = OwnOp(rule, values, inputs)
        self._add(op)
        return op.results

    def without(self, value: SSAValue, axes: Sequence[int]) -> SSAValue:
        """Return an array without some dimensions of size 1."""
        return self.reshape(value, [dim for axis, dim in enumerate(dims_of(value)) if axis not in axes])

    def with_ones(self, value: SSAValue, axes: Sequence[int]) -> SSAValue:
        """Return an array with dimensions of size 1 at places of the result."""
        dims = list(dims_of(value))
        for axis in sorted(axes):
            dims.insert(axis, ONE)
        return self.reshape(value, dims)

    # Sums

    def reduce(self, fn: str, value: SSAValue, axes: Sequence[int], keepdims: bool = False) -> SSAValue:
        """Return a reduction along dimensions."""
        if not axes:
            return value
        if any(dims_of(value)[axis] == ZERO for axis in axes):
            result = self._of_nothing(fn, value, axes)
        else:
            result = self._add(ReduceOp(value, fn, sorted(axes)))
        return self.with_ones(result, axes) if keepdims else result

    def _of_nothing(self, fn: str, value: SSAValue, axes: Sequence[int]) -> SSAValue:
        """Return a reduction of no elements: what it leaves as it is, where there is such a number."""
        if fn in ("max", "min"):
            raise TypeMismatchError(
                f"{fn} of no elements", code="empty-reduction", help="there is none; test the size, or add a first one"
            )
        left = [dim for axis, dim in enumerate(dims_of(value)) if axis not in axes]
        dtype = array_type(value).dtype
        return self.broadcast_to(self.full(identity_of(fn, dtype), dtype), left)

    def count(self, value: SSAValue, axes: Sequence[int]) -> Dim:
        """Return how many elements a reduction along dimensions combines."""
        return product(dims_of(value)[axis] for axis in axes)

    def contract(self, left: SSAValue, right: SSAValue) -> SSAValue:
        """Return the product of matrices, or of batches of them; sizes that meet may be equal at this call only.

        Raises:
            TypeMismatchError: `shape-mismatch`, also where nothing tells that sizes are equal.
        """
        met = (*dims_of(left)[:-2], dims_of(left)[-1])
        if len(dims_of(right)) != len(met) + 1 or not all(map(self.same, met, dims_of(right)[:-1])):
            texts = (", ".join(map(str, dims_of(one))) for one in (left, right))
            raise TypeMismatchError(
                "a product of ({}) and ({})".format(*texts), code="shape-mismatch", help="inner sizes have to be equal"
            )
        right = self.reshape(right, [*met, dims_of(right)[-1]])
        if dims_of(left)[-1] == ZERO:
            dims = (*dims_of(left)[:-1], dims_of(right)[-1])
            return self.broadcast_to(self.full(0, product_dtype(left)), dims)
        return self._add(ContractOp(left, right))

    def update(self, target: SSAValue, value: SSAValue) -> None:
        """Write an array to the memory of an argument."""
        self._add(UpdateOp(target, value))

    def call(
        self,
        callee: str,
        inputs: Sequence[SSAValue],
        outputs: Sequence[ArrayType],
        given: str | None = None,
        pure: bool = False,
    ) -> Sequence[SSAValue]:
        """Return what a function gives; see `CallOp`."""
        op = CallOp(callee, inputs, outputs, given, pure)
        self._add(op)
        return op.results
