"""The order of stages, and the only place that knows it. Read this file first, then a file of `platforms/`.

source --frontend--> TIR-H --canonicalize--> TIR-H --schedule--> TIR-H --lower--> TIR-T --backend--> Artifact
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation

from tessera.backends.llvm.code import CompiledCode
from tessera.canonicalize.stages import CANONICALIZE
from tessera.errors import ResourceError
from tessera.frontend.build import BuiltKernel
from tessera.ir.passes import Pass, PassRunner
from tessera.ir.target.structure import FuncOp
from tessera.ir.text import text_of
from tessera.ir.tile.structure import KernelOp
from tessera.ir.types import int_value
from tessera.lower.launch import arg_specs
from tessera.platforms.platform import platform_named
from tessera.schedule.knobs import Knobs
from tessera.target.artifact import Artifact, Launch
from tessera.target.records import TargetRecord


def schedule_passes(target: TargetRecord, knobs: Knobs) -> tuple[Pass, ...]:
    """Return the scheduling passes of a target."""
    return platform_named(target.backend).schedule(target, knobs)


def lower(module: ModuleOp, target: TargetRecord) -> ModuleOp:
    """Return the TIR-T of a scheduled module."""
    return platform_named(target.backend).lower(module, target)


def generate(module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
    """Return the machine code of a TIR-T module, with the texts asked for."""
    return platform_named(target.backend).generate(module, target, dump)


def compile_kernel(
    built: BuiltKernel, target: TargetRecord, dump: Sequence[str], config: Mapping[str, Any]
) -> Artifact:
    """Compile a kernel from TIR-H to an artefact.

    Args:
        built: what the frontend made.
        target: the target.
        dump: stages to keep: `tirh` (canonical and scheduled), `tirt`, `ll`, `asm`, `ptx`, `cubin`.
        config: the tuning point; `num_warps`, `num_stages`, `group_m` and the like are knobs of the schedule.

    `TESSERA_DUMP_DIR` names a folder for the IR after each pass that changed it.
    """
    folder = os.environ.get("TESSERA_DUMP_DIR")
    runner = PassRunner(dump=Path(folder) if folder else None)
    runner.run(built.module, "canonicalize", CANONICALIZE)
    knobs = Knobs.from_config(config)
    forced = knobs.stages is not None
    while True:
        module = built.module.clone()
        try:
            return _finish(built, module, target, dump, knobs, runner)
        except ResourceError:
            # Layout conversions need shared memory that the schedule cannot foresee: try shallower rings.
            depth = _schedule_of(module).get("stages", 1)
            if forced or not isinstance(depth, int) or depth < 2:
                raise
            knobs = replace(knobs, stages=depth - 1)


def _finish(
    built: BuiltKernel,
    module: ModuleOp,
    target: TargetRecord,
    dump: Sequence[str],
    knobs: Knobs,
    runner: PassRunner,
) -> Artifact:
    """Schedule, lower and generate code for a canonical module."""
    passes = schedule_passes(target, knobs)
    if passes:
        runner.run(module, "schedule", passes)
    kernel = next(op for op in module.ops if isinstance(op, KernelOp))
    texts: dict[str, str | bytes] = {"tirh": text_of(module)} if "tirh" in dump else {}
    lowered = runner.transform(module, "lower", target.backend, lambda m: lower(m, target))
    if "tirt" in dump:
        texts["tirt"] = text_of(lowered)
    code = generate(lowered, target, dump)
    texts.update({name: data for name, data in code.dumps.items() if name in dump})
    notes = {**_notes(module), **_notes(lowered)}
    reflection: dict[str, Any] = {**code.reflection, **notes, "schedule": _schedule_of(module)}
    reflection["passes_ms"] = {record.name: round(record.ms, 3) for record in runner.records}
    return Artifact(
        kernel.sym_name.data, target.backend, target.name, arg_specs(kernel), built.returns,
        tuple(_launch(op, code) for op in lowered.ops if isinstance(op, FuncOp)), code.code, code.code_kind, texts,
        reflection, tuple(reflection.pop("requires", ())),
    )  # fmt: skip


def _launch(func: FuncOp, code: CompiledCode) -> Launch:
    facts = code.reflection.get("kernels", {}).get(func.sym_name.data, {})
    return Launch(
        func.sym_name.data,
        func.parameters,
        tuple((extent, block) for extent, block in json.loads(func.grid.data)),
        facts.get("threads", 1),
        facts.get("shared_bytes", 0),
        facts.get("scratch_bytes", 0),
        facts.get("persistent", False),
        facts.get("overlaps", False),
        facts.get("cluster", 1),
    )


def _schedule_of(module: ModuleOp) -> dict[str, Any]:
    """Return what the schedule wrote on ops, by name; the values of several ops as a list."""
    found: dict[str, list[int]] = {}
    for op in module.walk():
        for key, attr in op.attributes.items():
            value = int_value(attr)
            if key.startswith("tessera_schedule.") and value is not None:
                values = found.setdefault(key.split(".", 1)[1], [])
                if value not in values:
                    values.append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def _notes(module: ModuleOp) -> dict[str, list[str]]:
    """Return the notes that the schedule left on grids, or the lowering on functions."""
    found: dict[str, list[str]] = {}
    for op in module.walk():
        for key, text in _note_items(op):
            found.setdefault(key, []).append(text)
    return found


def _note_items(op: Operation) -> list[tuple[str, str]]:
    items: list[tuple[str, str]] = []
    for key, attr in op.attributes.items():
        if key.startswith("tessera_notes.") and isinstance(attr, ArrayAttr):
            notes = cast("tuple[StringAttr, ...]", attr.data)  # pyright: ignore[reportUnknownMemberType]
            items += [(key.split(".", 1)[1], note.data) for note in notes]
    return items
