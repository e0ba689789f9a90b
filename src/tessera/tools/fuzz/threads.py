"""Runs a program's GPU lowering on a CPU: where two threads touch one element unordered, and what all compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from xdsl.dialects import scf

from tessera.errors import ResourceError, TesseraError
from tessera.ir.passes import PassRunner
from tessera.ir.target.structure import FuncOp
from tessera.target.registry import target_named
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import Guarded, contents, placed
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.exact import wanted
from tessera.tools.fuzz.in_step import Fault, programs_of, run_launch
from tessera.tools.fuzz.meaning_values import Undetermined
from tessera.tools.fuzz.races import Machine, Unknown
from tessera.tools.fuzz.run import Outcome, differences
from tessera.tools.fuzz.steps import BELOW, built, first_wrong

TARGETS = ("sm_80", "sm_90a")
MOST_ELEMENTS = 20000
"""Tensors of more are not looked at: every thread's part of every access is written out."""


def raced(program: tree.Program, folder: Path, targets: Sequence[str] = ()) -> Outcome:
    """Lower a program for GPUs and look for races and for accesses outside of tensors.

    Args:
        program: the program.
        folder: where its source is written.
        targets: the GPUs; `TARGETS` by default.
    """
    seen = 0
    if any(prod(tensor.shape) > MOST_ELEMENTS for tensor in program.tensors):
        return Outcome(program.seed, "skipped", detail="large tensors")
    for target in targets or TARGETS:
        try:
            funcs = _lowered(program, folder, target)
        except ResourceError as error:
            return Outcome(program.seed, "refused", error.code, str(error))
        except TesseraError as error:
            return Outcome(program.seed, "error", error.code, f"{target}: {error}")
        for func in funcs:
            try:
                found = _wrong(program, func)
            except Unknown:
                continue
            seen += 1
            if found:
                return Outcome(program.seed, "mismatch", "race", f"{target}, {func.sym_name.data}: {found}")
    return Outcome(program.seed, "same" if seen else "skipped")


def computed(program: tree.Program, folder: Path, targets: Sequence[str] = ()) -> Outcome:
    """Lower a program for GPUs, compute what all threads do, and compare what they store with its meaning.

    Args:
        program: the program.
        folder: where its source is written.
        targets: the GPUs; `TARGETS` by default.
    """
    values = {tensor.name: contents(tensor, program.seed) for tensor in program.tensors}
    if any(prod(tensor.shape) > MOST_ELEMENTS for tensor in program.tensors):
        return Outcome(program.seed, "skipped", detail="large tensors")
    try:
        expected, _ = wanted(program, values, folder)
    except Undetermined as reason:
        return Outcome(program.seed, "skipped", detail=str(reason))
    seen = 0
    for target in targets or TARGETS:
        arrays = {tensor.name: placed(values[tensor.name], tensor.layout) for tensor in program.tensors}
        try:
            for func in _lowered(program, folder, target):
                _launch(program, func, arrays)
        except Unknown:
            continue
        except Fault as fault:
            return Outcome(program.seed, "mismatch", "", f"{target}: {fault}")
        except ResourceError as error:
            return Outcome(program.seed, "refused", error.code, str(error))
        except TesseraError as error:
            return Outcome(program.seed, "error", error.code, f"{target}: {error}")
        seen += 1
        wrong = differences(program, arrays, expected)
        if wrong:
            return Outcome(program.seed, "mismatch", "", "\n".join([f"{target}:", *wrong]))
    return Outcome(program.seed, "same" if seen else "skipped")


def wrong_level(program: tree.Program, folder: Path) -> str:
    """Return the first step after which a program's meaning has changed: of passes, of the lowering, or below.

    Args:
        program: the program.
        folder: where its source is written.
    """
    found = first_wrong(program, folder)
    if found != BELOW:
        return found
    outcomes = [computed(program, folder, (target,)) for target in TARGETS]
    wrong = next((outcome.detail for outcome in outcomes if outcome.kind == "mismatch"), "")
    if wrong:
        return f"the lowering: {wrong}"
    return "what comes below the lowering" if all(outcome.kind == "same" for outcome in outcomes) else BELOW


def _launch(program: tree.Program, func: FuncOp, arrays: Mapping[str, Guarded]) -> None:
    """Run all programs of a launch, one after the other."""
    params = [param for param in program.params if not isinstance(param, tree.Constant)]
    tensors = {at: arrays[p.name] for at, p in enumerate(params) if isinstance(p, tree.Tensor)}
    run_launch(func, tensors, {at: p.value for at, p in enumerate(params) if isinstance(p, tree.ScalarParam)})


def _lowered(program: tree.Program, folder: Path, target: str) -> list[FuncOp]:
    from tessera.driver.pipeline import CANONICALIZE, lower, schedule_passes
    from tessera.lower.assembly import choose_assembly
    from tessera.schedule.knobs import Knobs

    values = {tensor.name: contents(tensor, program.seed) for tensor in program.tensors}
    record, runner = target_named(target), PassRunner()
    with conditions(program):
        module = built(program, folder, values)
        runner.run(module, "canonicalize", CANONICALIZE)
        knobs = Knobs.from_config(dict(program.knobs))
        runner.run(module, "schedule", schedule_passes(record, knobs))
        choose_assembly(module, "")  # what it means: the machine knows no text
        lowered = runner.transform(module, "lower", record.backend, lambda m: lower(m, record))
    return [op for op in lowered.ops if isinstance(op, FuncOp)]


def _wrong(program: tree.Program, func: FuncOp) -> str:
    """Return the first race of the first or last program of a launch; empty when there is none."""
    params = [param for param in program.params if not isinstance(param, tree.Constant)]
    sizes = {at: p.shape for at, p in enumerate(params) if isinstance(p, tree.Tensor)}
    scalars = {at: int(p.value) for at, p in enumerate(params) if isinstance(p, tree.ScalarParam)}
    empty = any(0 in shape for shape in sizes.values())
    if empty or any(isinstance(op, scf.WhileOp) for op in func.walk()):
        raise Unknown("a loop of unknown length")
    strides = {at: [prod(shape[axis + 1 :]) for axis in range(len(shape))] for at, shape in sizes.items()}
    count = programs_of(func, sizes, scalars, strides)
    for number in sorted({0, count - 1} if count else set[int]()):
        machine = Machine(func, sizes, number, scalars, count if any(param.parts for param in func.parameters) else 1)
        if races := machine.run():
            return f"program {number}: {races[0].op.name} of element {races[0].element}"
        if machine.outside:
            return f"program {number}: {machine.outside[0].name} reaches outside of its tensor"
    return ""
