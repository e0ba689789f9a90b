"""What loads, stores and atomics mean: places in tensors, bounded by them, masked by predicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.tools.fuzz import meaning_elementwise as elementwise
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.meaning_values import FORMATS, Array, Undetermined, Val, either, possible_steps, rounded
from tessera.tools.fuzz.types import Shape, fits, is_float

if TYPE_CHECKING:
    from tessera.tools.fuzz.meaning import Machine


@dataclass(frozen=True, slots=True)
class Place:
    """Elements of a tensor.

    Args:
        shape: shape of what is taken, new dimensions included.
        raw: shape without them.
        indices: an index into each dimension of the tensor, 0 for what is outside: arrays that broadcast to `raw`, or
            slices and integers where nothing is outside and nothing masked.
        inside: where the elements exist, in `raw`; None when all do.
        distinct: whether no element is named twice.
        events: where to note two different stores to one element.
    """

    shape: Shape
    raw: Shape
    indices: tuple[Any, ...]
    inside: Array | None
    distinct: bool
    events: set[str]

    def _active(self, mask: Val | None) -> Array | None:
        active = self.inside
        if mask is not None:
            chosen = mask.data.reshape(self.raw)
            active = chosen if active is None else active & chosen
        return active

    def load(self, tensor: Val, fill: Val, mask: Val | None) -> Val:
        """Return the elements, `fill` where there are none."""
        active = self._active(mask)
        if not tensor.data.size:
            return fill.moved(lambda data: np.broadcast_to(data, self.shape))

        def read(part: Array, instead: Any) -> Array:
            found = np.array(part[self.indices])
            if found.shape != self.raw:
                found = np.array(np.broadcast_to(found, self.raw))
            if active is not None:
                found = np.where(active, found, instead)
            return found.reshape(self.shape)

        err = None if tensor.err is None and fill.err is None else read(tensor.errors(), fill.errors())
        known = None if tensor.known is None and fill.known is None else read(tensor.mask(), fill.mask())
        if mask is not None and mask.known is not None:
            known = mask.known if known is None else known & mask.known
        return Val(tensor.dtype, read(tensor.data, fill.data), err, known)

    def store(self, tensor: Val, value: Val, mask: Val | None) -> Val:
        """Return the tensor with the elements that exist changed; its arrays are changed in place."""
        active = self._active(mask)
        if not tensor.data.size:
            return tensor
        if active is None and self.distinct and value.err is tensor.err is value.known is tensor.known is None:
            tensor.data[self.indices] = value.data.reshape(self.raw)
            return tensor
        if active is None:
            active = np.ones(self.raw, np.bool_)
            if self.indices and isinstance(self.indices[0], slice | int):
                return self._spread(tensor).store(tensor, value, mask)
        at = tuple(np.broadcast_to(index, self.raw)[active] for index in self.indices)
        err, known = tensor.err, tensor.known
        data = value.data.reshape(self.raw)[active]
        if value.err is not None or err is not None:
            err = tensor.errors() if err is None else err
            err[at] = value.errors().reshape(self.raw)[active]
        given = value.mask()
        if mask is not None and mask.known is not None:
            given = given & mask.known
            doubtful = ~mask.known.reshape(self.raw)
            doubtful = doubtful if self.inside is None else doubtful & self.inside
            known = tensor.mask() if known is None else known
            known[tuple(np.broadcast_to(index, self.raw)[doubtful] for index in self.indices)] = False
        if known is not None or not given.all():
            known = tensor.mask() if known is None else known
            known[at] = given.reshape(self.raw)[active]
        if not self.distinct:
            known = self._conflicts(tensor, at, data, known)
        tensor.data[at] = data
        return Val(tensor.dtype, tensor.data, err, known)

    def _spread(self, tensor: Val) -> Place:
        """Return the same place with arrays for indices."""
        numbers = np.arange(tensor.data.size).reshape(tensor.shape)[self.indices]
        indices = tuple(np.unravel_index(numbers, tensor.shape))
        inside = np.ones(self.raw, np.bool_)
        return Place(self.shape, self.raw, indices, inside, self.distinct, self.events)

    def _conflicts(self, tensor: Val, at: Any, data: Array, known: Array | None) -> Array | None:
        """Mark elements that are given different values at once."""
        flat = _flat(at, tensor.shape)
        order = np.argsort(flat, kind="stable")
        twice: Array = (flat[order][1:] == flat[order][:-1]) & (data[order][1:] != data[order][:-1])
        if twice.any():
            self.events.add("race")
            known = tensor.mask() if known is None else known
            known.reshape(-1)[flat[order][1:][twice]] = False
        return known

    def update(
        self, tensor: Val, fn: str, value: Val, compare: Val | None, mask: Val | None, profile: str
    ) -> tuple[Val, Val]:
        """Return the old elements and the tensor after atomic updates, one after the other."""
        if mask is not None and mask.known is not None:
            raise Undetermined("an atomic's mask")
        active = self._active(mask)
        whole = np.ones(self.raw, np.bool_) if active is None else active
        at = tuple(np.broadcast_to(index, self.raw)[whole] for index in self.indices)
        old = self.load(tensor, Val(tensor.dtype, tensor.data.dtype.type(0)[...]), mask)
        known = old.mask() & whole.reshape(self.shape)
        flat = _flat(at, tensor.shape)
        if len(np.unique(flat)) == len(flat):
            new = _updated(fn, old, value, compare, tensor.dtype, profile)
            return Val(old.dtype, old.data, old.err, known), self.store(tensor, new, mask)
        # Which of several comes first is nobody's promise, so only what commutes has a meaning.
        if fn in ("exchange", "compare_exchange", "store"):
            raise Undetermined("exchanges of one element")
        parts = _flatten(value, whole.reshape(self.shape))
        for position, target in enumerate(flat):
            where: Any = np.unravel_index(int(target), tensor.shape)
            now = Val(tensor.dtype, tensor.data[where], *_notes(tensor, where))
            given = Val(value.dtype, parts[0][position], parts[1][position], parts[2][position])
            tensor = _put(tensor, where, _updated(fn, now, given, None, tensor.dtype, profile))
        return Val(old.dtype, old.data, old.err, np.zeros(self.shape, np.bool_)), tensor

    def note(self, sums: FloatSums, tensor: Val, value: Val, mask: Val | None, program: int) -> Val:
        """Return the tensor after an atomic addition of floats, within a bound where the order of additions matters."""
        active = self._active(mask)
        whole = np.ones(self.raw, np.bool_) if active is None else active
        flat = _flat(tuple(np.broadcast_to(index, self.raw)[whole] for index in self.indices), tensor.shape)
        where = whole.reshape(self.shape)
        sums.add(flat, Val(value.dtype, value.data[where], value.errors()[where]), program)
        return sums.after(tensor)


class FloatSums:
    """What atomics add to the elements of a tensor during one grid, whose programs run in any order.

    A sum of n numbers that are not zero, added in whatever order with the relative error u in each addition, is off by
    at most ((1 + u) ** (n - 1) - 1) times the sum of their magnitudes: each takes part in n - 1 additions or fewer.
    Additions lose nothing to underflow. Where all numbers are multiples of one that the mantissa holds all sums of,
    nothing is rounded. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 4.2.

    Args:
        before: what the tensor holds before.
    """

    def __init__(self, before: Val) -> None:
        flat = before.moved(lambda data: data.reshape(-1))
        self._total = flat.data.astype(np.longdouble)
        self._size = _finite_size(flat)
        self._err = np.array(flat.errors())
        self._step = possible_steps(flat)
        self._terms = (self._size > 0).astype(np.float64)
        self._program = np.full(flat.data.size, -1)
        self._free = np.zeros(flat.data.size, np.bool_)
        self._times = np.zeros(flat.data.size)
        self._small = _is_subnormal(flat.data)

    def add(self, flat: Array, values: Val, program: int) -> None:
        """Note what a program adds to elements, given by their numbers."""
        size = _finite_size(values)
        with np.errstate(invalid="ignore"):  # infinities of both signs
            np.add.at(self._total, flat, values.data.astype(np.longdouble))
        np.add.at(self._size, flat, size)
        np.add.at(self._err, flat, values.errors())
        np.minimum.at(self._step, flat, possible_steps(values))
        np.add.at(self._terms, flat, size > 0)
        before = self._program[flat]
        self._free[flat] |= (before >= 0) & (before != program)
        self._free |= np.bincount(flat, minlength=self._free.size) > 1
        self._program[flat] = program
        np.add.at(self._times, flat, 1.0)
        self._small[flat] |= _is_subnormal(values.data)

    def after(self, tensor: Val) -> Val:
        """Return what the tensor holds now, where `tensor` is what one order of additions leaves."""
        form, shape = FORMATS[tensor.dtype], tensor.shape
        within = (
            np.less if tensor.dtype == "f64" else np.less_equal
        )  # sums of float64 may have been rounded to the limit
        matters = self._free & ~within(self._size, self._step * 2.0 ** (form.mantissa + 1))
        grown = np.expm1(np.maximum(self._terms - 1, 0.0) * np.log1p(form.unit))
        with np.errstate(all="ignore"):
            total = self._total.astype(np.float64)
            rounding = grown * self._size + np.abs(total - self._total).astype(np.float64)
            bound = np.where(np.isfinite(total), self._err * (1 + grown) + rounding, 0.0)
            sums = rounded(tensor.dtype, total, bound, np.isnan(total) | (self._size * (1 + grown) <= form.largest))
        err = np.where(matters, sums.errors(), tensor.errors().reshape(-1))
        if tensor.dtype == "f32":
            err = np.where(matters, err + self._flushed(total), np.maximum(err, self._flushed(tensor.data.reshape(-1))))
        known = tensor.mask().reshape(-1) & (sums.mask() | ~matters)
        data = np.where(matters, sums.data, tensor.data.reshape(-1)).reshape(shape)
        return Val(tensor.dtype, data, err.reshape(shape) if err.any() else None, known.reshape(shape))

    def _flushed(self, results: Array) -> Array:
        """Return what GPUs may lose of f32 sums: they take subnormal numbers for zero (PTX ISA, `atom`, `.add.f32`)."""
        return np.where(self._small | _is_subnormal(results), self._times * 2 * _LEAST_NORMAL, 0.0)


def _finite_size(values: Val) -> Array:
    """Return how large finite numbers may be, 0 for others."""
    return np.where(np.isfinite(values.data), np.abs(values.data) + values.errors(), 0.0)


_LEAST_NORMAL = 2.0**-126


def _is_subnormal(values: Array) -> Array:
    """Return which numbers are subnormal in f32."""
    return (values != 0) & (np.abs(values) < _LEAST_NORMAL)


def _flat(at: Any, shape: Shape) -> Array:
    """Return the number of each element named, counted through the whole tensor."""
    number = np.zeros(len(at[0]), np.int64)
    for index, size in zip(at, shape, strict=True):
        number = number * size + index
    return number


def _flatten(value: Val, active: Array) -> tuple[Array, Array, Array]:
    return value.data[active], value.errors()[active], value.mask()[active]


def _notes(tensor: Val, where: Any) -> tuple[Array | None, Array | None]:
    err = None if tensor.err is None else tensor.err[where]
    return err, None if tensor.known is None else tensor.known[where]


def _put(tensor: Val, where: Any, value: Val) -> Val:
    err, known = tensor.err, tensor.known
    if value.err is not None or err is not None:
        err = tensor.errors() if err is None else err
        err[where] = value.errors()
    if value.known is not None or known is not None:
        known = tensor.mask() if known is None else known
        known[where] = value.mask()
    tensor.data[where] = value.data
    return Val(tensor.dtype, tensor.data, err, known)


_UPDATES = {"add": "add", "max": "maximum", "min": "minimum", "and": "and", "or": "or", "xor": "xor"}


def _updated(fn: str, old: Val, value: Val, compare: Val | None, dtype: str, profile: str) -> Val:
    if fn in ("exchange", "store"):
        return value
    if compare is not None:
        same = elementwise.compare("eq", old, compare)
        if is_float(dtype):  # by the bits: what zeros and NaN have there is not known
            doubt = ((old.data == 0) & (compare.data == 0)) | (np.isnan(old.data) & np.isnan(compare.data))
            same = Val("bool", same.data, None, either(same.known, ~doubt))
        return elementwise.where(same, value, old)
    return elementwise.apply(_UPDATES[fn], [old, value], dtype, profile)


def mask_of(machine: Machine, shape: Shape) -> Val | None:
    """Return the predicate of the enclosing `if`s in a place's shape; None when there is none or it does not fit."""
    mask = machine.predicate
    if mask is None or not fits(mask.shape, shape):
        return None
    known = None if mask.known is None else np.broadcast_to(mask.known, shape)
    return Val("bool", np.broadcast_to(mask.data, shape), None, known)


def _box(machine: Machine, sizes: Shape, axes: tuple[tree.Axis, ...]) -> tuple[Any, ...] | None:
    """Return slices and integers for an index that has nothing else and is inside the tensor."""
    box: list[Any] = []
    for axis, size in zip((a for a in axes if not isinstance(a, tree.NewAxis)), sizes, strict=True):
        if isinstance(axis, tree.Pick) or (isinstance(axis, tree.Span) and axis.step != 1):
            return None
        start = axis.start if isinstance(axis, tree.Span) else axis.index
        first = 0 if start is None else machine.scalar(start, "an offset")
        extent = axis.size if isinstance(axis, tree.Span) else 1
        if first < 0 or first + extent > size:
            return None
        box.append(slice(first, first + extent) if isinstance(axis, tree.Span) else first)
    return tuple(box)


def place_of(machine: Machine, name: str, axes: tuple[tree.Axis, ...], *, simple: bool = True) -> Place:
    """Return the elements that an index names.

    Args:
        machine: the running program.
        name: the tensor.
        axes: the index.
        simple: whether slices will do for what is inside.

    Raises:
        Undetermined: an index is not known.
    """
    return place_in(machine, machine.tensors[name].shape, axes, simple=simple)


def place_in(machine: Machine, sizes: Shape, axes: tuple[tree.Axis, ...], *, simple: bool = True) -> Place:
    """Return the elements that an index of something of a shape names; see `place_of`."""
    shape = tree.index_shape(axes)
    own = tuple(axis for axis in axes if not isinstance(axis, tree.NewAxis))
    raw = tree.index_shape(own)
    if simple and machine.predicate is None and (box := _box(machine, sizes, axes)) is not None:
        return Place(shape, raw, box, None, True, machine.events)
    indices: list[Any] = []
    inside: Array | None = None
    for axis, index, size in zip(own, _shaped(machine, own, raw), sizes, strict=True):
        here = (index >= 0) & (index < size)
        if not here.all():
            if isinstance(axis, tree.Pick):
                machine.events.add("index-outside")
            inside = np.broadcast_to(here, raw) if inside is None else inside & here
            index = np.where(here, index, 0)
        indices.append(index)
    distinct = not any(isinstance(axis, tree.Pick) for axis in own)
    return Place(shape, raw, tuple(indices), inside, distinct, machine.events)


def places(machine: Machine, sizes: Shape, indices: tuple[tree.Expr, ...]) -> Place:
    """Return elements of a buffer that broadcast indices name.

    Args:
        machine: the running program.
        sizes: the buffer's shape.
        indices: one for each of its dimensions.

    Raises:
        Undetermined: an index is not known.
    """
    found = np.broadcast_arrays(*(_whole(machine.value(index).only("an index")) for index in indices))
    inside = np.ones(found[0].shape, np.bool_)
    for index, size in zip(found, sizes, strict=True):
        inside &= (index >= 0) & (index < size)
    at = tuple(np.where(inside, index, 0) for index in found)
    return Place(inside.shape, inside.shape, at, inside, False, machine.events)


def _whole(data: Array) -> Array:
    """Return indices as `i64`, those beyond it as some that is outside of any array."""
    if data.dtype == np.uint64:
        data = np.where(data > np.uint64(2**62), np.uint64(2**62), data)
    return data.astype(np.int64)


def _shaped(machine: Machine, axes: tuple[tree.At | tree.Span | tree.Pick, ...], raw: Shape) -> Iterator[Array]:
    """Yield the index of each dimension, shaped to be broadcast to `raw`.

    Picks are broadcast to one another, and stand where the first of them does.
    """
    picked = _picked(axes)
    position, first = 0, None
    for axis in axes:
        index = _index(machine, axis)
        if isinstance(axis, tree.Pick) and first is None:
            first, position = position, position + len(picked)
        if isinstance(axis, tree.Span):
            index = index.reshape((-1,) + (1,) * (len(raw) - position - 1))
            position += 1
        elif isinstance(axis, tree.Pick):
            assert first is not None
            index = np.broadcast_to(index, picked).reshape(picked + (1,) * (len(raw) - first - len(picked)))
        yield index


def _picked(axes: tuple[tree.Axis, ...]) -> Shape:
    from tessera.tools.fuzz.types import broadcast

    return broadcast(*(axis.index.type.shape for axis in axes if isinstance(axis, tree.Pick)))


def _index(machine: Machine, axis: tree.At | tree.Span | tree.Pick) -> Array:
    if isinstance(axis, tree.Span):
        start = 0 if axis.start is None else machine.scalar(axis.start, "an offset")
        return start + axis.step * np.arange(axis.size)
    return _whole(machine.value(axis.index).only("an index"))
