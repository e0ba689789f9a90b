"""What SSA values are at run time: NumPy scalars, NumPy arrays (tiles), tensors and shared buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.ir import Attribute, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType

if TYPE_CHECKING:
    from tessera.interp.between import Watch
    from tessera.interp.roles import Crew

Array = npt.NDArray[Any]


class State(IntEnum):
    """What is known of one element of a shared buffer."""

    UNDEFINED = 0
    IN_FLIGHT = 1
    """An asynchronous copy to it has not been waited for."""
    UNORDERED = 2
    """Written since the last barrier: other lanes need not see it yet."""
    DEFINED = 3
    OUTGOING = 4
    """Has a value, which an asynchronous store that has not been waited for still reads."""


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor argument.

    Args:
        name: the parameter's name.
        array: the caller's array, `(…)` of the tensor's shape.
        defined: which elements have a value, None when all have.
        watch: who touched which elements, while programs that may share them run.
    """

    name: str
    array: Array
    defined: npt.NDArray[np.bool_] | None = None
    watch: Watch | None = None

    def as_vector(self) -> Tensor:
        """Return the element of a tensor without dimensions as a tensor of one dimension, over the same memory."""
        defined = None if self.defined is None else self.defined.reshape(1)
        return Tensor(self.name, self.array.reshape(1), defined, self.watch)


@dataclass(eq=False, slots=True)
class Shared:
    """A shared buffer or a view of one: NumPy views of the data and of what is known of each element.

    Args:
        data: the contents.
        state: a `State` per element.
        writer: number of the access that wrote it last (`Program.number_of`), -1 if none did.
        reader: number of the access that read it last, -1 if none did.
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
class BulkStore:
    """An asynchronous store under way: the source, and the parts of tensor and box that take its data."""

    source: Shared
    tensor: Tensor
    inside: tuple[slice, ...]
    within: tuple[slice, ...]
    sizes: tuple[int, ...]

    def finish(self) -> None:
        """Let the data, as the buffer now holds them, arrive; the buffer is free: what was done to it lies behind."""
        self.tensor.array[self.inside] = self.source.data.reshape(self.sizes)[self.within]
        if self.tensor.defined is not None:
            self.tensor.defined[self.inside] = True
        self.source.state[...] = State.DEFINED
        self.source.writer[...] = self.source.reader[...] = -1


@dataclass(eq=False, slots=True)
class Product:
    """A product that was started: its operands, and its accumulators once it has ended.

    What it adds to may be a product under way itself, which ends first.
    """

    op: Operation
    operands: tuple[Any, Any, Array | Product]
    result: Array | None = None


@dataclass(eq=False, slots=True)
class Role:
    """Warps that run the same ops.

    `clock` is a vector clock: how much of every role's past this role is ordered after. Barriers between roles
    carry it from one to the other; two accesses of which neither is in the other's past are a race.

    Args:
        number: identifies the role in its program.
        name: for messages; empty where the program has one role.
        group: which of the groups of consumers it is.
        clock: by number of role; its own entry is the current time, which advances when it arrives at a barrier.
        generation: how many barriers its own warps have passed.
        stores: bulk stores that no wait has covered, oldest first.
        products: the products under way, oldest first.
    """

    number: int = 0
    name: str = ""
    clock: dict[int, int] = field(default_factory=lambda: {0: 1})
    generation: int = 0
    group: int = 0
    stores: list[BulkStore] = field(default_factory=list[BulkStore])
    products: list[Product] = field(default_factory=list["Product"])

    def release(self) -> dict[int, int]:
        """Return what a barrier takes over from this role, whose later ops do not belong to it."""
        released = dict(self.clock)
        self.clock[self.number] += 1
        return released

    def acquire(self, clock: dict[int, int]) -> None:
        """Put this role after what a barrier took over from others."""
        merge(self.clock, clock)


def merge(clock: dict[int, int], other: dict[int, int]) -> None:
    """Let a vector clock know what another one knows."""
    for number, time in other.items():
        clock[number] = max(clock.get(number, 0), time)


NEVER = 1 << 62
"""The time of an access that nothing is ordered after yet."""


class Access(NamedTuple):
    """When a role executed an op: its time and how many barriers of its own warps lay behind it."""

    op: Operation
    role: int
    time: int
    generation: int


class Share(NamedTuple):
    """What a program does of a tile: see `ir.tile.stream.ShareOp`."""

    first: int
    last: int
    owner: bool
    others: int


class Part(NamedTuple):
    """Which of the programs that share each tile one is: part `number` of `parts`."""

    number: int
    parts: int

    @property
    def owner(self) -> bool:
        """Whether it has the tile's last steps."""
        return self.number == self.parts - 1


@dataclass(eq=False, slots=True)
class Cluster:
    """What the programs of a cluster have done together.

    Args:
        programs: how many there are.
        arrived: how often any of them has arrived at their barrier.
        put: what each of them has put into the buffers of all, by buffer and rank.
    """

    programs: int
    arrived: int = 0
    put: dict[tuple[SSAValue, int], Any] = field(default_factory=dict[tuple[SSAValue, int], Any])


@dataclass(eq=False, slots=True)
class Program:
    """The state of one program of a grid.

    Args:
        offsets: the program's tile offset in each grid dimension; empty outside of grids.
        tiles: such offsets of all its tiles, in order.
        buffers: whole shared buffers, for barriers.
        started: copies that no group holds yet.
        groups: committed groups that no wait has covered, oldest first.
        role: the role that runs now.
        crew: the roles that run side by side, if there are several.
        roles: how many roles there were so far; barriers count too, as what delivers their copies.
        rank: which of the programs that share its tile it is, or of all that share out steps.
        partials: partial sums that those programs have sent to the first, or left for another, by rank.
        cluster: what the programs of its cluster have done together.
        arrivals: how often it has arrived at its cluster's barrier.
        share: the steps it does of its tile, or which part of any loop's; None for all.
        accesses: accesses to shared memory, by number.
        numbers: the number of each access.
        fenced: numbers of the accesses that a proxy fence has followed.
        number: identifies the program among those of its grid.
        time: advances where others can be ordered after the program.
        known: how much of the past of other programs this one is ordered after, by number.
        offered: how much more it would be if it fenced now: what the atomics that it read were released with.
        released: what its next atomic releases though it is relaxed, as a fence is before it.
    """

    offsets: tuple[int, ...] = ()
    tiles: Sequence[tuple[int, ...]] = ()
    buffers: list[Shared] = field(default_factory=list["Shared"])
    started: list[Copy] = field(default_factory=list["Copy"])
    groups: list[list[Copy]] = field(default_factory=list[list["Copy"]])
    role: Role = field(default_factory=Role)
    crew: Crew | None = None
    roles: int = 1
    rank: int = 0
    partials: dict[int, tuple[Any, ...]] = field(default_factory=dict[int, tuple[Any, ...]])
    cluster: Cluster = field(default_factory=lambda: Cluster(1))
    arrivals: int = 0
    share: Share | Part | None = None
    accesses: list[Access] = field(default_factory=list[Access])
    numbers: dict[Access, int] = field(default_factory=dict[Access, int])
    fenced: set[int] = field(default_factory=set[int])
    number: int = 0
    time: int = 1
    known: dict[int, int] = field(default_factory=dict[int, int])
    offered: dict[int, int] = field(default_factory=dict[int, int])
    released: dict[int, int] = field(default_factory=dict[int, int])

    def new_role(self) -> int:
        """Return a number for another role."""
        self.roles += 1
        return self.roles - 1

    def number_of(self, op: Operation) -> int:
        """Return the number that stands for `op`, run now, in `Shared.writer` and `Shared.reader`."""
        role = self.role
        return self.note(Access(op, role.number, role.clock[role.number], role.generation))

    def number_under_way(self, op: Operation) -> int:
        """Return the number that stands for what `op` has started and may still be doing: nothing is after it."""
        return self.note(Access(op, self.role.number, NEVER, NEVER))

    def note(self, access: Access) -> int:
        """Return the number of an access."""
        number = self.numbers.setdefault(access, len(self.accesses))
        if number == len(self.accesses):
            self.accesses.append(access)
        return number

    def own_accesses(self) -> list[int]:
        """Return the numbers of what the role that runs now did."""
        return [n for n, access in enumerate(self.accesses) if access.role == self.role.number]

    def is_ordered(self, number: int) -> bool:
        """Return whether an access lies behind a barrier for the role that runs now."""
        access = self.accesses[number]
        if access.role == self.role.number:
            return access.generation < self.role.generation
        return self.role.clock.get(access.role, 0) >= access.time

    def under_way(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return which accesses of an array of their numbers (-1 is none) have not ended."""
        known = [int(n) for n in np.unique(numbers) if n >= 0]
        known = [number for number in known if self.accesses[number].time == NEVER]
        return np.isin(numbers, known) if known else np.zeros(numbers.shape, np.bool_)

    def unordered(self, numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return which accesses of an array of their numbers (-1 is none) race with one made now."""
        known = [number for number in np.unique(numbers) if number >= 0 and not self.is_ordered(number)]
        return np.isin(numbers, known) if known else np.zeros(numbers.shape, np.bool_)


def dtype_at(type_: Attribute) -> DType:
    """Return the dtype of a scalar's, tile's, tensor's or buffer's elements."""
    return dtype_of(element_of(type_))
