"""Names the first step of the compiler after which a program no longer means what it says.

The interpreter runs the program as the front end built it, after each pass that canonicalizes it, and after each pass
that schedules it for each kind of target. Where all of these agree with the meaning, it is the lowering or what comes
below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Use

from tessera.errors import ResourceError, TesseraError
from tessera.ir.passes import Pass, PassRunner
from tessera.ir.tile.roles import RoleGroupOp, RolesOp
from tessera.ir.tile.shared import AllocSharedOp, SharedViewOp
from tessera.schedule.bound_stages import BoundStagesPass
from tessera.schedule.resources import is_private
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents, placed
from tessera.tools.fuzz.conditions import conditions
from tessera.tools.fuzz.meaning_values import Array, Undetermined, Val
from tessera.tools.fuzz.run import Outcome, arguments, differs, load_kernel

BELOW = "the lowering or below"
UNDETERMINED = "nothing is promised of it"


@dataclass(frozen=True)
class _Level:
    """A program on its way down.

    Args:
        program: the program.
        values: what its arrays hold before.
        expected: what they hold after.
        checks: whether the interpreter looks for races and for reads of what nothing wrote.
    """

    program: tree.Program
    values: Mapping[str, Array]
    expected: Mapping[str, Val]
    checks: bool = True

    def wrong(self, module: ModuleOp) -> str:
        """Return what the interpreter finds wrong with a module; empty when nothing."""
        from tessera.interp import interpret

        arrays = {t.name: placed(self.values[t.name], t.layout).view for t in self.program.tensors}
        args = arguments(self.program, arrays)
        try:
            interpret(module.clone(), args, checks=self.checks, order_seed=self.program.seed)
        except TesseraError as error:
            return f"the interpreter stops: {str(error).splitlines()[0]}"
        except Exception as error:  # wrong IR makes the interpreter fail in any way: that is what is looked for
            return f"the interpreter fails: {type(error).__name__}: {error}"
        for name, array in arrays.items():
            if differs(array, self.expected[name]).any():
                return f"{name} differs"
        return ""


def first_wrong(program: tree.Program, folder: Path, targets: Sequence[str] = ("cpu", "sm_80", "sm_90a")) -> str:
    """Return the first step after which a program's meaning has changed, and how; `BELOW` when none has.

    Args:
        program: the program.
        folder: where its source is written.
        targets: for which schedules are looked at.
    """
    from tessera.tools.fuzz.exact import wanted

    values = {tensor.name: contents(tensor, program.seed) for tensor in program.tensors}
    try:
        expected, events = wanted(program, values, folder)
    except Undetermined as reason:
        return f"{UNDETERMINED}: {reason}"
    level = _Level(program, values, expected)
    with conditions(program):
        try:
            module = built(program, folder, values)
        except TesseraError as error:
            return f"front end: {str(error).splitlines()[0]}"
        if "stage-outside" in events:  # the interpreter reports it until a pass has given it a meaning
            PassRunner().run(module, "schedule", (BoundStagesPass(),))
        return _walk(level, module, list(map(target_named, targets)))


def checked(program: tree.Program, folder: Path, targets: Sequence[str] = ()) -> Outcome:
    """Run a program on the interpreter after each pass of schedules.

    Args:
        program: the program.
        folder: where its source is written.
        targets: for which; for GPUs and CPUs with matrix units by default.
    """
    found = first_wrong(program, folder, targets or ("sapphirerapids", "sm_80", "sm_90a"))
    if found.startswith(UNDETERMINED):
        return Outcome(program.seed, "skipped", detail=found)
    return Outcome(program.seed, "same" if found == BELOW else "mismatch", "", "" if found == BELOW else found)


def _walk(level: _Level, module: ModuleOp, targets: Sequence[TargetRecord]) -> str:
    from tessera.driver.pipeline import CANONICALIZE, schedule_passes
    from tessera.schedule.knobs import Knobs

    if level.wrong(module):
        # Some programs read what nothing wrote, and use none of it.
        level = replace(level, checks=False)
        if wrong := level.wrong(module):
            return f"front end: {wrong}"
    if wrong := _steps(level, module, "canonicalize", CANONICALIZE):
        return wrong
    for target in targets:
        knobs = Knobs.from_config(dict(level.program.knobs))
        stage = f"schedule for {target.name}"
        if wrong := _steps(level, module.clone(), stage, schedule_passes(target, knobs)):
            return wrong
    return BELOW


def _steps(level: _Level, module: ModuleOp, stage: str, passes: Sequence[Pass]) -> str:
    runner = PassRunner(verify="pass")
    for step in passes:
        before = module.clone()
        try:
            runner.run(module, stage, (step,))
        except ResourceError:
            return ""  # a schedule that a target has no room for says nothing of the others
        except TesseraError as error:
            return f"{stage}: {step.name}: {str(error).splitlines()[0]}"
        complete = step is passes[-1] or not _is_to_be_divided(module)
        if complete and not module.is_structurally_equivalent(before) and (wrong := level.wrong(module)):
            return f"{stage}: {step.name}: {wrong}"
    return ""


def _is_to_be_divided(module: ModuleOp) -> bool:
    """Return whether groups of consumers still share a buffer of which `group-buffers` gives each its own."""
    return any(
        isinstance(alloc, AllocSharedOp) and is_private(alloc, roles) and not all(map(_is_own, alloc.result.uses))
        for roles in module.walk()
        if isinstance(roles, RolesOp) and roles.groups.data > 1 and roles.parent is not None
        for alloc in roles.parent.ops
    )


def _is_own(use: Use) -> bool:
    """Return whether a buffer is used as one of several, that of the group at work."""
    return isinstance(use.operation, SharedViewOp) and isinstance(use.operation.index.owner, RoleGroupOp)


def built(program: tree.Program, folder: Path, values: Mapping[str, Array]) -> ModuleOp:
    """Return the TIR-H that a call compiles from.

    Args:
        program: the program.
        folder: where its source is written.
        values: what its arrays hold.
    """
    from tessera.driver.binding import canonical_strides, tensor_facts
    from tessera.frontend.build import build_kernel
    from tessera.frontend.signature import TensorParam
    from tessera.frontend.specialize import ArgFacts, Specialization
    from tessera.runtime.readers import view_of

    signature = load_kernel(program, folder).signature
    layouts = {tensor.name: tensor.layout for tensor in program.tensors}
    facts: list[ArgFacts] = []
    for param in signature.runtime_params:
        if isinstance(param, TensorParam):
            array: Any = placed(values[param.name], layouts[param.name]).view
            pointer, view, _ = view_of(array)
            facts.append(tensor_facts(param.name, pointer, view, canonical_strides(view)))
        else:
            facts.append(ArgFacts("scalar", param.dtype))
    constants = tuple((p.name, p.default) for p in signature.params if p not in signature.runtime_params)
    given = Specialization(tuple(facts), constants, profile=program.profile, debug=program.asserts)  # pyright: ignore
    return build_kernel(signature, given).module
