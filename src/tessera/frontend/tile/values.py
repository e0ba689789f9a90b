"""The types of the language's values, as editors and type checkers see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from tessera.errors import LanguageError
from tessera.numerics.dtypes import DType, Policy


class Scalar:
    """A number known only when the kernel runs: an index, an element, a scalar parameter."""

    def __init__(self) -> None:
        _not_made_by_hand("a scalar")

    def _operator(self, other: Any = None) -> Any: ...

    __matmul__ = __rmatmul__ = _operator
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operator
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _operator
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _operator
    __lt__ = __le__ = __gt__ = __ge__ = _operator

    def __neg__(self) -> Any: ...

    def __invert__(self) -> Any: ...


class Tile(Scalar):
    """An immutable block of values of one static shape, held by the whole program.

    Operators work element by element with NumPy's broadcasting; Python numbers take the tile's dtype.
    """

    def __init__(self) -> None:
        _not_made_by_hand("a tile")

    @property
    def T(self) -> Tile:
        """The tile with its last two dimensions exchanged."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        ...

    @property
    def dtype(self) -> DType:
        """The element type."""
        ...

    def to(self, dtype: DType | Policy | str) -> Tile:
        """Return the tile converted to another dtype, like `ts.tile.cast`."""
        ...

    def astype(self, dtype: DType | Policy | str) -> Tile:
        """Return the tile converted to another dtype, like `to`."""
        ...

    def reshape(self, *shape: int | Sequence[int]) -> Tile:
        """Return the elements as another shape, like `ts.tile.reshape`: `x.reshape(8, -1)`."""
        ...

    def transpose(self, *perm: int | Sequence[int]) -> Tile:
        """Permute the dimensions, like `ts.tile.transpose`; without arguments exchange the last two, as `x.T` does."""
        ...

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Tile:
        """Return the sum along `axis`, or of all elements, like `ts.tile.sum`."""
        ...

    def max(self, axis: Axes = None, keepdims: bool = False) -> Tile:
        """Return the largest element along `axis`, or of all, like `ts.tile.max`."""
        ...

    def min(self, axis: Axes = None, keepdims: bool = False) -> Tile:
        """Return the smallest element along `axis`, or of all, like `ts.tile.min`."""
        ...

    def prod(self, axis: Axes = None, keepdims: bool = False) -> Tile:
        """Return the product along `axis`, or of all elements, like `ts.tile.prod`."""
        ...

    def any(self, axis: Axes = None, keepdims: bool = False) -> Tile:
        """Return whether an element of a bool tile is true, like `ts.tile.any`."""
        ...

    def all(self, axis: Axes = None, keepdims: bool = False) -> Tile:
        """Return whether all elements of a bool tile are true, like `ts.tile.all`."""
        ...

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Tile:
        """Return the mean along `axis`, or of all elements, like `ts.tile.mean`."""
        ...

    def var(self, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tile:
        """Return the variance along `axis`, or of all elements, like `ts.tile.var`."""
        ...

    def cumsum(self, axis: int = -1, reverse: bool = False) -> Tile:
        """Return the running sum along `axis`, like `ts.tile.cumsum`."""
        ...

    def flip(self, axis: Axes = None) -> Tile:
        """Return the elements in reverse order along `axis`, or along all dimensions, like `ts.tile.flip`."""
        ...

    def roll(self, shift: int | Scalar | Sequence[int | Scalar], axis: Axes = None) -> Tile:
        """Return the elements moved round along `axis`, like `ts.tile.roll`."""
        ...

    def split(self, parts: int, axis: int = 0) -> tuple[Tile, ...]:
        """Return equal parts along `axis`, like `ts.tile.split`."""
        ...

    def take(self, index: TileLike, axis: int | None = None, fill: float | int | bool | Scalar | None = None) -> Any:
        """Return the elements that `index` names along `axis`, like `ts.tile.take`."""
        ...

    def __getitem__(self, index: Any) -> Any:
        """Return a part: `x[2:6, ::-1]`, `x[i : i + 8]`, an element `x[i, j]`, a new dimension `x[:, None]`."""
        ...


class Shared:
    """A buffer in the program's shared memory; made by `ts.tile.alloc_shared`.

    `buffer[stage]` is one stage of a buffer with a leading dimension, `buffer.T` a transposed view, and
    `buffer[...] = tile` writes the whole buffer. The methods of tiles read it: `buffer.sum(axis=0)`.
    """

    def __init__(self) -> None:
        _not_made_by_hand("a shared buffer")

    @property
    def T(self) -> Shared:
        """A view with the last two dimensions exchanged; nothing moves."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        ...

    @property
    def dtype(self) -> DType:
        """The element type."""
        ...

    def __getitem__(self, index: Any) -> Shared:
        """Return one stage of the buffer."""
        ...

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write a tile to the whole buffer."""


class Barrier:
    """One of `ts.tile.mbarrier.alloc`'s barriers."""

    def __init__(self) -> None:
        _not_made_by_hand("a barrier")


class Barriers:
    """What `ts.tile.mbarrier.alloc` gives; `barriers[slot]` is one of them."""

    def __init__(self) -> None:
        _not_made_by_hand("a barrier")

    def __getitem__(self, index: Any) -> Barrier: ...


class Context:
    """What `ts.tile.context()` gives: tuned constants and dimension names as attributes."""

    def __init__(self) -> None:
        _not_made_by_hand("a context")

    def __getattr__(self, name: str) -> Any: ...


Axes: TypeAlias = "int | tuple[int, ...] | None"
"""A dimension, counted from the end when negative, several of them, or all."""

TileLike: TypeAlias = "Tile | Shared | Scalar | int | float | bool"
"""A tile, a slice of a tensor, a shared buffer, a run-time scalar or a Python number."""


def _not_made_by_hand(what: str) -> NoReturn:
    raise LanguageError(f"{what} exists inside a kernel only", code="outside-kernel", help="see ts.tile")
