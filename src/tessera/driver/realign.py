"""Runs calls on copies of arrays that lie where a GPU's copy engine cannot fetch them, but are read many times.

The copy engine wants addresses and strides of multiples of 16 bytes. A kernel that would have warp roles on arrays
that lie so, and reads each element in many programs (attention over long sequences), is faster on copies, the time of
copying included. The schedule says which arguments are misplaced and along which dimensions of the grid they are read
again (`misplaced` and `rereads`). The memory is allocated, used and freed in the order of the call's stream; where
there is none left, the call runs on the arrays as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
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
from tessera.frontend.specialize import Specialization
from tessera.numerics import dtypes
from tessera.runtime.device import Device
from tessera.runtime.platforms import stream_memory
from tessera.runtime.views import ArrayView
from tessera.target.artifact import Artifact, evaluate

if TYPE_CHECKING:
    from tessera.driver.kernel import Kernel

LEAST_REREADS = 8
"""Programs that read the same elements, from which on copies cost less than they save: causal attention over 1024
positions, in blocks of 128, reads each key by 8 programs."""
LEAST_BYTES, AT_ONCE = 1 << 19, 330
"""Bytes that each of the programs which run at once reads of misplaced arrays, from which on the call takes longer than
its start on copies: a step of a product, of 16 KB, takes 1.25 µs, and the host takes 30 µs more."""
ALIGN_BYTES = 16
"""Rows of copies begin at multiples of this."""
BLOCK, MOST_COLUMNS = 8192, 128
"""Elements that a program copies, and the most of a row."""
START_BYTES = 256
"""Copies begin at multiples of this."""

N, R, C = dims("N R C")
_WORDS = {1: dtypes.u8, 2: dtypes.u16, 4: dtypes.u32, 8: dtypes.u64}


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of an array, with its dimensions in the order in which they lie in memory.

    Args:
        place: which of the arrays of a call.
        view: the copy.
        source: sizes and strides of the array as matrix of rows, or as one row.
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
        """Return a copy of an array with rows that begin at multiples of 16 bytes, None of one without equal rows."""
        order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
        *outer, inner = order
        width = view.dtype.bytes
        if strides[inner] != 1 or width not in _WORDS:
            return None
        if any(strides[a] != strides[b] * view.shape[b] for a, b in pairwise(outer)):
            return None
        columns, pitch = view.shape[inner], strides[outer[-1]] if outer else 1
        row = -(-columns * width // ALIGN_BYTES) * ALIGN_BYTES // width
        made, step, rows = [1] * len(order), row, 1
        for axis in reversed(outer):
            made[axis], step, rows = step, step * view.shape[axis], rows * view.shape[axis]
        words = replace(view, dtype=_WORDS[width], readonly=False)
        if pitch == row == columns or not outer:
            source = target = replace(words, shape=(rows * columns,), strides=(1,))
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
    misplaced: int = variant.artifact.reflection["schedule"].get("misplaced", 0)
    if spec.has_aliases or spec.debug or not misplaced:
        return None
    tensors = [number for number, fact in enumerate(spec.args) if fact.kind == "tensor"]
    places = [place for place, number in enumerate(tensors) if misplaced >> number & 1]
    found = [Copy.of(place, views[place], views[place].strides) for place in places]
    copies = [copy for copy in found if copy is not None]
    if len(copies) < len(found) or not _pays(variant.artifact, spec, sum(copy.bytes for copy in copies)):
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
    moves = [_mover(copy).loaded([pointers[copy.place], 0], [copy.source, copy.target], device) for copy in copies]
    return OnCopies(placed, _launch(device, copies, moves, run, plain), names)


def _pays(artifact: Artifact, spec: Specialization, size: int) -> bool:
    """Return whether many programs of a kernel's only launch read what is misplaced again, and much of it.

    Args:
        artifact: the code for the arrays as they are.
        spec: facts of the call.
        size: bytes of the copies.
    """
    (launch, *others), rereads = artifact.launches, artifact.reflection["schedule"].get("rereads", 0)
    if others or not rereads or any(_has_scalars(extent) for extent, _ in launch.grid):
        return False
    sizes = [fact.sizes for fact in spec.args]
    counts = [-(-evaluate(extent, sizes, ()) // block) for extent, block in launch.grid]
    fewest = min(count for axis, count in enumerate(counts) if rereads >> axis & 1)
    return fewest >= LEAST_REREADS and size * fewest >= LEAST_BYTES * min(prod(counts), AT_ONCE)


def _has_scalars(expr: Any) -> bool:
    return expr[0] == "scalar" or any(_has_scalars(part) for part in expr[1:] if isinstance(part, list | tuple))


def _launch(device: Device, copies: Sequence[Copy], moves: Sequence[Launch], run: Launch, plain: Launch) -> Launch:
    memory, total = stream_memory(device), sum(copy.bytes for copy in copies)

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
            for copy, move in zip(copies, moves, strict=True):
                move([pointers[copy.place], at], (), keep, stream)
                given[copy.place] = at
                at += copy.bytes
            run(given, scalars, keep, stream)
        finally:
            memory.free(device, scratch, stream)

    return copy_and_run


def _mover(copy: Copy) -> Kernel[..., Any]:
    columns = min(1 << (copy.source.shape[-1] - 1).bit_length(), MOST_COLUMNS)
    return _kernel(len(copy.source.shape), copy.source.dtype.bytes, columns)


@cache
def _kernel(rank: int, width: int, columns: int) -> Kernel[..., Any]:
    """Return the kernel that copies arrays, of a rank and elements of so many bytes, in blocks of so many columns."""
    from tessera.driver.kernel import Kernel

    def copy_elements(x: Any, y: Any) -> None:
        ctx = tile.context()
        for i in tile.grid((N, ctx.BM)):
            y[i : i + ctx.BM] = x[i : i + ctx.BM]

    def copy_rows(x: Any, y: Any) -> None:
        ctx = tile.context()
        for r, c in tile.grid((R, ctx.BM), (C, ctx.BN)):
            y[r : r + ctx.BM, c : c + ctx.BN] = x[r : r + ctx.BM, c : c + ctx.BN]

    function = cast(FunctionType, copy_elements if rank == 1 else copy_rows)
    array = Tensor[(*((N,) if rank == 1 else (R, C)), _WORDS[width])]
    function.__annotations__ = {"x": array, "y": array}
    block = {"BM": BLOCK, "BN": 1} if rank == 1 else {"BM": max(BLOCK // columns, 1), "BN": columns}
    return Kernel[..., Any](function, tuple((name, (value,)) for name, value in block.items()))
