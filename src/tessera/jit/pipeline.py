"""The order of stages, and the only place that knows it. Read this file first.

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
from tessera.canonicalize.common_subexpressions import CommonSubexpressionsPass
from tessera.canonicalize.dead_code import DeadCodePass
from tessera.canonicalize.fold_constants import FoldConstantsPass
from tessera.canonicalize.fuse_shapes import FuseShapesPass
from tessera.canonicalize.gather_to_slice import GatherToSlicePass
from tessera.canonicalize.loop_invariants import LoopInvariantsPass
from tessera.canonicalize.merge_casts import MergeCastsPass
from tessera.canonicalize.narrow_comparisons import NarrowComparisonsPass
from tessera.canonicalize.remove_noops import RemoveNoopsPass
from tessera.canonicalize.simplify_control_flow import SimplifyControlFlowPass
from tessera.errors import ResourceError, TargetError
from tessera.frontend.build import BuiltKernel
from tessera.ir.passes import Pass, PassRunner
from tessera.ir.target.structure import FuncOp
from tessera.ir.text import text_of
from tessera.ir.tile.structure import KernelOp
from tessera.ir.types import int_value
from tessera.lower.launch import arg_specs
from tessera.schedule.bound_stages import BoundStagesPass
from tessera.schedule.copies import StageCopiesPass
from tessera.schedule.knobs import Knobs
from tessera.schedule.late_waits import LateWaitsPass
from tessera.schedule.pair_tiles import PairTilesPass
from tessera.schedule.ping_pong import GroupBuffersPass
from tessera.schedule.pipeline_products import PipelineProductsPass
from tessera.schedule.sink_stores import SinkStoresPass
from tessera.schedule.skip_masks import SkipMasksPass
from tessera.schedule.split_k import SplitKPass
from tessera.schedule.stores import BulkStoresPass
from tessera.schedule.stream_k import StreamKPass
from tessera.schedule.sums_of_products import SumsOfProductsPass
from tessera.schedule.warp_specialize import WarpSpecializePass
from tessera.schedule.warps import ChooseWarpsPass
from tessera.target.artifact import Artifact, Launch
from tessera.target.records import TargetRecord

# Constants first: they decide branches and shapes. Gathers become slices before casts and shapes are merged, as the
# pattern wants the index arithmetic as written. Dead code last, once, for what all the others left behind.
CANONICALIZE: tuple[Pass, ...] = (
    FoldConstantsPass(),
    SimplifyControlFlowPass(),
    CommonSubexpressionsPass(),
    GatherToSlicePass(),
    FuseShapesPass(),
    MergeCastsPass(),
    RemoveNoopsPass(),
    LoopInvariantsPass(),
    DeadCodePass(),
)

# What scheduling writes is index arithmetic on constants, repeated per stage.
CLEAN_UP: tuple[Pass, ...] = (FoldConstantsPass(), CommonSubexpressionsPass(), DeadCodePass())


def schedule_passes(target: TargetRecord, knobs: Knobs) -> tuple[Pass, ...]:
    """Return the scheduling passes of a target; of CPUs, blocking is the lowering's."""
    if target.backend == "ptx":
        return (
            BoundStagesPass(),
            SumsOfProductsPass(target, knobs),
            SplitKPass(target, knobs),
            StreamKPass(target, knobs),
            PairTilesPass(target, knobs),
            WarpSpecializePass(target, knobs),
            StageCopiesPass(target, knobs),
            BulkStoresPass(target, knobs),
            ChooseWarpsPass(target, knobs),
            NarrowComparisonsPass(),
            SkipMasksPass(target, knobs),
            PipelineProductsPass(target, knobs),
            LateWaitsPass(target, knobs),
            GroupBuffersPass(target, knobs),
            *CLEAN_UP,
        )
    return (BoundStagesPass(), SinkStoresPass(target)) if target.backend == "cpu" else ()


def lower(module: ModuleOp, target: TargetRecord) -> ModuleOp:
    """Return the TIR-T of a scheduled module."""
    if target.backend == "cpu":
        from tessera.lower.vector import lower_to_vector

        return lower_to_vector(module, target)
    if target.backend == "ptx":
        from tessera.lower.simt import lower_to_simt

        return lower_to_simt(module, target)
    raise TargetError(f"no compiler for backend {target.backend!r} yet", code="unsupported-backend")


def generate(module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
    """Return the machine code of a TIR-T module, with the texts asked for."""
    if target.backend == "cpu":
        from tessera.backends.cpu import compile_cpu

        return compile_cpu(module, target, dump)
    from tessera.backends.nvidia import compile_nvidia

    return compile_nvidia(module, target)


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
