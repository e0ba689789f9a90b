"""The language as data: expressions, statements, kernels and the arrays they run on.

Every node is an immutable dataclass. An expression knows its type; `children` gives a node's parts and `rebuild` makes
it of others, so that programs can be walked, counted and made smaller without naming the classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from tessera.tools.fuzz import functions
from tessera.tools.fuzz.types import Shape, TreeError, Type, accumulator, broadcast, elements, is_float

_N = TypeVar("_N", bound="Node")


@dataclass(frozen=True)
class Node:
    """A part of a program."""


@dataclass(frozen=True)
class Expr(Node):
    """Something that has a value."""

    @cached_property
    def type(self) -> Type:
        """The type of the value."""
        return self._typed()

    def _typed(self) -> Type:
        raise NotImplementedError


# Leaves


@dataclass(frozen=True)
class Number(Expr):
    """A number in the source, which takes the type of what it is combined with."""

    value: bool | int | float

    def _typed(self) -> Type:
        """Weak; its dtype is what it takes where nothing else decides."""
        kinds = {bool: "bool", int: "i64", float: "f32"}
        return Type(kinds[type(self.value)], weak=True)


@dataclass(frozen=True)
class Constexpr(Number):
    """A `ts.constexpr` parameter, by its name; a number in the source like any other."""

    name: str = ""


@dataclass(frozen=True)
class Name(Expr):
    """A local variable, a loop variable, a dimension or a scalar parameter."""

    name: str
    own: Type

    def _typed(self) -> Type:
        """The type it has wherever it is bound."""
        return self.own


# Access to tensors


@dataclass(frozen=True)
class At(Node):
    """One element of a dimension, which the result does not have."""

    index: Expr


@dataclass(frozen=True)
class Span(Node):
    """`size` elements from `start` on, `step` apart; the whole dimension (`:`) when `start` is None."""

    start: Expr | None
    size: int
    step: int = 1


@dataclass(frozen=True)
class Pick(Node):
    """Elements chosen by an index tile."""

    index: Expr


@dataclass(frozen=True)
class NewAxis(Node):
    """`None`: a dimension of size 1 in the result."""


Axis = At | Span | Pick | NewAxis


def index_shape(axes: tuple[Axis, ...]) -> Shape:
    """Return the shape of what an index takes out of a tensor."""
    picked = broadcast(*(axis.index.type.shape for axis in axes if isinstance(axis, Pick)))
    shape: list[int] = []
    done = False
    for axis in axes:
        if isinstance(axis, Span):
            shape.append(axis.size)
        elif isinstance(axis, NewAxis):
            shape.append(1)
        elif isinstance(axis, Pick) and not done:
            shape.extend(picked)
            done = True
    return tuple(shape)


@dataclass(frozen=True)
class Load(Expr):
    """Elements of a tensor.

    Args:
        tensor: its name.
        axes: what is taken along each dimension.
        dtype: the tensor's dtype.
        fill: value of what is outside or masked off; zero when None.
        policy: the tensor's numeric policy.
    """

    tensor: str
    axes: tuple[Axis, ...]
    dtype: str
    fill: Expr | None = None
    policy: str = ""

    def _typed(self) -> Type:
        """The tensor's dtype and the index's shape."""
        return Type(self.dtype, index_shape(self.axes), policy=self.policy)


@dataclass(frozen=True)
class Atomic(Expr):
    """An atomic access of elements of a tensor; its value are the old ones.

    Args:
        fn: `add`, `max`, `min`, `and`, `or`, `xor`, `exchange`, `compare_exchange`, `load` or `store`.
        tensor: its name.
        axes: what is taken along each dimension.
        dtype: the tensor's dtype.
        value: operand, broadcast to the index's shape and converted to the dtype; None for a load.
        compare: what `compare_exchange` expects.
        order: memory order; the default when empty.
        scope: which programs see it as one step; the default, all of the device, when empty.
    """

    fn: str
    tensor: str
    axes: tuple[Axis, ...]
    dtype: str
    value: Expr | None
    compare: Expr | None = None
    order: str = ""
    scope: str = ""

    def _typed(self) -> Type:
        """The tensor's dtype and the index's shape."""
        return Type(self.dtype, index_shape(self.axes))


@dataclass(frozen=True)
class ReadShared(Expr):
    """The contents of a shared buffer, of one of its stages, or of its transpose."""

    buffer: str
    own: Type
    stage: Expr | None = None
    transposed: bool = False

    def _typed(self) -> Type:
        """The type of the tile that is read."""
        return self.own


@dataclass(frozen=True)
class ReadPart(Expr):
    """A part of a shared buffer, or elements of it: `buffer[axes]`."""

    buffer: str
    axes: tuple[Axis, ...]
    dtype: str

    def _typed(self) -> Type:
        """The buffer's dtype and the index's shape."""
        return Type(self.dtype, index_shape(self.axes))


def is_stage(axes: tuple[Axis, ...]) -> bool:
    """Return whether an index names all of a buffer, or a stage: what is read where it is used."""
    first, *rest = axes
    whole = all(isinstance(axis, Span) and axis.start is None for axis in rest)
    return whole and (bool(rest) if isinstance(first, At) else isinstance(first, Span) and first.start is None)


# Making tiles


@dataclass(frozen=True)
class Arange(Expr):
    """`ts.tile.arange(start, stop, dtype)`."""

    start: int
    stop: int
    dtype: str = "i32"

    def _typed(self) -> Type:
        """One dimension."""
        return Type(self.dtype, (self.stop - self.start,))


@dataclass(frozen=True)
class Full(Expr):
    """`ts.tile.full(shape, value, dtype)`."""

    shape: Shape
    value: Expr
    dtype: str

    def _typed(self) -> Type:
        """What it is told."""
        return Type(self.dtype, self.shape)


@dataclass(frozen=True)
class FullLike(Expr):
    """`ts.tile.full_like(x, value)`."""

    like: Expr
    value: Expr

    def _typed(self) -> Type:
        """The other tile's."""
        return self.like.type


# Arithmetic


@dataclass(frozen=True)
class Apply(Expr):
    """An elementwise function of `functions.FUNCTIONS`; `form` is which of its spellings is used."""

    fn: str
    args: tuple[Expr, ...]
    form: int = 0

    def _typed(self) -> Type:
        """Promoted and broadcast."""
        return functions.result_type(self.fn, [arg.type for arg in self.args])


@dataclass(frozen=True)
class Assembly(Expr):
    """A function of two tiles by `ts.tile.inline_asm`."""

    of: Apply

    def _typed(self) -> Type:
        """As the function gives."""
        return self.of.type


@dataclass(frozen=True)
class Known(Expr):
    """A comparison of constants, which Python itself decides when the kernel is compiled."""

    fn: str
    left: Number
    right: Number

    def _typed(self) -> Type:
        """A bool."""
        return Type("bool")


@dataclass(frozen=True)
class Power(Expr):
    """A power with a small constant exponent, which becomes multiplications."""

    base: Expr
    exponent: int

    def _typed(self) -> Type:
        """The base's; a bool becomes an i32."""
        dtype = self.base.type.dtype
        return Type("i32" if dtype == "bool" else dtype, self.base.type.shape)


@dataclass(frozen=True)
class Where(Expr):
    """`ts.tile.where(condition, a, b)`, or `a if condition else b` when all are scalars."""

    condition: Expr
    a: Expr
    b: Expr

    def _typed(self) -> Type:
        """Promoted and broadcast."""
        parts = (self.a.type, self.b.type)
        dtype = functions.common(parts)
        return Type(dtype, broadcast(self.condition.type.shape, *(part.shape for part in parts)))


@dataclass(frozen=True)
class Cast(Expr):
    """A conversion; `saturate` clamps to the largest finite value."""

    x: Expr
    dtype: str
    saturate: bool = False
    method: bool = False

    def _typed(self) -> Type:
        """The operand's shape."""
        return Type(self.dtype, self.x.type.shape)


@dataclass(frozen=True)
class Bitcast(Expr):
    """The bits as another dtype of the same width."""

    x: Expr
    dtype: str

    def _typed(self) -> Type:
        """The operand's shape."""
        return Type(self.dtype, self.x.type.shape)


# Shapes


@dataclass(frozen=True)
class Reshape(Expr):
    """The elements in row-major order as another shape."""

    x: Expr
    shape: Shape

    def _typed(self) -> Type:
        """The other shape."""
        if elements(self.shape) != self.x.type.size:
            raise TreeError(f"reshape of {self.x.type} to {self.shape}")
        return replace(self.x.type, shape=self.shape)


@dataclass(frozen=True)
class Transpose(Expr):
    """Dimensions permuted; `form` 1 writes `.T` where that means the same."""

    x: Expr
    perm: tuple[int, ...]
    form: int = 0

    def _typed(self) -> Type:
        """The sizes permuted."""
        return replace(self.x.type, shape=tuple(self.x.type.shape[axis] for axis in self.perm))


@dataclass(frozen=True)
class Expand(Expr):
    """Dimensions of size 1 at `axes` of the result; `form` 1 writes `x[:, None]`."""

    x: Expr
    axes: tuple[int, ...]
    form: int = 0

    def _typed(self) -> Type:
        """The sizes with ones put in."""
        shape = list(self.x.type.shape)
        for axis in sorted(self.axes):
            shape.insert(axis, 1)
        return replace(self.x.type, shape=tuple(shape))


@dataclass(frozen=True)
class BroadcastTo(Expr):
    """A tile or scalar repeated to a shape."""

    x: Expr
    shape: Shape

    def _typed(self) -> Type:
        """The shape."""
        return Type(self.x.type.dtype, self.shape)


@dataclass(frozen=True)
class Stack(Expr):
    """Tiles side by side along a new dimension, or `merged`: of any sizes, one after the other along `axis`."""

    parts: tuple[Expr, ...]
    axis: int
    merged: bool = False

    def _typed(self) -> Type:
        """The parts' dtype."""
        shapes = [list(part.type.shape) for part in self.parts]
        along = sum(shape[self.axis] for shape in shapes) if self.merged else 0
        for shape in shapes if self.merged else ():
            shape[self.axis] = along
        if any(shape != shapes[0] for shape in shapes):
            raise TreeError("tiles of several shapes are stacked")
        if not self.merged:
            shapes[0].insert(self.axis, len(self.parts))
        return Type(functions.common([part.type for part in self.parts]), tuple(shapes[0]))


# Parts of tiles


@dataclass(frozen=True)
class Part(Expr):
    """`x[a:b:s, i]`: along each dimension so many elements, `step` apart, or where the size is 0 one, without it.

    A start that is a number is a place of the tile; what others take outside of it is zero.
    """

    x: Expr
    starts: tuple[Expr, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def _typed(self) -> Type:
        """The sizes that are kept."""
        if not len(self.x.type.shape) == len(self.starts) == len(self.sizes) == len(self.steps):
            raise TreeError(f"a part of {self.x.type} with {len(self.starts)} starts")
        return replace(self.x.type, shape=tuple(size for size in self.sizes if size))


@dataclass(frozen=True)
class Piece(Expr):
    """One of the equal parts of a tile along a dimension; `alone`, where each is one slice, without the dimension."""

    x: Expr
    count: int
    axis: int
    number: int
    alone: bool = False

    def _typed(self) -> Type:
        """The sizes, that along the dimension divided."""
        shape = list(self.x.type.shape)
        shape[self.axis : self.axis + 1] = [] if self.alone else [shape[self.axis] // self.count]
        return replace(self.x.type, shape=tuple(shape))


@dataclass(frozen=True)
class Flip(Expr):
    """The elements in reverse order along dimensions, all when `axes` is None; `form` 1 writes a method."""

    x: Expr
    axes: tuple[int, ...] | None
    form: int = 0

    def _typed(self) -> Type:
        """The tile's."""
        return self.x.type


@dataclass(frozen=True)
class Roll(Expr):
    """The elements moved round along a dimension, in row-major order when `axis` is None."""

    x: Expr
    shift: Expr
    axis: int | None

    def _typed(self) -> Type:
        """The tile's."""
        return self.x.type


@dataclass(frozen=True)
class Take(Expr):
    """Elements picked along a dimension by an index tile; outside there is `fill`, or zero.

    Args:
        x: the tile.
        index: the integers.
        axis: the dimension; None counts elements in row-major order.
        fill: what is picked outside.
        along: whether each element of the index picks one element, and not a slice.
    """

    x: Expr
    index: Expr
    axis: int | None
    fill: Number | None = None
    along: bool = False

    def _typed(self) -> Type:
        """The tile's dtype."""
        shape, picked = self.x.type.shape, self.index.type.shape
        if not self.along:
            picked = picked if self.axis is None else (*shape[: self.axis], *picked, *shape[self.axis + 1 :])
        return replace(self.x.type, shape=picked)


# Reductions and products


@dataclass(frozen=True)
class Reduce(Expr):
    """A reduction along a dimension or several, or of all elements when `axis` is None; `form` 1 writes a method."""

    op: str
    x: Expr
    axis: int | tuple[int, ...] | None
    keepdims: bool = False
    form: int = 0

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions, counted from the front."""
        rank = len(self.x.type.shape)
        if self.axis is None:
            return tuple(range(rank))
        return tuple(axis % rank for axis in (self.axis if isinstance(self.axis, tuple) else (self.axis,)))

    def _typed(self) -> Type:
        """Without the dimensions, or with ones in their place, in the accumulation type."""
        axes, shape = self.axes, self.x.type.shape
        kept = tuple(1 if i in axes else s for i, s in enumerate(shape) if self.keepdims or i not in axes)
        return Type("bool" if self.op in ("any", "all") else accumulator(self.x.type.dtype), kept)


@dataclass(frozen=True)
class Scan(Expr):
    """A running reduction."""

    op: str
    x: Expr
    axis: int
    reverse: bool = False

    def _typed(self) -> Type:
        """The operand's shape, in the accumulation type."""
        dtype = "bool" if self.op in ("any", "all") else accumulator(self.x.type.dtype)
        return Type(dtype, self.x.type.shape)


@dataclass(frozen=True)
class Exchange(Expr):
    """Elements at indices that differ in some bits, along a dimension counted from the end or the front."""

    x: Expr
    bits: int
    axis: int

    def _typed(self) -> Type:
        """The operand's dtype and shape."""
        return Type(self.x.type.dtype, self.x.type.shape)


@dataclass(frozen=True)
class Sort(Expr):
    """The elements in order along a dimension, or where they come from; the first `k` of them unless that is 0."""

    x: Expr
    axis: int
    descending: bool = False
    places: bool = False
    k: int = 0

    def _typed(self) -> Type:
        """The operand's shape but for `k`; its dtype, or that of indices."""
        shape = list(self.x.type.shape)
        shape[self.axis] = self.k or shape[self.axis]
        return Type("i32" if self.places else self.x.type.dtype, tuple(shape))


@dataclass(frozen=True)
class Combined(Expr):
    """One of the results of a reduction or scan of several tiles by a combiner (`combiners.COMBINERS`).

    Args:
        combiner: its name.
        xs: the tiles, of one shape.
        axis: the dimension; None, of reductions, for all elements.
        part: the tile whose result it is.
        running: whether it is a scan.
        reverse: whether that starts from the end.
    """

    combiner: str
    xs: tuple[Expr, ...]
    axis: int | None
    part: int
    running: bool = False
    reverse: bool = False

    def _typed(self) -> Type:
        """The type of the tile, without the dimension where it is reduced."""
        type_, axis = self.xs[self.part].type, self.axis
        if any(x.type.shape != type_.shape for x in self.xs):
            raise TreeError("tiles of several shapes are combined")
        if self.running:
            return Type(type_.dtype, type_.shape)
        rest = () if axis is None else tuple(s for i, s in enumerate(type_.shape) if i != axis % len(type_.shape))
        return Type(type_.dtype, rest)


@dataclass(frozen=True)
class Mma(Expr):
    """`acc + a @ b`.

    Args:
        a: tile `(M, K)`, or `(B, M, K)` of a batch.
        b: tile `(K, N)`, or `(B, K, N)`.
        acc: accumulator `(M, N)` or `(B, M, N)`, zeros when None.
        accumulator: dtype of the zeros; empty for the default.
        compute: `tf32` or empty.
    """

    a: Expr
    b: Expr
    acc: Expr | None = None
    accumulator: str = ""
    compute: str = ""

    def _typed(self) -> Type:
        """The accumulator's dtype."""
        left, right = self.a.type.shape, self.b.type.shape
        shape = (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])
        if self.acc is not None:
            return Type(self.acc.type.dtype, shape)
        return Type(self.accumulator or accumulator(self.a.type.dtype), shape)


@dataclass(frozen=True)
class CausalMask(Expr):
    """`scores` where `k0 + j <= q0 + i`, else `value`."""

    scores: Expr
    q0: Expr
    k0: Expr
    value: Number

    def _typed(self) -> Type:
        """The scores'."""
        return Type(self.scores.type.dtype, self.scores.type.shape)


# Random numbers and calls


@dataclass(frozen=True)
class Philox(Expr):
    """One of the four words of `ts.tile.philox(seed, offsets)`."""

    seed: Expr
    offsets: Expr
    word: int

    def _typed(self) -> Type:
        """32 bits for each counter."""
        return Type("u32", self.offsets.type.shape)


@dataclass(frozen=True)
class Rand(Expr):
    """`ts.tile.rand(seed, offsets)`."""

    seed: Expr
    offsets: Expr

    def _typed(self) -> Type:
        """A number for each counter."""
        return Type("f32", self.offsets.type.shape)


@dataclass(frozen=True)
class Randn(Expr):
    """`ts.tile.randn(seed, offsets)`."""

    seed: Expr
    offsets: Expr

    def _typed(self) -> Type:
        """A number for each counter."""
        return Type("f32", self.offsets.type.shape)


@dataclass(frozen=True)
class Randint(Expr):
    """`ts.tile.randint(seed, offsets, low, high, dtype)`."""

    seed: Expr
    offsets: Expr
    low: int
    high: int
    dtype: str

    def _typed(self) -> Type:
        """A number for each counter."""
        return Type(self.dtype, self.offsets.type.shape)


@dataclass(frozen=True)
class Dropout(Expr):
    """`ts.tile.dropout(x, p, seed, offsets)`."""

    x: Expr
    p: float
    seed: Expr
    offsets: Expr

    def _typed(self) -> Type:
        """The operand's."""
        return Type(self.x.type.dtype, self.x.type.shape)


@dataclass(frozen=True)
class Call(Expr):
    """A call of a `@ts.function` helper."""

    function: str
    args: tuple[Expr, ...]
    own: Type

    def _typed(self) -> Type:
        """What the helper returns."""
        return self.own


# Statements


@dataclass(frozen=True)
class Stmt(Node):
    """Something that happens."""


Block = tuple[Stmt, ...]


@dataclass(frozen=True)
class Assign(Stmt):
    """`a, b = x, y`: all values are computed before any name is bound."""

    names: tuple[str, ...]
    values: tuple[Expr, ...]


@dataclass(frozen=True)
class Augment(Stmt):
    """`a += x`."""

    name: Name
    fn: str
    value: Expr


@dataclass(frozen=True)
class Store(Stmt):
    """`X[axes] = value`; `form` 1 writes `ts.tile.store`, `fn` an augmented assignment."""

    tensor: str
    axes: tuple[Axis, ...]
    dtype: str
    value: Expr
    form: int = 0
    fn: str = ""
    saturate: bool = False


@dataclass(frozen=True)
class Evaluate(Stmt):
    """An atomic whose old values nobody wants."""

    value: Atomic


@dataclass(frozen=True)
class For(Stmt):
    """`for var in ts.tile.range(lower, upper, step)`, or `static_range` when it is unrolled."""

    var: str
    lower: Expr
    upper: Expr
    step: Expr
    body: Block
    static: bool = False
    orelse: Block = ()


@dataclass(frozen=True)
class While(Stmt):
    """`while condition`."""

    condition: Expr
    body: Block
    orelse: Block = ()

    @property
    def endless(self) -> bool:
        """Whether it is `while True`: what its iterations bind lives on after it."""
        return isinstance(self.condition, Number) and self.condition.value is True


@dataclass(frozen=True)
class Break(Stmt):
    """`break`."""


@dataclass(frozen=True)
class Continue(Stmt):
    """`continue`, of a loop or of a grid, where it ends one program."""


@dataclass(frozen=True)
class Return(Stmt):
    """`return`, which ends one program where it stands in a grid; with a value in helpers."""

    value: Expr | None = None


Jump = Break | Continue | Return


@dataclass(frozen=True)
class If(Stmt):
    """An `if` on a scalar (a branch) or on a bool tile (a predicate)."""

    condition: Expr
    then: Block
    orelse: Block = ()

    @property
    def predicates(self) -> bool:
        """Whether the condition is a tile."""
        return bool(self.condition.type.shape)


@dataclass(frozen=True)
class AllocShared(Stmt):
    """`name = ts.tile.alloc_shared(shape, dtype)`."""

    name: str
    shape: Shape
    dtype: str
    swizzle: str = "none"


@dataclass(frozen=True)
class StoreShared(Stmt):
    """`buffer[...] = value`, or one stage of it."""

    buffer: str
    value: Expr
    stage: Expr | None = None


@dataclass(frozen=True)
class StorePart(Stmt):
    """`buffer[axes] = value`; `fn` an augmented assignment."""

    buffer: str
    axes: tuple[Axis, ...]
    dtype: str
    value: Expr
    fn: str = ""


@dataclass(frozen=True)
class UpdateShared(Stmt):
    """`ts.tile.atomic_fn(buffer[indices], value)`, of integers and by functions whose order does not matter.

    Args:
        fn: `add`, `max`, `min`, `and`, `or` or `xor`.
        buffer: the buffer's name.
        indices: an index for each of its dimensions; they broadcast.
        value: what elements are updated by, of their shape.
    """

    fn: str
    buffer: str
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class CopyAsync(Stmt):
    """`ts.tile.cp_async(buffer, X[axes])`."""

    buffer: str
    tensor: str
    axes: tuple[Axis, ...]
    dtype: str
    stage: Expr | None = None


@dataclass(frozen=True)
class Commit(Stmt):
    """`ts.tile.commit_group()`."""


@dataclass(frozen=True)
class Wait(Stmt):
    """`ts.tile.wait_group(pending)`."""

    pending: int


@dataclass(frozen=True)
class Fence(Stmt):
    """A fence, with its order and scope."""

    order: str
    scope: str


@dataclass(frozen=True)
class Barrier(Stmt):
    """`ts.tile.barrier()`."""


@dataclass(frozen=True)
class Print(Stmt):
    """`print("label", value, …)`."""

    label: str
    values: tuple[Name, ...]


@dataclass(frozen=True)
class Fenced(Stmt):
    """A fence of one thread by `ts.tile.inline_asm`, with an operand that does not matter."""

    number: int


@dataclass(frozen=True)
class Check(Stmt):
    """`assert condition, "message"`."""

    condition: Expr
    message: str


# Kernels


@dataclass(frozen=True)
class Grid(Node):
    """`for vars in ts.tile.grid((extent, block), …)`, with `order=` where one is given."""

    vars: tuple[str, ...]
    extents: tuple[Expr, ...]
    blocks: tuple[int, ...]
    body: Block
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Linear(Grid):
    """`var = ts.tile.linear_id()` and what follows, of a kernel that declares no grid.

    How many programs share the elements is the compiler's business: nothing in the body may depend on it, so the
    meaning takes one block for all of them.
    """


@dataclass(frozen=True)
class Helper(Node):
    """A `@ts.function`: its parameters (with the types that it is called with), statements and result."""

    name: str
    params: tuple[Name, ...]
    body: Block
    result: Expr


@dataclass(frozen=True)
class Contents(Node):
    """What an array holds at the start.

    Args:
        kind: how it is drawn, see `data.contents`.
        low: least value.
        high: largest value.
    """

    kind: str
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Layout(Node):
    """How an array lies in memory.

    Args:
        order: the axes from the slowest to the fastest.
        steps: distance of neighbours along each axis, in multiples of the dense distance; negative ones run backwards.
        offset: elements between a 64-byte boundary and the array.
        pitch: a number of elements; neighbours along all but the fastest axis are multiples of it apart.
    """

    order: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int = 0
    pitch: int = 1


@dataclass(frozen=True)
class Spelled:
    """The size of a dimension, spelled as `(factor*name + plus) // divisor`.

    Args:
        name: a name of a dimension.
        size: that one's size.
        factor: what it is multiplied by.
        plus: what is added.
        divisor: what the sum is divided by, rounding down.
    """

    name: str
    size: int
    factor: int = 1
    plus: int = 0
    divisor: int = 1

    @property
    def value(self) -> int:
        """The size that it spells."""
        return (self.factor * self.size + self.plus) // self.divisor

    def __str__(self) -> str:
        text = self.name if self.factor == 1 else f"{self.factor} * {self.name}"
        if self.plus:
            text += f" {'-' if self.plus < 0 else '+'} {abs(self.plus)}"
        return text if self.divisor == 1 else f"({text}) // {self.divisor}"


@dataclass(frozen=True)
class Tensor(Node):
    """A tensor parameter with the array that is passed for it.

    Args:
        name: its name.
        dims: the annotation of each dimension: a name, a number, or an expression of a name.
        dtype: element type.
        shape: the array's sizes.
        contents: what it holds.
        layout: how it lies in memory.
        policy: text of a numeric policy instead of the dtype; empty for none.
    """

    name: str
    dims: tuple[str | int | Spelled, ...]
    dtype: str
    shape: Shape
    contents: Contents
    layout: Layout
    policy: str = ""


@dataclass(frozen=True)
class ScalarParam(Node):
    """A run-time number: its annotation is `dtype`, or `int`/`float` when `python` is set."""

    name: str
    dtype: str
    value: int | float
    python: bool = False


@dataclass(frozen=True)
class Constant(Node):
    """A `ts.constexpr` parameter."""

    name: str
    value: int | float


Param = Tensor | ScalarParam | Constant


@dataclass(frozen=True)
class Program(Node):
    """A kernel and what it is run on.

    Args:
        seed: what it was drawn from; also draws the contents of its arrays.
        params: parameters in order.
        helpers: functions that it calls.
        grids: its launches, in order.
        profile: numerics profile.
        knobs: schedule knobs, by name.
        asserts: whether it is compiled with its asserts (`TESSERA_DEBUG=1`).
        assumes: what it says holds of every call, and does.
    """

    seed: int
    params: tuple[Param, ...]
    helpers: tuple[Helper, ...]
    grids: tuple[Grid, ...]
    profile: str = "fast"
    knobs: tuple[tuple[str, int | str], ...] = ()
    asserts: bool = False
    assumes: tuple[Expr, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensor parameters."""
        return tuple(param for param in self.params if isinstance(param, Tensor))

    @property
    def dims(self) -> dict[str, int]:
        """The size of each dimension name."""
        pairs = (pair for tensor in self.tensors for pair in zip(tensor.dims, tensor.shape, strict=True))
        named = {dim.name: dim.size for tensor in self.tensors for dim in tensor.dims if isinstance(dim, Spelled)}
        return {**named, **{dim: size for dim, size in pairs if isinstance(dim, str)}}


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node is made of, in source order."""
    found: list[Node] = []
    for part in fields(node):
        value = getattr(node, part.name)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            found += [item for item in cast(tuple[Any, ...], value) if isinstance(item, Node)]
    return tuple(found)


def rebuild(node: _N, parts: tuple[Node, ...]) -> _N:
    """Return a node like `node` made of other parts, given in the order of `children`."""
    given = iter(parts)
    changed: dict[str, Any] = {}
    for part in fields(node):
        value = getattr(node, part.name)
        if isinstance(value, Node):
            changed[part.name] = next(given)
        elif isinstance(value, tuple):
            items = cast(tuple[Any, ...], value)
            changed[part.name] = tuple(next(given) if isinstance(item, Node) else item for item in items)
    return replace(node, **changed)


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def has_effects(node: Node) -> bool:
    """Return whether evaluating an expression changes a tensor."""
    return any(isinstance(part, Atomic) for part in walk(node))


def float_value(expr: Expr) -> bool:
    """Return whether an expression is a float."""
    return is_float(expr.type.dtype)
