"""Tables of launches on a GPU, which machine code walks: it puts addresses into parameters and calls the driver."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

from tessera.entry.layout import PATCH
from tessera.runtime import cuda, workspaces
from tessera.runtime.cuda_entry import (
    ATTRIBUTE,
    ATTRIBUTE_WORDS,
    CONFIG,
    CONFIG_WORDS,
    OTHER_CONTEXT,
    PROGRAMMATIC_SERIALIZATION,
    START,
    WALK,
)
from tessera.runtime.cuda_launch import CudaPlan, check_grid, driver_address
from tessera.runtime.packing import Block, MapSlot, Packing
from tessera.runtime.platforms import Again
from tessera.target.artifact import Launch

_Walk = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class CudaTable:
    """Launches on one GPU.

    Args:
        launches: the launches, in order.
        walk: gives the address of `layout.WALKER`.
    """

    def __init__(self, launches: Sequence[Again], walk: Callable[[], int]) -> None:
        self._walk = _Walk(walk())
        self._blocks: list[Block] = []
        self._workspaces: list[Block] = []
        self._maps: list[tuple[Packing, MapSlot, int, int]] = []
        self._configs: list[Any] = []
        self._slots_bytes = 0
        patches: list[int] = []
        starts: list[int] = []
        for one in launches:
            block = self._add(one)
            first = ctypes.addressof(block.slots)
            for place, (number, after) in enumerate(one.sources):
                patches += _record(PATCH, goal=first + 8 * place, number=8 * number, after=after)
            starts += self._starts(cast(CudaPlan, one.plan), block, one.scalars)
        self._device = cast(CudaPlan, launches[0].plan).launcher.device
        self._patches = (ctypes.c_int64 * len(patches))(*patches)
        self._starts_table = (ctypes.c_int64 * len(starts))(*starts)
        words = _record(
            WALK,
            context=self._device.handle,
            current_context=driver_address("cuCtxGetCurrent"),
            launch_kernel=driver_address("cuLaunchKernel"),
            launch_with=driver_address("cuLaunchKernelEx") if self._configs else 0,
            patch_count=len(patches) // len(PATCH),
            patches=ctypes.addressof(self._patches),
            start_count=len(starts) // len(START),
            starts=ctypes.addressof(self._starts_table),
        )
        self._words = (ctypes.c_int64 * len(words))(*words)
        self._words_address = ctypes.addressof(self._words)
        count = 1 + max((number for one in launches for number, _ in one.sources), default=0)
        self._given = (ctypes.c_int64 * count)()
        self._given_address = ctypes.addressof(self._given)
        self._pack = struct.Struct(f"={count}Q").pack_into
        self._count = count

    def _add(self, one: Again) -> Block:
        """Pack a kernel's parameters, which stay."""
        plan = cast(CudaPlan, one.plan)
        packing, launcher = plan.packing, plan.launcher
        block = packing.held(one.scalars)
        self._blocks.append(block)
        for slot in block.maps:
            self._maps.append((packing, slot, *one.sources[packing.position(slot.param.arg)]))
        if launcher.slots_bytes:
            self._workspaces.append(block)
            self._slots_bytes = max(self._slots_bytes, launcher.slots_bytes)
        return block

    def _starts(self, plan: CudaPlan, block: Block, scalars: Sequence[Any]) -> list[int]:
        """Return the words of a kernel's starts."""
        launcher = plan.launcher
        found: list[int] = []
        grids = zip(launcher.functions, launcher.artifact.launches, block.addresses, strict=True)
        for (function, launch, params), programs in zip(grids, plan.packing.counts(scalars), strict=True):
            check_grid(programs)
            if programs:
                grid = launch.started(programs, launcher.device.multiprocessors)
                found += _record(
                    START,
                    function=int(function),
                    grid=grid,
                    threads=launch.threads,
                    shared=launch.shared_bytes,
                    params=params,
                    config=self._config(launch, grid) if launch.overlaps else 0,
                )
        return found

    def _config(self, launch: Launch, grid: int) -> int:
        """Return the address of a start's `CUlaunchConfig`, but for the stream."""
        memory = ctypes.create_string_buffer(8 * (CONFIG_WORDS + ATTRIBUTE_WORDS))
        self._configs.append(memory)
        attribute = 8 * CONFIG_WORDS
        for name, extent in (("grid", grid), ("block", launch.threads)):
            struct.pack_into("=3I", memory, CONFIG[name], extent, 1, 1)
        struct.pack_into("=I", memory, CONFIG["shared"], launch.shared_bytes)
        struct.pack_into("=Q", memory, CONFIG["attributes"], ctypes.addressof(memory) + attribute)
        struct.pack_into("=I", memory, CONFIG["count"], 1)
        struct.pack_into("=I", memory, attribute + ATTRIBUTE["id"], PROGRAMMATIC_SERIALIZATION)
        struct.pack_into("=I", memory, attribute + ATTRIBUTE["value"], 1)
        return ctypes.addressof(memory)

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Queue the kernels on a stream.

        Args:
            addresses: what the sources of the launches count from.
            stream: the stream's address.

        Raises:
            DeviceError: `cuda-error`, or `out-of-memory` for a workspace.
        """
        if self._maps or self._workspaces:
            self._prepare(addresses, stream)
        self._pack(self._given, 0, *addresses[: self._count])
        status = self._walk(self._words_address, self._given_address, stream)
        if status == OTHER_CONTEXT:
            with cuda.active(self._device):
                status = self._walk(self._words_address, self._given_address, stream)
        if status:
            cuda.check((cuda.driver().CUresult(status),))

    def _prepare(self, addresses: Sequence[int], stream: int) -> None:
        """Describe arrays that lie elsewhere than before, and find the stream's workspace."""
        for packing, slot, number, after in self._maps:
            pointer = addresses[number] + after
            if slot.described != pointer:
                packing.describe(slot, pointer)
        if self._workspaces:
            with cuda.active(self._device):
                address = workspaces.workspace(self._device, stream, self._slots_bytes)
            for block in self._workspaces:
                block.put_workspace(address)


def _record(fields: dict[str, int], **values: int) -> list[int]:
    """Return the words of a record."""
    return [values[name] for name in fields]
