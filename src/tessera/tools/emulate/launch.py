"""Runs the launches of an artefact as the CUDA launcher does, with its parameter blocks, on an emulated GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tessera.runtime.packing import Block, Packing, Shapes
from tessera.target.artifact import FLAG_BYTES, Artifact, Launch
from tessera.tools.emulate.access import marked
from tessera.tools.emulate.bulk import finish
from tessera.tools.emulate.calls import inlined
from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.machine import WARP, Grid, Machine
from tessera.tools.emulate.memory import Device
from tessera.tools.emulate.parse import parse
from tessera.tools.emulate.tensor_maps import Maps
from tessera.tools.emulate.text import Entry
from tessera.tools.emulate.values import step_of

MULTIPROCESSORS = 4
"""As few as make persistent programs take several tiles of a small problem."""

LANES = 2048
"""Threads that run at once, unless programs wait for each other."""

for _name in ("access", "barriers", "bulk", "control", "convert", "floating", "integer", "matrix", "warp", "warpgroup"):
    import_module(f"tessera.tools.emulate.{_name}")  # they register their instructions


@dataclass(frozen=True, slots=True)
class Limits:
    """How programs are run.

    Args:
        budget: instructions times threads that each group of programs may take.
        order: decides in which order warps run, each until it waits for others; None for all of them together.
    """

    budget: int
    order: int | None = None


class Emulation:
    """A kernel for an emulated GPU.

    Args:
        artifact: the compiled kernel, with the dump `ptx`.

    Raises:
        Malformed: its PTX cannot be read.
        Unknown: it has instructions that are not known.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        text = artifact.dumps["ptx"]
        assert isinstance(text, str)
        self._module = parse(text)
        for name, entry in self._module.entries.items():
            self._module.entries[name] = inlined(entry, self._module.functions)
        self._steps = {
            name: [step_of(one) for one in marked(entry.code)] for name, entry in self._module.entries.items()
        }

    def run(
        self, device: Device, pointers: Sequence[int], shapes: Shapes, scalars: Sequence[Any], limits: Limits
    ) -> None:
        """Run all launches, one after the other.

        Args:
            device: device memory, which holds the arrays.
            pointers: the address of each tensor argument.
            shapes: sizes and strides of each argument, None for a scalar.
            scalars: the value of each scalar argument.
            limits: how they are run.

        Raises:
            Fault: what a GPU would stop at, or what has no meaning.
            TooLong: more is done than the budget allows.
        """
        maps, launches = Maps(), self._artifact.launches
        packing = Packing(self._artifact, shapes, encode=maps.encode)
        slots = max((one.slot_bytes * one.most_programs(MULTIPROCESSORS) for one in launches), default=0)
        size = FLAG_BYTES + slots if slots else 0
        workspace = device.add(np.zeros(size, np.uint8), np.ones(size, bool))
        globals_ = self._constants(device)
        device.build()
        block = packing.fill(pointers, scalars)
        block.put_workspace(workspace)
        with np.errstate(all="ignore"):
            for number, (launch, programs) in enumerate(zip(launches, packing.counts(scalars), strict=True)):
                if programs:
                    entry = self._module.entries[launch.entry]
                    given = _Given(device, globals_, maps, _params(block, number, entry))
                    self._launch(launch, programs, given, limits)

    def _constants(self, device: Device) -> dict[str, int]:
        """Put the arrays of the module into device memory; return their addresses."""
        found: dict[str, int] = {}
        for name, array in self._module.arrays.items():
            if array.space in ("global", "const"):
                data = np.frombuffer(array.data.ljust(array.size, b"\0"), np.uint8)
                found[name] = device.add(data, np.ones(len(data), bool))
        return found

    def _launch(self, launch: Launch, programs: int, given: _Given, limits: Limits) -> None:
        entry, steps = self._module.entries[launch.entry], self._steps[launch.entry]
        _check(entry, launch)
        together = max(LANES // launch.threads // launch.cluster, 1) * launch.cluster
        programs = launch.started(programs, MULTIPROCESSORS)
        if launch.persistent:
            together = programs
        if programs % launch.cluster:
            raise Fault(f"{programs} programs in clusters of {launch.cluster}")
        for first in range(0, programs, together):
            count = min(together, programs - first)
            grid = Grid(programs, first, count, launch.threads, launch.cluster, launch.shared_bytes)
            turns = None if limits.order is None else _turns(grid, limits.order)
            machine = Machine(
                self._module, entry, grid, given.device, given.params, given.globals_, limits.budget, turns
            )
            machine.units["maps"] = given.maps
            machine.run(steps)
            finish(machine)


@dataclass(frozen=True, slots=True)
class _Given:
    """What a launch finds: memory, where the module's arrays lie, tensor maps, and the bytes of its parameters."""

    device: Device
    globals_: dict[str, int]
    maps: Maps
    params: list[bytes]


def _turns(grid: Grid, order: int) -> Any:
    """Return the turn of each lane: warps of all programs in an order that a number decides."""
    warps = grid.count * grid.threads // WARP
    return np.repeat(np.random.default_rng(order).permutation(warps), WARP)


def _params(block: Block, number: int, entry: Entry) -> list[bytes]:
    """Return the bytes of each parameter of a launch: as many as the entry says.

    Raises:
        Fault: the launch has another number of them.
    """
    places = block.params[number]
    if len(places) != len(entry.params):
        raise Fault(f"{entry.name} has {len(entry.params)} parameters, its launch gives {len(places)}")
    return [ctypes.string_at(place, param.size) for place, param in zip(places, entry.params, strict=True)]


def _check(entry: Entry, launch: Launch) -> None:
    """Check that a launch is as the entry was compiled for.

    Raises:
        Fault: it has more threads, or another cluster.
    """
    threads = entry.directives.get("maxntid", (launch.threads,))[0]
    cluster = entry.directives.get("reqnctapercluster", (1,))[0]
    if launch.threads > threads or launch.cluster != cluster:
        raise Fault(f"{entry.name} is for {threads} threads in clusters of {cluster}: {launch}")
