"""What a Python expression can be while a kernel is compiled.

Numbers, strings, dtypes, tuples and functions known at compile time are themselves. Everything known only
when the kernel runs is one of the classes below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, cast

from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors.shown import SHORT, shown
from tessera.frontend.signature import TensorParam
from tessera.frontend.structure import StructureValue
from tessera.ir.tile.types import SharedType, TensorType, TileType, describe, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType, Policy


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A run-time value.

    Args:
        ssa: its value in the IR.
        policy: numeric rules of the tensor it was loaded from, which `mma` and reductions follow.
    """

    ssa: SSAValue
    policy: Policy | None = None

    @property
    def type(self) -> Attribute:
        """The IR type."""
        return self.ssa.type

    @property
    def dtype(self) -> DType:
        """The element type; `index` counts as i64."""
        return dtype_of(element_of(self.ssa.type))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, `()` for a scalar."""
        return shape_of(self.ssa.type)


class Scalar(Value):
    """A run-time scalar."""

    __slots__ = ()


class Tile(Value):
    """A tile."""

    __slots__ = ()


class Shared(Value):
    """A shared buffer or a view of one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class TensorValue:
    """A tensor argument.

    Args:
        ssa: the kernel's block argument.
        param: its declaration.
        position: its place among the run-time arguments.
    """

    ssa: SSAValue
    param: TensorParam
    position: int

    @property
    def type(self) -> TensorType:
        """The IR type."""
        return cast(TensorType, self.ssa.type)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.param.dims)

    @property
    def dtype(self) -> DType:
        """The element type in memory."""
        return self.param.dtype.storage

    @property
    def policy(self) -> Policy | None:
        """The numeric rules, None for a plain dtype."""
        return None if self.param.policy == Policy(self.dtype) else self.param.policy


@dataclass(frozen=True, slots=True, eq=False)
class At:
    """One element of a dimension, which the result does not have."""

    offset: SSAValue


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A box of static size along a dimension.

    Args:
        offset: where it starts (`index`).
        size: its size.
        whole: whether it covers the dimension exactly, so that nothing can be outside.
        step: how far its elements are apart.
    """

    offset: SSAValue
    size: int
    whole: bool = False
    step: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """Elements chosen by an index tile."""

    index: Tile


Axis = At | Span | Pick
"""What is taken along a dimension."""


@dataclass(slots=True, eq=False)
class Moment:
    """When a slice was evaluated: as a value it is what its elements were then, whoever reads it later.

    Args:
        block: where ops went.
        last: the last op there.
        effects: how many ops that change memory the kernel had.
        predicate: the condition on a tile around it.
    """

    block: Block
    last: Operation | None
    effects: int
    predicate: Tile | None
    value: Tile | Scalar | None = None
    """What was read at the moment, once something has asked for it later."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A slice of a tensor that has not been loaded: `A[m:m+64, idx]`.

    Args:
        tensor: the tensor.
        axes: what is taken along each of its dimensions.
        new_axes: positions in the result of dimensions made by `None`.
        moment: when it was evaluated.
    """

    tensor: TensorValue
    axes: tuple[Axis, ...]
    new_axes: tuple[int, ...]
    moment: Moment

    @property
    def picks(self) -> bool:
        """Whether an index tile takes part."""
        return any(isinstance(axis, Pick) for axis in self.axes)

    @property
    def is_box(self) -> bool:
        """Whether its elements are neighbours along every dimension."""
        return not self.picks and all(axis.step == 1 for axis in self.axes if isinstance(axis, Span))


@dataclass(frozen=True, slots=True, eq=False)
class SharedPart:
    """A part of a shared buffer that has not been read: `buffer[0:16, :]`, `hist[i]`, `grid[rows, columns]`.

    Args:
        buffer: the buffer.
        axes: what is taken along each of its dimensions.
        new_axes: positions in the result of dimensions made by `None`.
        moment: when it was evaluated.
    """

    buffer: Shared
    axes: tuple[Axis, ...]
    new_axes: tuple[int, ...]
    moment: Moment

    @property
    def picks(self) -> bool:
        """Whether an index tile takes part."""
        return any(isinstance(axis, Pick) for axis in self.axes)

    def __str__(self) -> str:
        """Return the part as diagnostics show it."""
        return f"a part of {describe(self.buffer.type)}"


AnyView = View | SharedPart
"""What a subscript names and nothing has read: a part of a tensor or of a shared buffer."""


@dataclass(frozen=True, slots=True)
class Undefined:
    """A name whose value is not known on every path.

    Args:
        reason: completes "`x` is not defined here: …".
        help: what to do.
    """

    reason: str
    help: str


@dataclass(frozen=True, slots=True)
class Unless(Undefined):
    """A name that has a value unless jumps were taken.

    Args:
        value: the value.
        flags: for each place where a jump may leave it without one, the flags that are set there.
    """

    value: Any
    flags: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """An f-string with run-time parts, for `print`."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BoundMethod:
    """A method of a run-time value, such as `x.to`."""

    name: str
    owner: Any


@dataclass(frozen=True, slots=True, eq=False)
class GridSpec:
    """`ts.tile.grid(...)`, before a `for` runs over it.

    Args:
        extents: how far each dimension goes.
        blocks: the tile's size in each.
        order: the dimensions, from the one that varies slowest to the one that varies fastest.
    """

    extents: tuple[SSAValue, ...]
    blocks: tuple[int, ...]
    order: tuple[int, ...]


class LoopSpec:
    """`ts.tile.range(...)`, before a `for` runs over it; see `counting`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StaticRangeSpec:
    """`ts.tile.static_range(...)`, before a `for` runs over it."""

    values: range


@dataclass(frozen=True, slots=True, eq=False)
class BarriersValue:
    """`ts.tile.mbarrier.alloc(count)`; `one` of them after a subscript. `key` tells allocations apart."""

    count: int
    one: bool = False
    key: object = field(default_factory=object)

    def __str__(self) -> str:
        """How diagnostics show it."""
        return "a barrier" if self.one else f"{self.count} barriers"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """`ts.tile.role(...)`, before a `with` takes it."""

    kind: str
    asked: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """How diagnostics show it."""
        return f"the role of a {self.kind}"


@dataclass(frozen=True, slots=True)
class ContextValue:
    """`ts.tile.context()`."""


def wrap(ssa: SSAValue, policy: Policy | None = None) -> Value:
    """Return the value of the class that fits its IR type."""
    if isinstance(ssa.type, TileType):
        return Tile(ssa, policy)
    return Shared(ssa, policy) if isinstance(ssa.type, SharedType) else Scalar(ssa, policy)


def is_number(value: Any) -> bool:
    """Return whether `value` is a compile-time number (bool counts)."""
    return isinstance(value, bool | int | float)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the parts of nested tuples."""
    if isinstance(value, tuple):
        for part in cast(tuple[Any, ...], value):
            yield from leaves(part)
    else:
        yield value


def rebuild(template: Any, parts: Iterator[Any]) -> Any:
    """Return nested tuples like `template` with other leaves."""
    if isinstance(template, tuple):
        return tuple(rebuild(part, parts) for part in cast(tuple[Any, ...], template))
    return next(parts)


def some_slice(tensor: TensorValue) -> str:
    """Return a slice of a tensor, for messages that say what to write."""
    return f"{tensor.param.name}[{', '.join(['i:i+64', *['...'] * (tensor.rank > 1)])}]"


def store_help(values: Iterable[Any], otherwise: str) -> str:
    """Return the help for a name of several types: how to store to the tensor that it is one time.

    Args:
        values: what the name is.
        otherwise: the help where that is no tensor.
    """
    tensor = next((value for value in values if isinstance(value, TensorValue)), None)
    if tensor is None:
        return otherwise
    return f"store to a slice of the tensor: {some_slice(tensor)} = …; assignment to the name alone binds the name"


def show(value: Any) -> str:
    """Return a value as diagnostics show it: `tile<64x32xbf16>`, `f32 scalar`, `2.0`."""
    if isinstance(value, Scalar):
        return f"{describe(value.type)} scalar"
    if isinstance(value, Value):
        return describe(value.type)
    if isinstance(value, TensorValue):
        return f"tensor {value.param}"
    if isinstance(value, View):
        return f"a slice of tensor {value.tensor.param.name}"
    if isinstance(value, Text):
        return "an f-string"
    if isinstance(value, tuple):
        parts = cast(tuple[Any, ...], value)
        rest = ["…"] if len(parts) > SHORT.maxtuple else [""] if len(parts) == 1 else []
        return f"({', '.join([*map(show, parts[: SHORT.maxtuple]), *rest]).rstrip()})"
    if isinstance(value, GridSpec | LoopSpec | StaticRangeSpec):
        return "a loop's iterable"
    if isinstance(value, ContextValue):
        return "a context"
    if isinstance(value, BarriersValue | RoleSpec | SharedPart):
        return str(value)
    if isinstance(value, StructureValue):
        return f"the structure {value.layout.label}"
    if isinstance(value, BoundMethod):
        return f"the method {value.name}"
    name = getattr(value, "__name__", None) if callable(value) else None
    return name if isinstance(name, str) else shown(value)
