"""Pools: windows are parts of the padded image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any, cast

from tessera.data import dataclass
from tessera.ir.graph.types import ZERO, ordered
from tessera.ir.graph.types import product as size_of
from tessera.numerics.dtypes import computed_in, i32, i64
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.rows import uneven
from tessera.torch.compiled.rows.scatters import scattered
from tessera.torch.compiled.rows.views import padded
from tessera.torch.compiled.sizes import Unknown, fixed

MOST = 32
"""Elements of the largest window whose elements are each read for themselves; others go along one dimension at a time,
in which they may have as many."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along the last dimensions of images.

    Args:
        own: the images' sizes.
        dims: the result's sizes.
        kernel: elements of a window along each of the last dimensions.
        stride: how far windows are apart.
        padding: elements before the first, and behind the last.
        dilation: how far the elements of a window are apart.
    """

    own: tuple[Dim, ...]
    dims: tuple[Dim, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def first(self) -> int:
        """The first dimension that windows go along."""
        return len(self.own) - len(self.kernel)

    @property
    def reach(self) -> list[Dim]:
        """The size of the padded image that windows read, along each dimension."""
        parts = zip(self.dims[self.first :], self.spans, self.stride, strict=True)
        return [(dim - 1) * step + span for dim, span, step in parts]

    @property
    def spans(self) -> list[int]:
        """From the first to the last element of a window, along each dimension."""
        return [(size - 1) * apart + 1 for size, apart in zip(self.kernel, self.dilation, strict=True)]

    @property
    def padded(self) -> list[Dim]:
        """The size of an image that has room for all windows, along each dimension.

        Where sizes are not known it may be larger than they need.
        """
        sizes = zip(self.own[self.first :], self.padding, self.reach, self.stride, strict=True)
        return [
            Dim((), max(own.scale + pad, reach.scale))
            if own.is_static and reach.is_static
            else own + (2 * pad + step - 1)
            for own, pad, reach, step in sizes
        ]

    @property
    def is_inside(self) -> bool:
        """Whether windows read nothing but the image."""
        sizes = zip(self.own[self.first :], self.reach, strict=True)
        left = [size - reach for size, reach in sizes]
        inside = [rest.is_static and rest.scale >= 0 for rest in left]
        fits = zip(self.own[self.first :], self.dims[self.first :], self.spans, self.stride, strict=True)
        return not any(self.padding) and all(one or _fit(*each) for one, each in zip(inside, fits, strict=True))


def _passes(w: Windows, counts: Sequence[int]) -> list[Windows]:
    """Return windows that together do what others do: along one dimension each, the last one first, if need be.

    Args:
        w: the windows.
        counts: how many elements are read along each dimension.
    """
    if prod(counts) <= MOST:
        return [w]
    own, found = w.own, list[Windows]()
    for axis in reversed(range(len(w.kernel))):
        at = w.first + axis
        dims = (*own[:at], w.dims[at], *own[at + 1 :])
        how = (w.kernel, 1), (w.stride, 1), (w.padding, 0), (w.dilation, 1)
        found.append(Windows(own, dims, *(_only(axis, values, none) for values, none in how)))
        own = dims
    return found


def _only(axis: int, values: Sequence[int], none: int) -> tuple[int, ...]:
    """Return values of which those of other dimensions than one are such that nothing is done along them."""
    return tuple(value if at == axis else none for at, value in enumerate(values))


def _fit(size: Dim, dim: Dim, span: int, step: int) -> bool:
    """Return whether there are as many windows as an image of any size has room for."""
    return ordered(dim) in (ordered((size - span) // step + 1), *((ordered(size // step),) if span == step else ()))


def _windows(c: Converter, x: Any, *given: Any, rank: int) -> Windows:
    """Return the windows of an op.

    Args:
        c: the converter.
        x: images.
        given: kernel, stride, padding and dilation.
        rank: along how many dimensions windows go.
    """
    kernel, stride, padding, dilation = (_each(value, rank) for value in given)
    fakes = c.node.meta["val"]
    dims = c.results_dims()[0] if isinstance(fakes, tuple | list) else c.result_dims()
    if max(kernel) > MOST or not c.is_float(x):
        raise Unknown("large windows, or windows of integers")
    return Windows(c.dims(x), dims, kernel, stride or kernel, padding, dilation)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    several = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else (value,)
    given = [fixed(one) for one in several]
    return tuple(given * rank if len(given) == 1 else given)


def _parts(c: Converter, x: Any, w: Windows, fill: float) -> list[tuple[tuple[int, ...], Any]]:
    """Return for each place in a window the elements that windows have there."""
    if not w.is_inside:
        front = [ZERO] * w.first + [Dim((), pad) for pad in w.padding]
        x = padded(c, x, front, [*w.own[: w.first], *w.padded], fill)
    steps = [1] * w.first + list(w.stride)
    found: list[tuple[tuple[int, ...], Any]] = []
    for place in product(*map(range, w.kernel)):
        starts = [Dim((), at * apart) for at, apart in zip(place, w.dilation, strict=True)]
        found.append((place, c.w.slice(x, [ZERO] * w.first + starts, steps, w.dims)))
    return found


@row("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _largest(
    c: Converter, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    rank = 2 if "2d" in str(c.node.target) else 3
    w = _windows(c, x, kernel, stride, padding, dilation, rank=rank)
    whole, *others = _passes(w, w.kernel)
    found, numbers = _largest_in(c, x, None, whole)
    for each in others:
        found, numbers = _largest_in(c, c.w.stored(found), c.w.stored(numbers), each)
    return [found, numbers]


def _largest_in(c: Converter, x: Any, numbers: Any, w: Windows) -> tuple[Any, Any]:
    """Return the largest elements of windows, and which of the image they are.

    Args:
        c: the converter.
        x: elements.
        numbers: which of the image they are; None where they are all of it.
        w: the windows.
    """
    none = c.w.full(float("-inf"), c.w_dtype(x))
    best = c.w.broadcast_to(none, w.dims)
    if numbers is None:
        number, others = _number(c, w, None), [_number(c, w, place) for place in product(*map(range, w.kernel))]
    else:
        places = [*range(w.first), *(_first(c, w, axis) for axis in range(len(w.kernel)))]
        number, others = c.w.take(numbers, places, w.dims), [part for _, part in _parts(c, numbers, w, 0)]
    for (_, value), other in zip(_parts(c, x, w, float("-inf")), others, strict=True):
        better = c.w.apply("or", c.w.apply("gt", value, best), c.w.apply("isnan", value))
        number = c.w.apply("select", better, other, number)
        best = c.w.apply("maximum", best, value)
    return best, number


def _first(c: Converter, w: Windows, axis: int) -> Any:
    """Return where along a dimension the first element of each window is that is in the image."""
    at = c.w.apply("mul", c.w.iota(w.dims, w.first + axis, i64), w.stride[axis])
    at = c.w.apply("sub", at, w.padding[axis])
    return c.w.apply("select", c.w.apply("lt", at, 0), c.w.apply("mod", at, w.dilation[axis]), at)


def _number(c: Converter, w: Windows, place: tuple[int, ...] | None) -> Any:
    """Return which element of the image a place in windows is; by default the first one that is in the image."""
    total: Any = None
    for axis in range(len(w.kernel)):
        if place:
            at = c.w.apply("mul", c.w.iota(w.dims, w.first + axis, i64), w.stride[axis])
            at = c.w.apply("add", at, place[axis] * w.dilation[axis] - w.padding[axis])
        else:
            at = _first(c, w, axis)
        size = c.w.size(w.own[w.first + axis], i64)
        total = at if total is None else c.w.apply("add", c.w.apply("mul", total, size), at)
    return total


@row("avg_pool2d.default", "avg_pool3d.default")
def _average(
    c: Converter,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    with_padding: bool = True,
    divisor: Any = None,
) -> Any:
    rank = 2 if "2d" in str(c.node.target) else 3
    sizes = _each(kernel, rank)
    if prod(sizes) > MOST and divisor is None and _are_blocks(c, x, sizes, stride, padding):
        return _mean_of_blocks(c, x, sizes)
    w = _windows(c, x, kernel, stride, padding, 1, rank=rank)
    return _mean_of(c, x, w, with_padding, divisor)


def _are_blocks(c: Converter, x: Any, kernel: tuple[int, ...], stride: Any, padding: Any) -> bool:
    """Return whether windows are all of an image, side by side."""
    rank, dims = len(kernel), c.dims(x)
    alike = _each(stride or kernel, rank) == kernel and not any(_each(padding, rank)) and c.is_float(x)
    exact = zip(dims[-rank:], c.result_dims()[-rank:], kernel, strict=True)
    return alike and all(own.is_static and own == dim * size for own, dim, size in exact)


def _mean_of(c: Converter, x: Any, w: Windows, with_padding: bool = True, divisor: Any = None) -> Any:
    total = c.w.cast(x, computed_in(c.w_dtype(x)))
    passes = _passes(w, w.kernel)
    for each in passes:
        total = total if each is passes[0] else c.w.stored(total)
        total = reduce(partial(c.w.apply, "add"), [part for _, part in _parts(c, total, each, 0)])
    if divisor is not None or w.is_inside:
        return c.w.apply("div", total, float(prod(w.kernel) if divisor is None else fixed(divisor)))
    return c.w.apply("div", total, c.w.cast(_counts(c, w, with_padding), c.w_dtype(total)))


def _counts(c: Converter, w: Windows, with_padding: bool) -> Any:
    """Return how many elements each window has, in the image or with its padding."""
    total: Any = None
    for axis in range(len(w.kernel)):
        pad, size = w.padding[axis], w.own[w.first + axis]
        start = c.w.apply("mul", c.w.iota(w.dims, w.first + axis, i64), w.stride[axis])
        start = c.w.apply("add", start, -pad)
        end = c.w.apply("minimum", c.w.apply("add", start, w.kernel[axis]), c.w.size(size + pad, i64))
        if not with_padding:
            start, end = c.w.apply("maximum", start, 0), c.w.apply("minimum", end, c.w.size(size, i64))
        count = c.w.apply("sub", end, start)
        total = count if total is None else c.w.apply("mul", total, count)
    return total


@row("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive(c: Converter, x: Any, _sizes: Any) -> Any:
    rank = 2 if "2d" in str(c.node.target) else 3
    if not _is_multiple(c.dims(x), c.result_dims(), rank):
        return uneven.mean_of(c, x, c.result_dims(), rank)
    kernel = _ratios(c.dims(x), c.result_dims(), rank)
    if prod(kernel) > MOST:
        return _mean_of_blocks(c, x, kernel)
    return _mean_of(c, x, _windows(c, x, kernel, (), 0, 1, rank=rank))


def _mean_of_blocks(c: Converter, x: Any, kernel: Sequence[int]) -> Any:
    """Return the mean of each block, of any size: a reduction."""
    dims, rank = c.dims(x), len(kernel)
    shape = list(dims[:-rank])
    for dim, size in zip(dims[-rank:], kernel, strict=True):
        shape += [dim // size, Dim((), size)]
    axes = list(range(len(dims) - rank + 1, len(shape), 2))
    wide = c.w.cast(c.w.reshape(x, shape), computed_in(c.w_dtype(x)))
    return c.w.apply("div", c.w.reduce("sum", wide, axes), float(prod(kernel)))


def _is_multiple(long: Sequence[Dim], short: Sequence[Dim], rank: int) -> bool:
    """Return whether sizes are surely whole numbers times others, along the last dimensions."""
    sizes = zip(long[-rank:], short[-rank:], strict=True)
    return all(one.is_static and other.is_static and one.scale % other.scale == 0 for one, other in sizes)


def _ratios(long: Sequence[Dim], short: Sequence[Dim], rank: int) -> tuple[int, ...]:
    return tuple(one.scale // other.scale for one, other in zip(long[-rank:], short[-rank:], strict=True))


@row("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def _average_back(
    c: Converter,
    g: Any,
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    with_padding: bool,
    divisor: Any,
) -> Any:
    w = _back(c, g, x, kernel, stride, padding, 1)
    if w.kernel == w.stride and w.is_inside:
        return _spread(c, g, w.own, w.kernel, 1.0 / (prod(w.kernel) if divisor is None else fixed(divisor)))
    wide = c.w.cast(g, computed_in(c.w_dtype(g)))
    if divisor is not None:
        wide = c.w.apply("div", wide, float(fixed(divisor)))
    elif w.is_inside:
        wide = c.w.apply("div", wide, float(prod(w.kernel)))
    else:
        wide = c.w.apply("div", wide, c.w.cast(_counts(c, w, with_padding), c.w_dtype(wide)))
    passes = _passes(w, _shares(w))
    for each in reversed(passes):
        wide = wide if each is passes[-1] else c.w.stored(wide)
        wide = reduce(partial(c.w.apply, "add"), _shared(c, wide, each))
    return wide


def _shared(c: Converter, g: Any, w: Windows) -> Iterator[Any]:
    """Give what the windows have that an element can be in, 0 where there is none."""
    for places, inside in _covering(c, w):
        yield c.w.apply("select", inside, c.w.take(g, places, w.own), 0.0, dtype=c.w_dtype(g))


def _back(c: Converter, g: Any, x: Any, *given: Any) -> Windows:
    """Return the windows of an op that goes backwards.

    Raises:
        Unknown: an element is in too many of them.
    """
    rank = 3 if "3d" in str(c.node.target) else 2
    kernel, stride, padding, dilation = (_each(value, rank) for value in given)
    w = Windows(c.dims(x), c.dims(g), kernel, stride or kernel, padding, dilation)
    alike = w.kernel == w.stride and set(w.dilation) == {1} and w.is_inside
    if not alike and max(_shares(w)) > MOST:
        raise Unknown("elements in many windows")
    return w


def _shares(w: Windows) -> tuple[int, ...]:
    """Return in how many windows an element can be, along each dimension."""
    parts = zip(w.kernel, w.stride, w.dilation, strict=True)
    return tuple(-(-((size - 1) * apart + 1) // step) for size, step, apart in parts)


def _covering(c: Converter, w: Windows) -> Iterator[tuple[list[Any], Any]]:
    """Give the windows that can have an element, by their places, and whether there is one and the element in it."""
    for back in product(*map(range, _shares(w))):
        places: list[Any] = list(range(len(w.own)))
        inside: Any = None
        for axis, less in enumerate(back):
            at = c.w.apply("add", c.w.iota(w.own, w.first + axis, i32), w.padding[axis])
            place = c.w.apply("sub", c.w.apply("floordiv", at, w.stride[axis]), less)
            apart = c.w.apply("sub", at, c.w.apply("mul", place, w.stride[axis]))
            here = c.w.apply("lt", apart, (w.kernel[axis] - 1) * w.dilation[axis] + 1)
            here = _also_there(c, w, axis, less, place, here)
            inside = here if inside is None else c.w.apply("and", inside, here)
            places[w.first + axis] = place
        yield places, inside


def _also_there(c: Converter, w: Windows, axis: int, less: int, place: Any, here: Any) -> Any:
    """Return a condition and whether there is a window at a place, `less` before the last one that an element is in."""
    pad, step = w.padding[axis], w.stride[axis]
    own, count = w.own[w.first + axis], w.dims[w.first + axis]
    if pad // step < less:
        here = c.w.apply("and", here, c.w.apply("ge", place, 0))
    if not (own.is_static and count.is_static) or (own.scale - 1 + pad) // step - less >= count.scale:
        here = c.w.apply("and", here, c.w.apply("lt", place, c.w.size(count, i32)))
    return here


@row("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def _adaptive_back(c: Converter, g: Any, x: Any) -> Any:
    rank = 2 if "2d" in str(c.node.target) else 3
    if not _is_multiple(c.dims(x), c.dims(g), rank):
        return uneven.mean_back(c, g, c.dims(x), rank)
    kernel = _ratios(c.dims(x), c.dims(g), rank)
    return _spread(c, g, c.dims(x), kernel, 1.0 / prod(kernel))


def _spread(c: Converter, g: Any, dims: Sequence[Dim], kernel: Sequence[int], scale: float) -> Any:
    """Return a number for each window, scaled, at each of its elements."""
    wide = c.w.apply("mul", c.w.cast(g, computed_in(c.w_dtype(g))), scale)
    places = _places(c, dims, kernel)
    return _where_there(c, g, places, kernel, c.w.take(wide, places, dims))


def _where_there(c: Converter, g: Any, places: Sequence[Any], kernel: Sequence[int], found: Any) -> Any:
    """Return what was taken from windows side by side, 0 for elements behind the last one."""
    dims = c.dims(found)
    for axis, size in enumerate(kernel, len(dims) - len(kernel)):
        count = c.dims(g)[axis]
        if ordered(count * size) != ordered(dims[axis]):
            place = places[axis] if size != 1 else c.w.iota(dims, axis, i64)
            here = c.w.apply("lt", c.w.cast(place, i64), c.w.size(count, i64))
            found = c.w.apply("select", here, found, 0.0, dtype=c.w_dtype(found))
    return found


def _places(c: Converter, dims: Sequence[Dim], kernel: Sequence[int]) -> list[Any]:
    """Return for each dimension of windows in which of them elements are."""
    first = len(dims) - len(kernel)
    small = all(dim.is_static and dim.scale < 1 << 30 for dim in dims[first:])
    found: list[Any] = list(range(len(dims)))
    for axis, size in enumerate(kernel, first):
        if size != 1:
            found[axis] = c.w.apply("floordiv", c.w.iota(dims, axis, i32 if small else i64), size)
    return found


@row("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def _largest_back(
    c: Converter, g: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, numbers: Any
) -> Any:
    w = _back(c, g, x, kernel, stride, padding, dilation)
    own = _number(
        c, replace(w, dims=w.own, stride=(1,) * len(w.kernel), padding=(0,) * len(w.kernel)), (0,) * len(w.kernel)
    )
    if w.kernel == w.stride and set(w.dilation) == {1} and w.is_inside:
        places = _places(c, w.own, w.kernel)
        return _where_there(c, g, places, w.kernel, _taken_back(c, g, numbers, own, places, None))
    if prod(_shares(w)) > MOST:
        return _added_where_taken(c, g, numbers, w)
    total: Any = None
    for places, inside in _covering(c, w):
        part = _taken_back(c, g, numbers, own, places, inside)
        part = c.w.cast(part, computed_in(c.w_dtype(g)))
        total = part if total is None else c.w.apply("add", total, part)
    return total


def _added_where_taken(c: Converter, g: Any, numbers: Any, w: Windows) -> Any:
    """Return the same as a sum at the places that windows took."""
    lead = list(w.own[: w.first])
    dtype = computed_in(c.w_dtype(g))
    g, numbers = (c.w.reshape(one, [*lead, size_of(w.dims[w.first :])]) for one in (c.w.cast(g, dtype), numbers))
    none = c.w.broadcast_to(c.w.full(0, dtype), [*lead, size_of(w.own[w.first :])])
    return c.w.reshape(scattered(c, none, w.first, numbers, g, "sum"), w.own)


def _taken_back(c: Converter, g: Any, numbers: Any, own: Any, places: list[Any], inside: Any) -> Any:
    """Return what goes back from windows at some places, where there are any, to the elements that they took."""
    dims = c.dims(own)
    here = c.w.apply("eq", c.w.take(numbers, places, dims), own)
    here = here if inside is None else c.w.apply("and", inside, here)
    return c.w.apply("select", here, c.w.take(g, places, dims), 0.0, dtype=c.w_dtype(g))
