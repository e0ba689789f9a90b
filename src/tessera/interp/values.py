"""What SSA values are at run time: NumPy scalars, NumPy arrays (tiles), tensors and shared buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Attribute, Operation

from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType

Array = npt.NDArray[Any]


class State(IntEnum):
    """What is known of one element of a shared buffer."""

    UNDEFINED = 0
    IN_FLIGHT = 1
    """An asynchronous copy to it has not been waited for."""
    UNORDERED = 2
    """Written since the last barrier: other lanes need not see it yet."""
    DEFINED = 3


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor argument.

    Args:
        name: the parameter's name.
        array: the caller's array, `(…)` of the tensor's shape.
        defined: which elements have a value, None when all have.
    """

    name: str
    array: Array
    defined: npt.NDArray[np.bool_] | None = None


@dataclass(eq=False, slots=True)
class Shared:
    """A shared buffer or a view of one: NumPy views of the data and of what is known of each element.

    Args:
        data: the contents.
        state: a `State` per element.
        writer: number of the op that wrote it last (`Program.number_of`).
        reader: number of an op that read it since the last barrier, -1 if none did.
    """

    data: Array
    state: npt.NDArray[np.uint8]
    writer: npt.NDArray[np.int32]
    reader: npt.NDArray[np.int32]

    @classmethod
    def of(cls, shape: Sequence[int], dtype: Any) -> Shared:
        """Allocate a buffer; the data are a pattern that is unlikely to pass for a result."""
        data = np.empty(shape, dtype)
        data.view(np.uint8)[...] = 0xCB
        nobody = np.full(shape, -1, np.int32)
        return cls(data, np.zeros(shape, np.uint8), nobody, nobody.copy())

    def at(self, index: int) -> Shared:
        """Return the sub-buffer at `index` of the first dimension."""
        return Shared(self.data[index], self.state[index], self.writer[index], self.reader[index])

    def transposed(self, perm: Sequence[int]) -> Shared:
        """Return the view whose dimension `i` is this one's `perm[i]`."""
        data, state = self.data.transpose(perm), self.state.transpose(perm)
        return Shared(data, state, self.writer.transpose(perm), self.reader.transpose(perm))


@dataclass(eq=False, slots=True)
class Copy:
    """An asynchronous copy under way: the destination and the data that will arrive."""

    target: Shared
    data: Array


@dataclass(eq=False, slots=True)
class Program:
    """The state of one program of a grid.

    Args:
        offsets: the program's tile offset in each grid dimension; empty outside of grids.
        buffers: whole shared buffers, for barriers.
        started: copies that no group holds yet.
        groups: committed groups that no wait has covered, oldest first.
        ops: ops that touched shared memory, in the order they first did.
    """

    offsets: tuple[int, ...] = ()
    buffers: list[Shared] = field(default_factory=list["Shared"])
    started: list[Copy] = field(default_factory=list["Copy"])
    groups: list[list[Copy]] = field(default_factory=list[list["Copy"]])
    ops: list[Operation] = field(default_factory=list[Operation])

    def number_of(self, op: Operation) -> int:
        """Return the number that stands for `op` in `Shared.writer` and `Shared.reader`."""
        if op not in self.ops:
            self.ops.append(op)
        return self.ops.index(op)


def dtype_at(type_: Attribute) -> DType:
    """Return the dtype of a scalar's, tile's, tensor's or buffer's elements."""
    return dtype_of(element_of(type_))
