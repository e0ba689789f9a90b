"""Runs calls on copies of arrays that lie where a GPU's copy engine cannot fetch them, but are read many times.

The copy engine wants addresses and strides of multiples of 16 bytes. A kernel that would have warp roles on arrays
that lie so, and reads each element in many programs (attention over long sequences), is faster on copies, the time of
copying included. The schedule says which arguments are misplaced and along which dimensions of the grid they are read
again (`misplaced` and `rereads`). The memory is allocated, used and freed in the order of the call's stream; where
there is none left, the call runs on the arrays as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from math import prod
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from tessera.data import dataclass
from tessera.driver.binding import tensor_facts
from tessera.driver.launch import Launch, launcher_for
from tessera.driver.variants import Variant
from tessera.errors import DeviceError
from tessera.frontend import tile
from tessera.frontend.annotations import Tensor, dims
from tessera.frontend.function import function
from tessera.frontend.specialize import Specialization
from tessera.numerics import dtypes
from tessera.runtime.device import Device
from tessera.runtime.platforms import stream_memory
from tessera.runtime.views import ArrayView
from tessera.target.artifact import REREADS_BITS, Artifact
from tessera.target.extents import evaluate

if TYPE_CHECKING:
    from tessera.driver.kernel import Kernel

LEAST_BYTES, AT_ONCE = 440_000, 330
"""Bytes that each of the programs which run at once reads of misplaced arrays, from which on the call takes longer than
its start on copies: the host takes 30 µs more."""
READ_RATE, COPY_RATE = 13e9, 1.25e12
"""Bytes that such a program reads in a second, a step of a product, of 16 KB, in 1.25 µs, and bytes that are copied in
one: causal attention over 1024 positions, in blocks of 128, reads each key by 8 programs, which is twice the time."""
LEAST_GAIN = 2.0
"""How many times as long as copies take what they replace takes at least."""
ALIGN_BYTES, LINE_BYTES, LONG_BYTES = 16, 128, 1024
"""Rows of copies begin at multiples of the first, those of so many bytes at lines of the L2 cache: what a box takes of
each row is then one line."""
BLOCK, MOST_COLUMNS = 2048, 128
"""Elements of an array that a program copies, and the most of one of several rows."""
START_BYTES = 256
"""Copies begin at multiples of this."""

R, C = dims("R C")
_WORDS = {1: dtypes.u8, 2: dtypes.u16, 4: dtypes.u32, 8: dtypes.u64}


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of an array, with its dimensions in the order in which they lie in memory.

    Args:
        place: which of the arrays of a call.
        view: the copy.
        source: sizes and strides of the array as a matrix of rows, or as one row.
        target: the same of the copy.
        bytes: what it takes.
    """

    place: int
    view: ArrayView
    source: ArrayView
    target: ArrayView
    bytes: int

    @classmethod
    def of(cls, place: int, view: ArrayView, strides: Sequence[int]) -> Copy | None:
        """Return a copy of an array with rows that bulk copies fetch, None of one without equal rows."""
        order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
        *outer, inner = order
        width = view.dtype.bytes
        if strides[inner] != 1 or width not in _WORDS:
            return None
        if any(strides[a] != strides[b] * view.shape[b] for a, b in pairwise(outer)):
            return None
        columns, pitch = view.shape[inner], strides[outer[-1]] if outer else 1
        unit = (LINE_BYTES if columns * width >= LONG_BYTES else ALIGN_BYTES) // width
        row = -(-columns // unit) * unit
        made, step, rows = [1] * len(order), row, 1
        for axis in reversed(outer):
            made[axis], step, rows = step, step * view.shape[axis], rows * view.shape[axis]
        words = replace(view, dtype=_WORDS[width], readonly=False)
        if pitch == row == columns or not outer:
            source = target = replace(words, shape=(1, rows * columns), strides=(rows * columns, 1))
        else:
            source = replace(words, shape=(rows, columns), strides=(pitch, 1))
            target = replace(source, strides=(row, 1))
        total = -(-step * width // START_BYTES) * START_BYTES
        return cls(place, replace(view, strides=tuple(made)), source, target, total)


@dataclass(frozen=True, slots=True)
class OnCopies:
    """A call on copies of some of its arrays.

    Args:
        variant: the code that reads the copies.
        launch: copies and runs.
        names: the arguments that are copied.
    """

    variant: Variant
    launch: Launch
    names: tuple[str, ...]


def on_copies(
    kernel: Kernel[..., Any],
    spec: Specialization,
    variant: Variant,
    pointers: Sequence[int],
    views: Sequence[ArrayView],
    device: Device,
    plain: Launch,
) -> OnCopies | None:
    """Return how a call runs on copies of misplaced arrays, None where that would not pay.

    Args:
        kernel: the kernel.
        spec: facts of the call.
        variant: the code for the arrays as they are.
        pointers: addresses of the arrays.
        views: the arrays, with strides that mean something.
        device: where it runs.
        plain: runs the call on the arrays as they are, for which no memory is needed.
    """
    misplaced = _decided(variant.artifact, "misplaced")
    if spec.has_aliases or spec.debug or not misplaced:
        return None
    tensors = [number for number, fact in enumerate(spec.args) if fact.kind == "tensor"]
    places = [place for place, number in enumerate(tensors) if misplaced >> number & 1]
    found = [Copy.of(place, views[place], views[place].strides) for place in places]
    copies = [copy for copy in found if copy is not None]
    if len(copies) < len(found) or not _pays(variant.artifact, spec, [copy.bytes for copy in copies]):
        return None
    names = tuple(variant.artifact.args[tensors[copy.place]].name for copy in copies)
    facts, seen = list(spec.args), list(views)
    for copy, name in zip(copies, names, strict=True):
        seen[copy.place] = copy.view
        facts[tensors[copy.place]] = tensor_facts(name, 0, copy.view, copy.view.strides)
    placed = kernel.variant_for(replace(spec, args=tuple(facts)), seen, device)
    if not placed.artifact.reflection["schedule"].get("persistent"):
        return None
    by_argument: list[Any] = [None] * len(facts)
    for number, view in zip(tensors, seen, strict=True):
        by_argument[number] = (view.shape, view.strides)
    run = launcher_for(placed, device).prepare(by_argument).launch
    moves = [(group, _loaded(group, pointers, device)) for group in _groups(copies)]
    return OnCopies(placed, _launch(device, moves, run, plain), names)


def _decided(artifact: Artifact, name: str) -> int:
    """Return what a schedule says of the arguments of all its launches; 0 where launches differ."""
    found: object = artifact.reflection["schedule"].get(name, 0)
    return found if isinstance(found, int) else 0


def _pays(artifact: Artifact, spec: Specialization, sizes: Sequence[int]) -> bool:
    """Return whether programs of the only launch that a call has read what is misplaced again, and much of it.

    Args:
        artifact: the code for the arrays as they are.
        spec: facts of the call.
        sizes: bytes of each copy, in the order of the arguments.
    """
    rereads = _decided(artifact, "rereads")
    if not rereads or any(_has_more_than_sizes(extent) for launch in artifact.launches for extent, _ in launch.grid):
        return False
    given = [fact.sizes for fact in spec.args]
    launches = [[-(-evaluate(extent, given, ()) // block) for extent, block in each.grid] for each in artifact.launches]
    running = [counts for counts in launches if all(counts)]
    if len(running) != 1:
        return False
    (counts,) = running
    read = once = 0
    for place, size in enumerate(sizes):
        axes = rereads >> REREADS_BITS * place & (1 << REREADS_BITS) - 1
        if axes:
            read += size * prod(count for axis, count in enumerate(counts) if axes >> axis & 1)
            once += size
    if not once:  # nothing is read
        return False
    each = sum(sizes) * read / once / min(prod(counts), AT_ONCE)
    return each >= LEAST_BYTES and each / READ_RATE >= LEAST_GAIN * sum(sizes) / COPY_RATE


def _has_more_than_sizes(expr: Any) -> bool:
    return expr[0] in ("scalar", "stride") or any(
        _has_more_than_sizes(part) for part in expr[1:] if isinstance(part, list | tuple)
    )


def _pairs(pointers: Sequence[int], group: Sequence[Copy], places: Sequence[int]) -> list[int]:
    """Return the arguments of a launch that makes copies: each array and its copy."""
    pairs = zip(group, places, strict=True)
    return [address for copy, place in pairs for address in (pointers[copy.place], place)]


def _loaded(group: Sequence[Copy], pointers: Sequence[int], device: Device) -> Launch:
    """Return the launch that makes copies, wherever they will lie: apart, at multiples of `START_BYTES`."""
    places = [START_BYTES * (number + 1) for number in range(len(group))]
    views = [view for copy in group for view in (copy.source, copy.target)]
    return _mover(group).loaded(_pairs(pointers, group, places), views, device)


def _launch(device: Device, moves: Sequence[tuple[Sequence[Copy], Launch]], run: Launch, plain: Launch) -> Launch:
    memory, total = stream_memory(device), sum(copy.bytes for group, _ in moves for copy in group)

    def copy_and_run(pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[object], stream: int) -> None:
        try:
            scratch = at = memory.allocate(device, total, stream)
        except DeviceError as error:
            if error.code != "out-of-memory":
                raise
            plain(pointers, scalars, keep, stream)
            return
        given = list(pointers)
        try:
            for group, move in moves:
                *places, at = accumulate((copy.bytes for copy in group), initial=at)
                move(_pairs(pointers, group, places), (), keep, stream)
                for copy, place in zip(group, places, strict=True):
                    given[copy.place] = place
            run(given, scalars, keep, stream)
        finally:
            memory.free(device, scratch, stream)

    return copy_and_run


def _groups(copies: Sequence[Copy]) -> list[list[Copy]]:
    """Return copies that one launch makes together: they are alike, as those of queries, keys and values."""
    found = dict[Any, list[list[Copy]]]()
    for copy in copies:
        alike = found.setdefault((copy.source, copy.target), [[]])
        if len(alike[-1]) == len(_TEMPLATES):
            alike.append([])
        alike[-1].append(copy)
    return [group for alike in found.values() for group in alike]


def _mover(group: Sequence[Copy]) -> Kernel[..., Any]:
    rows, columns = group[0].source.shape
    wide = min(1 << (columns - 1).bit_length(), BLOCK if rows == 1 else MOST_COLUMNS)
    return _kernel(len(group), group[0].source.dtype.bytes, wide)


def _load_block(source: Any, r: Any, c: Any) -> Any:
    ctx = tile.context()
    return source[r : r + ctx.BM, c : c + ctx.BN]


def _store_block(target: Any, r: Any, c: Any, block: Any) -> None:
    ctx = tile.context()
    target[r : r + ctx.BM, c : c + ctx.BN] = block


_load, _store = function(_load_block), function(_store_block)


def _copy_one(a: Any, x: Any) -> None:
    ctx = tile.context()
    for r, c in tile.grid((R, ctx.BM), (C, ctx.BN)):
        _store(x, r, c, _load(a, r, c))


def _copy_two(a: Any, x: Any, b: Any, y: Any) -> None:
    ctx = tile.context()
    for r, c in tile.grid((R, ctx.BM), (C, ctx.BN)):
        first, second = _load(a, r, c), _load(b, r, c)
        _store(x, r, c, first)
        _store(y, r, c, second)


def _copy_three(a: Any, x: Any, b: Any, y: Any, d: Any, z: Any) -> None:
    ctx = tile.context()
    for r, c in tile.grid((R, ctx.BM), (C, ctx.BN)):
        first, second, third = _load(a, r, c), _load(b, r, c), _load(d, r, c)
        _store(x, r, c, first)
        _store(y, r, c, second)
        _store(z, r, c, third)


_TEMPLATES = (_copy_one, _copy_two, _copy_three)


@cache
def _kernel(count: int, width: int, columns: int) -> Kernel[..., Any]:
    """Return the kernel that copies so many arrays of elements of so many bytes, in blocks of so many columns."""
    from tessera.driver.kernel import Kernel

    source = cast(FunctionType, _TEMPLATES[count - 1])
    made = FunctionType(source.__code__, source.__globals__, source.__name__)
    made.__module__, made.__qualname__ = source.__module__, source.__qualname__
    made.__annotations__ = dict.fromkeys(inspect.signature(source).parameters, Tensor[R, C, _WORDS[width]])
    block = {"BM": max(BLOCK // columns, 1), "BN": columns}
    return Kernel[..., Any](made, tuple((name, (value,)) for name, value in block.items()))
