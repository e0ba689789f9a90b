"""What must not change a program's results: how often, from where, and with how many threads it is run.

Two runs of one program are compared with each other, bit by bit where the profile promises bits, and with the meaning
where other schedules may round in other places.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import CallError, ResourceError
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents, placed
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.generate_knobs import any_of
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.meaning_values import Array, Undetermined, Val
from tessera.tools.fuzz.ptx import emulated
from tessera.tools.fuzz.run import Device, Outcome, check, load_kernel
from tessera.tools.fuzz.types import is_float

Run = dict[str, Array]


def varied(program: tree.Program, device: Device, folder: Path) -> Outcome | None:
    """Run a program that gave the right results in another way, which its seed decides.

    Args:
        program: the program.
        device: where it ran.
        folder: where its source is written.

    Returns:
        What went wrong; None when nothing did, or when nothing is promised.
    """
    dice = random.Random(program.seed)
    if device.kind in ("cuda", "ptx"):
        knobs = tuple(any_of(dice, dice.randint(1, 2), program.profile == "strict").items())
        other = replace(program, knobs=knobs)
        outcome = check(other, device, folder) if device.kind == "cuda" else emulated(other, folder, device.targets)
        return replace(outcome, code="knobs", detail=f"with {knobs}: {outcome.detail}") if outcome.failed else None
    if device.kind != "cpu" or device.target or not _repeats(program):
        return None
    name = dice.choice(sorted(CHECKS))
    values = {tensor.name: contents(tensor, program.seed) for tensor in program.tensors}
    try:
        expected, _ = meaning(program, values)
        with conditions(program):
            first, second = CHECKS[name](program, folder, values)
    except (Undetermined, ResourceError):
        return None
    except CallError as error:
        # What an artefact is compiled for is assumed, so other arrays may not fit.
        refused = error.code == "artifact-guard"
        return None if refused else Outcome(program.seed, "error", name, str(error))
    except Exception as error:  # a right program may fail in any way when it runs again: that is the finding
        return Outcome(program.seed, "error", name, f"{type(error).__name__}: {error}")
    wrong = "\n".join(_unequal(first, second, expected))
    return Outcome(program.seed, "mismatch", name, wrong) if wrong else None


def _repeats(program: tree.Program) -> bool:
    """Return whether a program gives the same bits in each run: float atomics do not, unless asked to."""
    return program.profile != "fast" or not any(
        isinstance(node, tree.Atomic) and is_float(node.dtype) for node in tree.walk(program)
    )


def _unequal(first: Run, second: Run, expected: Mapping[str, Val]) -> Iterator[str]:
    for name, one in first.items():
        other = second[name]
        if not one.size:
            continue
        raw = [np.ascontiguousarray(part).view(np.uint8).reshape(part.size, -1) for part in (one, other)]
        wrong = (raw[0] != raw[1]).any(1) & np.broadcast_to(expected[name].mask(), one.shape).reshape(-1)
        if wrong.any():
            at = int(np.argmax(wrong))
            yield f"{name}: element {at} is {one.reshape(-1)[at]!s} in one run, {other.reshape(-1)[at]!s} in the other"


def _call(kernel: Callable[..., Any], program: tree.Program, values: Mapping[str, Array], dense: bool = False) -> Run:
    arrays: Run = {}
    for tensor in program.tensors:
        rank = len(tensor.shape)
        layout = tree.Layout(tuple(range(rank)), (1,) * rank) if dense else tensor.layout
        arrays[tensor.name] = placed(values[tensor.name], layout).view
    kernel(
        *(
            arrays[param.name] if isinstance(param, tree.Tensor) else param.value
            for param in program.params
            if not isinstance(param, tree.Constant)
        )
    )
    return arrays


def _again(program: tree.Program, folder: Path, values: Mapping[str, Array]) -> tuple[Run, Run]:
    """The first call, and the fourth: the compiled entry serves it."""
    kernel = load_kernel(program, folder)
    runs = [_call(kernel, program, values) for _ in range(4)]
    return runs[0], runs[-1]


def _threads(program: tree.Program, folder: Path, values: Mapping[str, Array]) -> tuple[Run, Run]:
    """One thread, and three."""
    kernel = load_kernel(program, folder)
    runs: list[Run] = []
    for count in ("1", "3"):
        with _environment("TESSERA_NUM_THREADS", count):
            runs.append(_call(kernel, program, values))
    return runs[0], runs[1]


def _cached(program: tree.Program, folder: Path, values: Mapping[str, Array]) -> tuple[Run, Run]:
    """Compiled afresh, and from the disk cache."""
    runs = [_call(load_kernel(program, folder), program, values) for _ in range(2)]
    return runs[0], runs[1]


def _saved(program: tree.Program, folder: Path, values: Mapping[str, Array]) -> tuple[Run, Run]:
    """An artefact as it was compiled, and from its file."""
    from tessera.driver.compile import compile
    from tessera.driver.loaded import LoadedKernel, load

    artifact = compile(load_kernel(program, folder), target="cpu", dims=program.dims)
    path = folder / f"{program.seed & 0xFFFFFFFFFFFF:x}.art"
    artifact.save(path)
    return _call(LoadedKernel(artifact), program, values, True), _call(load(path), program, values, True)


CHECKS = {"again": _again, "threads": _threads, "cached": _cached, "saved": _saved}


@contextmanager
def _environment(name: str, value: str) -> Generator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
