"""Ops that move no number."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from xdsl.ir import SSAValue

from tessera.ir.graph.points import FullOp
from tessera.ir.graph.types import ONE, ZERO, product
from tessera.numerics.dtypes import computed_in, i64
from tessera.schedule.fuse.places import root_of
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter, hint_of, order_of
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Elsewhere, Unknown, dim_of, fixed

_symbols: Any = import_module("torch.fx.experimental.symbolic_shapes")


@row("view.default", "_unsafe_view.default", "reshape.default", "view_copy.default", "unsqueeze.default")
def _reshaped(c: Converter, x: Any, _sizes: Any) -> Any:
    return c.w.reshape(x, c.result_dims())


@row("squeeze.dims", "squeeze.dim", "squeeze.default")
def _squeezed(c: Converter, x: Any, _dims: Any = None) -> Any:
    return c.w.reshape(x, c.result_dims())


@row("permute.default", "permute_copy.default")
def _permuted(c: Converter, x: Any, perm: Sequence[int]) -> Any:
    return c.w.transpose(x, [axis % len(perm) for axis in perm])


@row("transpose.int")
def _transposed(c: Converter, x: Any, first: int, second: int) -> Any:
    order = list(range(len(c.dims(x))))
    order[first], order[second] = order[second], order[first]
    return c.w.transpose(x, order)


@row("t.default")
def _flipped(c: Converter, x: Any) -> Any:
    return c.w.transpose(x, list(reversed(range(len(c.dims(x))))))


@row("expand.default")
def _expanded(c: Converter, x: Any, _sizes: Any, implicit: bool = False) -> Any:
    return c.w.broadcast_to(x, c.result_dims())


@row("select.int")
def selected(c: Converter, x: Any, axis: int, index: Any) -> Any:
    """Return the elements of one place along a dimension."""
    dims = list(c.dims(x))
    axis %= len(dims)
    start = _start(c, index, dims[axis])
    dims[axis] = ONE
    starts = [start if other == axis else ZERO for other in range(len(dims))]
    return c.w.without(c.w.slice(x, starts, [1] * len(dims), dims), [axis])


def _start(c: Converter, index: Any, size: Dim) -> Dim:
    """Return where a slice starts: PyTorch checks at each call that a start has the sign that it had when traced.

    Raises:
        Unknown: a number that only a call knows, whose sign may be either.
    """
    known = index if isinstance(index, int) else index.node.hint
    if known is None:
        raise Unknown("a place that is known when the graph runs")
    at = dim_of(index)
    if known >= 0:
        return at if not (at.is_static and size.is_static) else Dim((), min(at.scale, size.scale))
    long = size.value(c.w.hints)
    return size + at if long is None or known + long >= 0 else ZERO


@row("slice.Tensor")
def sliced(c: Converter, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """Return a part of a tensor, of which the result's sizes are known."""
    step = int(step)  # a size, from now on, that calls have to have: kernels are made for steps
    dims, wanted = list(c.dims(x)), c.result_dims()
    axis %= len(dims)
    if wanted[axis] == dims[axis] and step == 1:
        return x
    at = _start(c, 0 if start is None else start, dims[axis])
    dims[axis] = wanted[axis]
    starts = [at if other == axis else ZERO for other in range(len(dims))]
    return c.w.slice(x, starts, [step if other == axis else 1 for other in range(len(dims))], dims)


@row("split_with_sizes.default", "split.Tensor")
def divided(c: Converter, x: Any, _sizes: Any, axis: int = 0) -> Any:
    """Return parts that lie one after another along a dimension."""
    dims = list(c.dims(x))
    axis %= len(dims)
    parts: list[Any] = []
    start = ZERO
    for shape in c.results_dims():
        starts = [start if other == axis else ZERO for other in range(len(dims))]
        parts.append(c.w.slice(x, starts, [1] * len(dims), shape))
        start = start + shape[axis]
    return parts


@row("unbind.int")
def unbound(c: Converter, x: Any, axis: int = 0) -> Any:
    """Return the parts of each place along a dimension."""
    return [selected(c, x, axis, index) for index in range(len(c.results_dims()))]


@row("cat.default")
def joined(c: Converter, tensors: Sequence[Any], axis: int = 0) -> Any:
    """Return tensors one after another; one of no elements may have a single dimension whatever the others have."""
    dtype, rank = c.result_dtype(), max(len(c.dims(one)) for one in tensors)
    given = [c.w.cast(one, dtype) for one in tensors if len(c.dims(one)) == rank]
    return c.w.concat(given, axis % rank)


@row("slice_scatter.default")
def slice_scattered(
    c: Converter, x: Any, part: Any, axis: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    """Return a tensor with another one in place of a part."""
    step = int(step)
    dims = c.dims(x)
    axis %= len(dims)
    at = _start(c, 0 if start is None else start, dims[axis])
    starts = [at if other == axis else ZERO for other in range(len(dims))]
    placed = c.w.place(part, dims, starts, [step if other == axis else 1 for other in range(len(dims))])
    owner: Any = root_of(x).owner
    if isinstance(owner, FullOp) and owner.number == 0:
        return placed
    place = c.w.apply("sub", c.w.iota(dims, axis, i64), c.w.size(at, i64))
    inside = c.w.apply(
        "and", c.w.apply("ge", place, 0), c.w.apply("lt", place, c.w.size(c.dims(part)[axis] * step, i64))
    )
    if step != 1:
        inside = c.w.apply("and", inside, c.w.apply("eq", c.w.apply("mod", place, step), 0))
    return c.w.apply("select", inside, placed, x, dtype=c.w_dtype(x))


@row("constant_pad_nd.default")
def extended(c: Converter, x: Any, pads: Sequence[Any], value: Any = 0) -> Any:
    """Return a tensor with a number around it, or with fewer elements where a pad is negative."""
    rank, whole = len(c.dims(x)), c.result_dims()
    if not all(map(_has_sign, pads)):
        return _padded_or_cut(c, x, [*[0] * (rank - len(pads) // 2), *reversed(pads[::2])], whole, value)
    none = [(ZERO, ZERO)] * (rank - len(pads) // 2)
    before = none + [_kept_and_cut(pad) for pad in reversed(pads[::2])]
    after = none + [_kept_and_cut(pad) for pad in reversed(pads[1::2])]
    cut = [[each for _, each in pads] for pads in (before, after)]
    if any(each != ZERO for each in (*cut[0], *cut[1])):
        left = [dim - first - last for dim, first, last in zip(c.dims(x), *cut, strict=True)]
        x = c.w.slice(x, cut[0], [1] * rank, left)
    return padded(c, x, [start for start, _ in before], whole, value)


def _kept_and_cut(pad: Any) -> tuple[Dim, Dim]:
    """Return how many elements are put before or behind an array, and how many are left out."""
    dim = dim_of(pad)
    return (dim, ZERO) if _symbols.statically_known_true(pad >= 0) else (ZERO, dim * -1)


def _has_sign(pad: Any) -> bool:
    """Return whether all calls add elements, or all leave some out."""
    return _symbols.statically_known_true(pad >= 0) or _symbols.statically_known_true(pad <= 0)


def _padded_or_cut(c: Converter, x: Any, before: Sequence[Any], whole: Sequence[Dim], value: Any) -> Any:
    """Return an array among copies of a number, or a part of it: a call decides which, along each dimension."""
    inside: Any = None
    places: list[Any] = []
    for axis, (pad, size) in enumerate(zip(before, c.dims(x), strict=True)):
        place = c.w.apply("sub", c.w.iota(whole, axis, i64), c.w.size(dim_of(pad), i64))
        here = c.w.apply("and", c.w.apply("ge", place, 0), c.w.apply("lt", place, c.w.size(size, i64)))
        inside = here if inside is None else c.w.apply("and", inside, here)
        places.append(place)
    number = c.w.as_array(c.ready(value, c.w_dtype(x)), c.w_dtype(x))
    return c.w.apply("select", inside, c.w.take(x, places, whole), number, dtype=c.w_dtype(x))


def padded(c: Converter, x: Any, starts: Sequence[Dim], whole: Sequence[Dim], value: float) -> Any:
    """Return an array among copies of a number.

    Args:
        c: the converter.
        x: the array.
        starts: where it starts along each dimension.
        whole: the result's shape.
        value: the number.
    """
    if list(whole) == list(c.dims(x)):
        return c.copied(x)
    placed = c.w.place(x, whole, starts, [1] * len(starts))
    value = c.ready(value, c.w_dtype(x))
    if not isinstance(value, SSAValue) and value == 0:
        return placed
    inside = None
    for axis, (start, size) in enumerate(zip(starts, c.dims(x), strict=True)):
        if size != whole[axis]:
            place = c.w.iota(whole, axis, i64)
            end = c.w.size(start + size, i64)
            here = c.w.apply("and", c.w.apply("ge", place, c.w.size(start, i64)), c.w.apply("lt", place, end))
            inside = here if inside is None else c.w.apply("and", inside, here)
    number = c.w.as_array(value, c.w_dtype(x))
    return placed if inside is None else c.w.apply("select", inside, placed, number, dtype=c.w_dtype(x))


@row("flip.default")
def flipped(c: Converter, x: Any, axes: Sequence[int]) -> Any:
    """Return a tensor whose last elements along some dimensions come first."""
    dims = c.dims(x)
    turned = {axis % len(dims) for axis in axes if dims}
    last = {axis: c.w.size(dims[axis] - 1, i64) for axis in turned}
    places = {axis: c.w.apply("sub", last[axis], c.w.iota(dims, axis, i64)) for axis in turned}
    return c.w.take(x, [places.get(axis, axis) for axis in range(len(dims))], dims)


@row("diagonal.default", "diagonal_copy.default")
def _diagonal(c: Converter, x: Any, offset: int = 0, first: int = 0, second: int = 1) -> Any:
    rank, dims = len(c.dims(x)), c.result_dims()
    first, second = first % rank, second % rank
    at = c.w.iota(dims, rank - 2, i64)
    moved = {first: at if offset >= 0 else c.w.apply("add", at, -offset)}
    moved[second] = at if offset <= 0 else c.w.apply("add", at, offset)
    kept = iter(range(rank - 2))
    return c.w.take(x, [moved[axis] if axis in moved else next(kept) for axis in range(rank)], dims)


@row("diagonal_scatter.default")
def _on_diagonal(c: Converter, x: Any, part: Any, offset: int = 0, first: int = 0, second: int = 1) -> Any:
    dims = c.dims(x)
    first, second = first % len(dims), second % len(dims)
    row_, column = c.w.iota(dims, first, i64), c.w.iota(dims, second, i64)
    here = c.w.apply("eq", c.w.apply("sub", column, row_), offset)
    at = row_ if offset >= 0 else column
    kept: list[Any] = [axis for axis in range(len(dims)) if axis not in (first, second)]
    return c.w.apply("select", here, c.w.take(part, [*kept, at], dims), x, dtype=c.w_dtype(x))


@row("select_scatter.default")
def select_scattered(c: Converter, x: Any, part: Any, axis: int, index: Any) -> Any:
    """Return an array with a part of one place along a dimension."""
    dims = c.dims(x)
    axis %= len(dims)
    here = c.w.apply("eq", c.w.iota(dims, axis, i64), c.w.size(_start(c, index, dims[axis]), i64))
    return c.w.apply("select", here, c.w.with_ones(part, [axis]), x, dtype=c.w_dtype(x))


@row("unfold.default")
def _windows(c: Converter, x: Any, axis: int, size: Any, step: int) -> Any:
    dims, rank = c.result_dims(), len(c.dims(x))
    if rank == 0:
        return c.w.broadcast_to(x, dims)
    axis %= rank
    start = c.w.apply("mul", c.w.iota(dims, axis, i64), step)
    at = c.w.apply("add", start, c.w.iota(dims, rank, i64))
    return c.w.take(x, [at if other == axis else other for other in range(rank)], dims)


MOST_SHARED = 32
"""Windows that an element may be in: each is read for itself."""


@row("unfold_backward.default")
def _windows_back(c: Converter, g: Any, _sizes: Any, axis: int, size: Any, step: int) -> Any:
    dims, rank = c.result_dims(), len(c.dims(g)) - 1
    if not rank:
        return c.w.reduce("sum", g, [0])
    if not isinstance(size, int) or -(-size // step) > MOST_SHARED:
        raise Unknown("elements in many windows")
    axis %= rank
    at = c.w.iota(dims, axis, i64)
    wide = c.w.cast(g, computed_in(c.w_dtype(g)))
    total: Any = None
    for back in range(-(-size // step)):
        window = c.w.apply("sub", c.w.apply("floordiv", at, step), back)
        inner = c.w.apply("sub", at, c.w.apply("mul", window, step))
        places: list[Any] = [window if other == axis else other for other in range(rank)]
        there = c.w.apply("and", c.w.apply("ge", window, 0), c.w.apply("lt", window, c.w.size(c.dims(g)[axis], i64)))
        there = c.w.apply("and", there, c.w.apply("lt", inner, size))
        part = c.w.apply("select", there, c.w.take(wide, [*places, inner], dims), 0.0, dtype=c.w_dtype(wide))
        total = part if total is None else c.w.apply("add", total, part)
    return total


@row(*(f"replication_pad{rank}d_backward.default" for rank in (1, 2, 3)))
def _repeated_back(c: Converter, g: Any, x: Any, pads: Sequence[Any]) -> Any:
    rank = len(c.dims(x))
    pads = [fixed(pad) for pad in pads]
    if min(pads) < 0:
        raise Unknown("less padding than none")
    found = c.w.cast(g, computed_in(c.w_dtype(g)))
    for number, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
        if before or after:
            found = _ends_added(c, found, rank - number, c.dims(x)[rank - number], before, after)
    return found


def _ends_added(c: Converter, g: Any, axis: int, size: Dim, before: int, after: int) -> Any:
    """Return elements along a dimension without those before and behind, which are added to the first and last."""

    def part(start: int | Dim, count: int | Dim, is_sum: bool) -> Any:
        dims = list(c.dims(g))
        dims[axis] = ZERO + count
        starts = [ZERO + start if other == axis else ZERO for other in range(len(dims))]
        found = c.w.slice(g, starts, [1] * len(dims), dims)
        return c.w.reduce("sum", found, [axis], True) if is_sum else found

    if not size.is_static:
        found = part(before, size, False)
        at = c.w.iota(c.dims(found), axis, i64)
        for many, start, place in ((before, ZERO, ZERO), (after, size + before, size - 1)):
            if many:
                here = c.w.apply("eq", at, c.w.size(place, i64))
                more = c.w.apply("select", here, part(start, many, True), 0.0, dtype=c.w_dtype(g))
                found = c.w.apply("add", found, more)
        return found
    if size.scale == 1:
        return part(0, before + 1 + after, True)
    ends = part(0, before + 1, before > 0), part(before + size.scale - 1, after + 1, after > 0)
    middle = [part(before + 1, size.scale - 2, False)] if size.scale > 2 else []
    return c.w.concat([ends[0], *middle, ends[1]], axis)


@row("as_strided.default")
def _by_strides(c: Converter, x: Any, sizes: Sequence[Any], strides: Sequence[Any], offset: Any = None) -> Any:
    """Write elements by where they lie in memory, for what lies there without gaps, from its beginning on."""
    fake = c.node.args[0].meta["val"]
    order = order_of(fake)
    if not fake.is_contiguous() and order is None:
        raise Elsewhere("as_strided of memory with gaps")
    are_known = all(isinstance(one, int) for one in (*sizes, *strides, 0 if offset is None else offset))
    if not are_known and c.is_part_of_argument(c.node):
        raise Elsewhere("as_strided by sizes, from which PyTorch makes a part of an argument")
    own, dims = c.dims(x), c.result_dims()
    if not own or not dims or not isinstance(fake.storage_offset(), int) or fake.storage_offset() != 0:
        raise Elsewhere("as_strided of memory from another place on")
    flat = c.w.reshape(x if order is None else c.w.transpose(x, order), [product(own)])
    place = c.w.broadcast_to(c.w.size(dim_of(0 if offset is None else offset), i64), dims)
    for axis, stride in enumerate(strides):
        moved = c.w.apply("mul", c.w.iota(dims, axis, i64), c.w.size(dim_of(stride), i64))
        place = c.w.apply("add", place, moved)
    return c.w.take(flat, [place], dims)


@row("as_strided_scatter.default")
def _set_by_strides(
    c: Converter, x: Any, part: Any, sizes: Sequence[Any], strides: Sequence[Any], offset: Any = None
) -> Any:
    """Write elements where they lie in memory, no two at one place, of what lies there without gaps."""
    fake = c.node.args[0].meta["val"]
    first = 0 if offset is None else offset
    if not fake.is_contiguous() or fake.storage_offset() != 0 or not isinstance(first, int):
        raise Unknown("as_strided_scatter into memory with gaps")
    axes = sorted(range(len(sizes)), key=lambda axis: (-hint_of(strides[axis]), axis))
    count: Any = 1
    for axis in reversed(axes):
        if sizes[axis] != 1 and strides[axis] != count:
            return _set_apart(c, x, part, [(axis, sizes[axis], strides[axis]) for axis in axes], first)
        count = count * sizes[axis]
    own, length = c.dims(x), dim_of(count)
    flat = c.w.reshape(c.w.cast(c.w.transpose(part, axes), c.w_dtype(x)), [length])
    if c.w.same(length, product(own)):
        return c.w.reshape(flat, own)
    if not length.is_static or not product(own).is_static:
        raise Unknown("as_strided_scatter of a part by sizes")
    before, rest = c.w.reshape(x, [product(own)]), product(own).scale - first - length.scale
    ends = [(0, first), (first + length.scale, rest)]
    front, back = (c.w.slice(before, [ZERO + at], [1], [ZERO + many]) if many else None for at, many in ends)
    return c.w.reshape(c.w.concat([one for one in (front, flat, back) if one is not None], 0), own)


def _set_apart(c: Converter, x: Any, part: Any, steps: Sequence[tuple[int, Any, Any]], first: int) -> Any:
    """Return an array with elements set that lie apart in memory: each of its own elements finds what is set there.

    Args:
        c: the converter.
        x: the array.
        part: what is set.
        steps: dimensions of the part, the longest stride first, each with its size and stride.
        first: where the first element of the part lies.
    """
    count = 1
    for _, size, stride in reversed(steps):
        if not isinstance(size, int) or not isinstance(stride, int) or (size > 1 and stride < count):
            raise Unknown("as_strided_scatter of elements of any sizes, or that overlap")
        count += (size - 1) * stride
    own, length = c.dims(x), product(c.dims(x))
    rest = c.w.apply("sub", c.w.iota([length], 0, i64), first)
    inside = c.w.apply("ge", rest, 0)
    places: list[Any] = [0] * len(steps)
    for axis, size, stride in steps:
        if size == 1:
            places[axis] = c.w.broadcast_to(c.w.full(0, i64), [length])
            continue
        places[axis] = c.w.apply("floordiv", rest, stride)
        rest = c.w.apply("mod", rest, stride)
        inside = c.w.apply("and", inside, c.w.apply("lt", places[axis], size))
    inside = c.w.apply("and", inside, c.w.apply("eq", rest, 0))
    found = c.w.take(c.w.cast(part, c.w_dtype(x)), places, [length])
    return c.w.reshape(c.w.apply("select", inside, found, c.w.reshape(x, [length]), dtype=c.w_dtype(x)), own)
