"""Runs the PTX of a program on an emulated GPU, and compares what it stores with its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import ResourceError, TesseraError
from tessera.target.artifact import Artifact
from tessera.target.registry import target_named
from tessera.tools.emulate.errors import Fault, TooLong, Unknown
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import Guarded, contents, placed
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.exact import wanted
from tessera.tools.fuzz.meaning_values import Array, Undetermined, Val
from tessera.tools.fuzz.run import Outcome, differences
from tessera.tools.fuzz.steps import built

TARGETS = ("sm_80", "sm_90a")
BUDGET = 100_000_000
"""Instructions times threads that a group of programs may take: some seconds."""

_IN_TURN = 4
"""Of so many programs one is run warp by warp, which shows missing barriers and takes longer."""


def emulated(program: tree.Program, folder: Path, targets: Sequence[str] = ()) -> Outcome:
    """Compile a program to PTX, run that, and compare what it stores with the program's meaning.

    Args:
        program: the program.
        folder: where its source is written.
        targets: the GPUs, one after the other; `TARGETS` by default.
    """
    values = {tensor.name: contents(tensor, program.seed) for tensor in program.tensors}
    try:
        expected, _ = wanted(program, values, folder)
    except Undetermined as reason:
        return Outcome(program.seed, "skipped", detail=str(reason))
    outcomes = [_on(name, program, folder, values, expected) for name in targets or TARGETS]
    order = ("mismatch", "error", "same", "skipped", "refused")
    return min(outcomes, key=lambda outcome: order.index(outcome.kind))


def _on(
    target: str, program: tree.Program, folder: Path, values: Mapping[str, Array], expected: Mapping[str, Val]
) -> Outcome:
    """Return what comes of a program on one GPU."""
    limits = Limits(BUDGET // _IN_TURN, program.seed) if program.seed % _IN_TURN == 0 else Limits(BUDGET)
    try:
        artifact = compiled(program, folder, values, target)
        try:
            arrays = _after(artifact, program, values, limits)
        except TooLong:
            arrays = _after(artifact, program, values, Limits(BUDGET))
    except Unknown as reason:
        return Outcome(program.seed, "skipped", reason.what, f"{target}: {reason}")
    except TooLong:
        return Outcome(program.seed, "skipped", "too long")
    except Fault as fault:
        return Outcome(program.seed, "mismatch", "fault", f"{target}: {fault}")
    except ResourceError as error:
        return Outcome(program.seed, "refused", error.code, str(error))
    except TesseraError as error:
        return Outcome(program.seed, "error", error.code, f"{target}: {error}")
    wrong = differences(program, arrays, expected)
    if wrong:
        return Outcome(program.seed, "mismatch", "", "\n".join([f"{target}:", *wrong]))
    return Outcome(program.seed, "same")


def _after(
    artifact: Artifact, program: tree.Program, values: Mapping[str, Array], limits: Limits
) -> dict[str, Guarded]:
    """Return a program's arrays after it ran."""
    arrays = {tensor.name: placed(values[tensor.name], tensor.layout) for tensor in program.tensors}
    run(artifact, program, arrays, limits)
    return arrays


def compiled(program: tree.Program, folder: Path, values: Mapping[str, Array], target: str) -> Artifact:
    """Return the artefact of a program for a GPU, with its PTX, without an assembler.

    Args:
        program: the program.
        folder: where its source is written.
        values: what its arrays hold.
        target: the GPU.
    """
    from tessera.driver.pipeline import compile_tiles
    from tessera.ir.record import record_on
    from tessera.platforms.platform import platform_named
    from tessera.schedule.knobs import Knobs

    record = target_named(target)
    with conditions(program):
        module = built(program, folder, values)
        knobs = Knobs.from_config(dict(program.knobs))
        record_on(module, target=target, after="frontend", knobs=knobs.given(), facts={})
        return compile_tiles(module, record, ("ptx",), platform_named(record.backend).write)


def run(artifact: Artifact, program: tree.Program, arrays: Mapping[str, Guarded], limits: Limits) -> None:
    """Run an artefact on an emulated GPU; arrays change in place.

    Args:
        artifact: the program, compiled with its PTX.
        program: the program.
        arrays: its arrays; no byte but those of their elements may be touched.
        limits: how it is run.

    Raises:
        Fault: what a GPU would stop at.
        Unknown: an instruction that is not known.
        TooLong: it takes more than the limits allow.
    """
    device = Device()
    pointers: list[int] = []
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = []
    scalars: list[Any] = []
    for param in program.params:
        if isinstance(param, tree.Tensor):
            guarded = arrays[param.name]
            pointers.append(_put(device, guarded))
            item = guarded.view.itemsize
            shapes.append((guarded.view.shape, tuple(stride // item for stride in guarded.view.strides)))
        elif isinstance(param, tree.ScalarParam):
            scalars.append(param.value)
            shapes.append(None)
    Emulation(artifact).run(device, pointers, shapes, scalars, limits)
    for number, tensor in enumerate(param for param in program.params if isinstance(param, tree.Tensor)):
        arrays[tensor.name].base.view(np.uint8)[...] = device.back(number)


def _put(device: Device, guarded: Guarded) -> int:
    """Copy a block of memory to an emulated GPU; return the address of its array."""
    item = guarded.base.itemsize
    base, first = guarded.base.ctypes.data, guarded.view.ctypes.data if guarded.view.size else guarded.base.ctypes.data
    allowed = np.repeat(~guarded.free, item) if guarded.view.size else np.zeros(guarded.base.nbytes, bool)
    return device.add(guarded.base.view(np.uint8), allowed, base % 512) + first - base
