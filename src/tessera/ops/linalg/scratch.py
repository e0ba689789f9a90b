"""Makes the copies of a product's operands in scratch memory, runs the product on them and frees the memory.

Partial sums of programs that share tiles lie there, too.

The memory is allocated, used and freed in the order of one stream: nothing waits, calls on several streams do not
share it, and a graph that captures the stream holds the allocation as it holds the launches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import tessera as ts
from tessera.data import dataclass
from tessera.driver.kernel import Kernel
from tessera.driver.launch import stream_source
from tessera.errors import DeviceError
from tessera.ops import arrays
from tessera.ops.linalg import kernels
from tessera.ops.linalg.packing import Copy, copies, distinct, sums_of
from tessera.ops.linalg.plan import Plan
from tessera.ops.linalg.problem import Problem
from tessera.ops.templates import annotated
from tessera.runtime.device import Device
from tessera.runtime.platforms import Stream, StreamMemory, stream_memory
from tessera.runtime.views import ArrayView, row_major

TILE = {"BM": 64, "BN": 64, "num_warps": 4}
"""Tiles of copies: 32 elements for each thread to fetch at once, in runs of 16 bytes to store."""

MOST_PLACES = 16
"""Scratch addresses whose arrays are remembered: a stream that runs one product gets the same memory every time."""

_kernels: dict[tuple[Copy, ...], Kernel[..., Any]] = {}


@dataclass(frozen=True, slots=True)
class Parameters:
    """What kernels that copy operands take.

    Args:
        sources: the operands' annotations.
        lines: those of the copies.
        space: tiles, and how each operand is read.
    """

    sources: dict[str, Any]
    lines: dict[str, Any]
    space: dict[str, tuple[Any, ...]]


def parameters_of(made: tuple[Copy, ...]) -> Parameters:
    """Return the parameters of a kernel that makes copies: `a` and `b`, then `x` and `y`.

    Args:
        made: how the copies lie; sizes do not matter.
    """
    found = Parameters({}, {}, {name: (value,) for name, value in TILE.items()})
    for copy, name, result, dims in zip(made, "ab", "xy", kernels.COPIED, strict=False):
        batch, rows, columns, padded = dims
        lead = (batch,) if len(copy.shape) == 3 else ()
        stored = (columns, rows) if copy.axis == 0 else (rows, columns)
        found.sources[name] = ts.Tensor[(*lead, *stored, copy.dtype)]
        found.lines[result] = ts.Tensor[(*lead, rows, padded, copy.dtype)]
        found.space[f"across_{name}"] = (copy.axis == 0,)
        found.space[f"batched_{name}"] = (bool(lead),)
    return found


def copy_kernel(made: tuple[Copy, ...]) -> Kernel[..., Any]:
    """Return the kernel that makes one copy or two; it takes the operands, then the lines of each copy.

    Args:
        made: how the copies lie.
    """
    key = tuple(Copy((0,) * len(copy.shape), copy.axis, copy.dtype) for copy in made)
    found = _kernels.get(key)
    if found is None:
        given = parameters_of(made)
        template = kernels.copy_one if len(made) == 1 else kernels.copy_two
        function = annotated(template, given.sources | given.lines)
        found = _kernels[key] = Kernel[..., Any](function, tuple(given.space.items()))
    return found


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The copies of a call: as lines that are written, and as the product's operands; and partial sums, if any."""

    lines: list[Any]
    operands: list[Any]
    sums: list[Any]


class Scratch:
    """Device memory that lives while a product runs.

    Args:
        bytes_: how much.
        device: the GPU.
        alone: computes the product where there is no memory, None where none does.
    """

    def __init__(self, bytes_: int, device: Device, alone: Kernel[..., Any] | None = None) -> None:
        self._bytes, self._device, self._alone = bytes_, device, alone
        self._memory = stream_memory(device)
        self._streams: dict[tuple[type, ...], tuple[Stream, bool]] = {}

    def run(self, kernel: Kernel[..., Any], a: Any, b: Any, rest: tuple[Any, ...], stream: Any) -> Any:
        """Prepare operands, run the product and free the memory, all queued on the call's stream.

        Args:
            kernel: the product.
            a: left operand.
            b: right operand.
            rest: the kernel's other arguments.
            stream: the stream, None for the caller's current one.

        Raises:
            DeviceError: `out-of-memory` where no kernel does without.
        """
        values, memory = (a, b, *rest), self._memory
        current, alike = self._stream_of(values)
        where = current(values) if stream is None else memory.stream_address(stream)
        # Arguments of one library lead each launch to this same stream, and by the shorter way.
        named = {} if stream is None and alike else {"stream": where}
        try:
            pointer = self._allocate(where)
        except DeviceError as error:
            if self._alone is None or error.code != "out-of-memory":
                raise
            return self._alone(a, b, *rest, **named)
        try:
            return self._run(kernel, a, b, rest, pointer, where, named)
        finally:
            memory.free(self._device, pointer, where)

    def _run(
        self, kernel: Kernel[..., Any], a: Any, b: Any, rest: tuple[Any, ...], pointer: int, where: int, named: Any
    ) -> Any:
        raise NotImplementedError

    def _stream_of(self, values: tuple[Any, ...]) -> tuple[Stream, bool]:
        """Return how calls of such arguments find their stream, and whether all are arrays of one library."""
        key = tuple(map(type, values))
        found = self._streams.get(key)
        if found is None:
            alike = _of_one_library(values, self._memory)
            found = self._streams[key] = stream_source(values, self._device), alike
        return found

    def _allocate(self, stream: int) -> int:
        try:
            return self._memory.allocate(self._device, self._bytes, stream)
        except DeviceError as error:
            if error.code != "out-of-memory":
                raise
            raise DeviceError(
                f"{error.message}, which copies of operands need",
                code=error.code,
                location=error.location,
                help="pass pack=False, or operands whose rows and address are multiples of 16 bytes",
            ) from error


class Copies(Scratch):
    """The copies of one kind of product, and the sums that programs leave which share its tiles.

    Args:
        left: how the left operand's copy lies, None where it is used as it is.
        right: the same of the right one.
        made: the copies that are made.
        device: the GPU.
        sums: how partial sums lie, None where there are none.
        alone: computes the product where there is no memory, None where none does.
    """

    def __init__(
        self,
        left: Copy | None,
        right: Copy | None,
        made: tuple[Copy, ...],
        device: Device,
        sums: Copy | None = None,
        alone: Kernel[..., Any] | None = None,
    ) -> None:
        super().__init__(sum(copy.bytes for copy in made) + (0 if sums is None else sums.bytes), device, alone)
        self._left, self._right, self._made, self._sums = left, right, made, sums
        self._kernel = copy_kernel(made) if made else None
        self._places: dict[tuple[int, int, type[Any]], _Arrays] = {}

    @classmethod
    def of(
        cls, problem: Problem, schedule: Plan, device: Device, alone: Kernel[..., Any] | None = None
    ) -> Copies | None:
        """Return what makes the copies that a plan wants; None when it wants none, nor memory for sums.

        Args:
            problem: the product.
            schedule: its plan.
            device: the GPU.
            alone: computes the product where there is no memory for sums.
        """
        left, right = copies(problem, schedule.pack_a, schedule.pack_b)
        made = distinct(problem, schedule.pack_a, schedule.pack_b)
        sums = sums_of(problem, schedule.parts) if schedule.parts > 1 else None
        return cls(left, right, made, device, sums, alone) if made or sums is not None else None

    def _run(
        self, kernel: Kernel[..., Any], a: Any, b: Any, rest: tuple[Any, ...], pointer: int, where: int, named: Any
    ) -> Any:
        made = self._arrays(pointer, where, a)
        if self._kernel is not None:
            sources = [x for x, copy in ((a, self._left), (b, self._right)) if copy is not None]
            self._kernel(*sources[: len(self._made)], *made.lines, **named)
        x = a if self._left is None else made.operands[0]
        y = b if self._right is None else made.operands[-1]
        return kernel(x, y, *made.sums, *rest, **named)

    def _arrays(self, pointer: int, stream: int, like: Any) -> _Arrays:
        """Return the lines of each copy, the copies as operands, and sums, in arrays of the library of `like`."""
        key = (pointer, stream, cast("type[Any]", type(like)))
        found = self._places.get(key)
        if found is None:
            found = _Arrays([], [], [])
            for copy in self._made:
                lines = ArrayView(copy.lines, row_major(copy.lines), copy.dtype, self._device, readonly=False)
                operand = replace(lines, shape=copy.shape, strides=copy.strides)
                found.lines.append(arrays.over_scratch(like, pointer, lines, stream, self._memory))
                found.operands.append(arrays.over_scratch(like, pointer, operand, stream, self._memory))
                pointer += copy.bytes
            if self._sums is not None:
                view = ArrayView(
                    self._sums.lines, row_major(self._sums.lines), self._sums.dtype, self._device, readonly=False
                )
                found.sums.append(arrays.over_scratch(like, pointer, view, stream, self._memory))
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            self._places[key] = found
        return found


def _of_one_library(values: tuple[Any, ...], memory: StreamMemory) -> bool:
    """Return whether all arrays are PyTorch's or all are ours: launches on copies then find the stream they find."""
    found = [value for value in values if not isinstance(value, int | float)]
    return all(map(arrays.is_torch, found)) or all(map(memory.is_own, found))
