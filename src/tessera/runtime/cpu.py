"""Launches CPU artefacts: small jobs on the calling thread, larger ones on the worker pool."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from tessera.entry.layout import INLINE_NS, POOL_PIECE_NS, SCRATCH, WORD
from tessera.errors import DeviceError
from tessera.runtime import recording
from tessera.runtime.packing import Block, Packing, Shapes
from tessera.runtime.platforms import LoadedCode
from tessera.runtime.pool import shared_pool, thread_count, words
from tessera.target.artifact import Artifact

if TYPE_CHECKING:
    from tessera.entry.tables import Work

_PROBES = 3
"""Launches whose beginning is timed: the first ones also pay page faults and cold caches."""

_SHORT_NS = 4 * INLINE_NS
"""A launch that takes less than this by its first programs is timed whole: calling one may cost more than it does."""

_WORTH_SHARING_NS = 1e9
"""What a launch is taken to cost that is to be shared out."""


Loader = Callable[[bytes], LoadedCode]
_Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class _Scratch(threading.local):
    """The scratch memory of one thread, kept for its next launch."""

    def __init__(self) -> None:
        self._memory: Any = None
        self._size = -1
        self._start = 0
        self.fill: int | None = None

    def address(self, size: int) -> int:
        """Return the address of at least `size` bytes, 64-byte aligned."""
        if size > self._size:
            self._memory = (ctypes.c_char * (size + 64))()
            self._start = -(-ctypes.addressof(self._memory) // 64) * 64
            self._size = size
        if self.fill is not None:
            ctypes.memset(self._start, self.fill, size)
        return self._start


_scratch = _Scratch()


def fill_scratch(byte: int | None) -> None:
    """Fill scratch memory with a byte before each planned launch of this thread: what is read unwritten shows.

    Launches of several programs then share them out to the worker pool however short they are, and its threads fill
    theirs, too.

    Args:
        byte: 1 to 255; None leaves what the launch before has left.
    """
    _scratch.fill = byte
    shared_pool().fill_scratch(byte)


def scratch_address(size: int) -> int:
    """Return the address of scratch memory of this thread, for its launches one after the other."""
    return _scratch.address(size)


def scratch_is_filled() -> bool:
    """Return whether launches of this thread find a byte in scratch memory; see `fill_scratch`."""
    return _scratch.fill is not None


class CpuLauncher:
    """A loaded CPU artefact.

    Args:
        artifact: the compiled kernel.
        load: makes object code executable.
    """

    def __init__(self, artifact: Artifact, load: Loader) -> None:
        self.artifact = artifact
        self.code = load(artifact.code)
        self.addresses = [self.code.address(launch.entry) for launch in artifact.launches]
        self.entries = [_Entry(address) for address in self.addresses]

    def prepare(self, shapes: Shapes) -> CpuPlan:
        """Return the launch for one set of shapes."""
        return CpuPlan(self, shapes)

    def work(self, stream_of: int = 0) -> Work:
        """Return the launches for the compiled entry, which runs small jobs itself and gives large ones back.

        Args:
            stream_of: not used on a CPU.
        """
        from tessera.entry.tables import ERROR_WORD, Work

        launches = self.artifact.launches
        memory = (ctypes.c_char * (max([0, *(launch.scratch_bytes for launch in launches)]) + 64))()
        scratch = -(-ctypes.addressof(memory) // 64) * 64

        def failed(word: int) -> object:
            raise assertion_error(self.artifact, word)

        own = {
            "threads": thread_count(),
            "scratch": scratch if self._needs_scratch() else 0,
            "pool": ctypes.addressof(words),
        }
        return Work(
            launches,
            self.addresses,
            own,
            [0] * len(launches),
            failed,
            (SCRATCH, ERROR_WORD),
            shared_pool,
            keep=(memory, self, words),
        )

    def _needs_scratch(self) -> bool:
        return any(launch.scratch_bytes for launch in self.artifact.launches)


class CpuPlan:
    """A launch with everything done that depends on shapes only.

    Args:
        launcher: the loaded artefact.
        shapes: sizes and strides of each argument.
    """

    def __init__(self, launcher: CpuLauncher, shapes: Shapes) -> None:
        self._launcher = launcher
        self.packing = Packing(launcher.artifact, shapes, extra=2)
        self._launches = [
            (entry, launch.scratch_bytes)
            for launch, entry in zip(launcher.artifact.launches, launcher.entries, strict=True)
        ]
        self._parameters = [len(launch.params) + 2 for launch in launcher.artifact.launches]
        self._forget_costs(())
        self._threads = thread_count()

    def launch(
        self, pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[object] = (), stream: int = 0
    ) -> None:
        """Run the kernel and return when it is done.

        Args:
            pointers: address of each tensor argument.
            scalars: value of each scalar argument.
            keep: objects that own the memory.
            stream: not used on a CPU.

        Raises:
            CallError: `wrong-scalar`.
            DeviceError: `device-assert` when an assertion of the kernel failed.
        """
        recorder = recording.current()
        if recorder is not None:
            recorder.launch(self, pointers, scalars, keep)
        packing = self.packing
        integers = tuple([scalar for scalar in scalars if isinstance(scalar, int)])
        if integers != self._measured:
            self._forget_costs(integers)
        block = packing.fill(pointers, scalars)
        try:
            self.run(block, packing.counts(scalars))
        finally:
            packing.release(block)

    def run(self, block: Block, counts: Sequence[int]) -> None:
        """Run the kernel with packed parameters.

        Args:
            block: the parameters.
            counts: how many programs each launch has.

        Raises:
            DeviceError: `device-assert` when an assertion of the kernel failed.
        """
        for number, (entry, scratch_bytes) in enumerate(self._launches):
            programs = counts[number]
            if scratch_bytes:
                block.params[number][-2] = _scratch.address(scratch_bytes)
            if programs == 1:
                entry(block.addresses[number], 0, 1)
            elif programs:
                self._run(number, entry, scratch_bytes, block, programs)
            if block.slots[-1]:
                self.check(block)

    def check(self, block: Block) -> None:
        """Raise an error where a launch has set the error word.

        Raises:
            DeviceError: `device-assert`.
        """
        if block.slots[-1]:
            failed, block.slots[-1] = block.slots[-1], 0
            raise assertion_error(self._launcher.artifact, failed)

    def runs_inline(self, counts: Sequence[int]) -> bool:
        """Return whether no launch of so many programs is worth sharing out, by what launches have cost so far."""
        return all(
            programs <= 1 or (self._probes[number] >= _PROBES and self._cost_ns[number] < INLINE_NS)
            for number, programs in enumerate(counts)
        )

    def grids(self, block: Block, counts: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the entry point, the address of the parameters and the programs of each launch."""
        places = zip(self._launcher.addresses, block.addresses, counts, strict=True)
        return [place for place in places if place[2]]

    def scratches(self, block: Block) -> list[tuple[int, int]]:
        """Return for each launch with scratch memory where a block names it, and how many bytes it wants."""
        launches = zip(block.params, block.addresses, self._launches, strict=True)
        return [(start + WORD * (len(params) - 2), wanted) for params, start, (_, wanted) in launches if wanted]

    def _forget_costs(self, integers: tuple[int, ...]) -> None:
        """Forget how long launches took: integers may say how much programs do."""
        self._measured = integers
        self._cost_ns = [float("inf")] * len(self._launches)
        self._probes = [0] * len(self._launches)

    def _run(self, number: int, entry: Any, scratch_bytes: int, block: Block, programs: int) -> None:
        address, first = block.addresses[number], 0
        if self._probes[number] < _PROBES and _scratch.fill is None:  # probes may run all programs
            self._probes[number] += 1
            part = max(1, programs // (self._threads * 16))
            start = perf_counter_ns()
            entry(address, 0, 1)
            spent, first = perf_counter_ns() - start, 1
            while first < programs and spent * programs < _SHORT_NS * first:
                last = min(8 * first, programs)
                entry(address, first, last)
                spent, first = perf_counter_ns() - start, last
            if part > first and spent * part < POOL_PIECE_NS * first:  # no signal is handled meanwhile
                entry(address, first, part)
                spent, first = perf_counter_ns() - start, part
            cost = spent / first * programs
            self._cost_ns[number] = min(self._cost_ns[number], cost)
        if first == programs:
            return
        expected = self._cost_ns[number] if _scratch.fill is None else _WORTH_SHARING_NS
        if expected < INLINE_NS:
            entry(address, first, programs)
            return
        shared_pool().run(
            self._threads,
            self._launcher.addresses[number],
            address,
            self._parameters[number],
            scratch_bytes,
            first,
            programs,
            int(expected),
        )


def assertion_error(artifact: Artifact, failed: int) -> DeviceError:
    """Return the error for a non-zero error word."""
    asserts: list[dict[str, Any]] = artifact.reflection.get("asserts", [])
    if not 1 <= failed <= len(asserts):
        return DeviceError(
            f"kernel {artifact.name}: error word {failed}",
            code="device-assert",
            help="compile the kernel again",
        )
    record = asserts[failed - 1]
    where = f" ({record['location']})" if record.get("location") else ""
    return DeviceError(
        f"kernel {artifact.name}: assertion failed: {record['message']}{where}",
        code="device-assert",
        help="its condition was false for an element of this call",
    )
