"""The order of stages, and the only place that knows it. Read this file first, then a file of `platforms/`.

source --frontend--> TIR-H --canonicalize--> TIR-H --schedule--> TIR-H --lower--> TIR-T --backend--> Artifact
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation

from tessera.backends.llvm.code import CompiledCode
from tessera.canonicalize.dead_code import DeadCodePass
from tessera.canonicalize.stages import CANONICALIZE
from tessera.driver.records import kernel_of, thread_record, tile_record
from tessera.errors import ResourceError, VerifyError
from tessera.frontend.build import BuiltKernel
from tessera.ir import decisions
from tessera.ir.cloning import clone
from tessera.ir.locations import location_of
from tessera.ir.notes import note
from tessera.ir.passes import Pass, PassRunner
from tessera.ir.record import record_on
from tessera.ir.target.debug import AssertOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.text import text_of
from tessera.ir.tile.debug import AssertOp as TileAssertOp
from tessera.ir.tile.structure import AssumeOp, KernelOp, ReturnOp
from tessera.ir.types import int_value
from tessera.ir.walking import ops_in
from tessera.lower.assembly import choose_assembly
from tessera.lower.launch import arg_specs
from tessera.platforms.platform import platform_named
from tessera.schedule.knobs import Knobs, read_by
from tessera.target.artifact import ArgSpec, Artifact, Launch
from tessera.target.assumptions import recorded
from tessera.target.header import with_header
from tessera.target.records import TargetRecord
from tessera.verify import check_shared

_ARG_FIELDS = tuple(each.name for each in fields(ArgSpec))


def schedule_passes(target: TargetRecord, knobs: Knobs) -> tuple[Pass, ...]:
    """Return the scheduling passes of a target."""
    return platform_named(target.backend).schedule(target, knobs)


def lower(module: ModuleOp, target: TargetRecord) -> ModuleOp:
    """Return the TIR-T of a scheduled module, which is changed."""
    platform = platform_named(target.backend)
    if choose_assembly(module, platform.assembly(target)):
        DeadCodePass().apply(module)
    return platform.lower(module, target)


def compile_kernel(
    built: BuiltKernel,
    target: TargetRecord,
    dump: Sequence[str],
    config: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
) -> Artifact:
    """Compile a kernel from TIR-H to an artefact.

    Args:
        built: the output of the frontend.
        target: the target.
        dump: stages to keep: `tirh` (canonical and scheduled), `tirt`, `ll`, `asm`, `ptx`, `cubin`.
        config: the tuning point; `num_warps`, `num_stages`, `group_m` and the like are knobs of the schedule.
        facts: more facts for the artefact's reflection.

    `TESSERA_DUMP_DIR` names a folder for the IR after each pass that changed it.
    """
    knobs = Knobs.from_config({**built.asked, **config})
    record_on(built.module, target=target.name, after="frontend", knobs=knobs.given(), facts=dict(facts or {}))
    _note_unread(built.module, target, knobs)
    return compile_tiles(built.module, target, dump, platform_named(target.backend).generate)


def _note_unread(module: ModuleOp, target: TargetRecord, knobs: Knobs) -> None:
    """Note the knobs that are fixed and that no pass of the target reads."""
    given = knobs.given().items()
    if not given:
        return
    read = {name for one in schedule_passes(target, Knobs()) for name in read_by(one.name)}
    unread = [f"{name}={value} has no effect on {target.name}" for name, value in given if name not in read]
    for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
        if unread:
            note(kernel, "knobs", unread)


Generate = Callable[[ModuleOp, TargetRecord, Sequence[str]], CompiledCode]


def compile_tiles(module: ModuleOp, target: TargetRecord, dump: Sequence[str], generate: Generate) -> Artifact:
    """Compile TIR-H from the pass after the last one that its record names.

    Args:
        module: TIR-H with a record (`ir/record.py`).
        target: the target.
        dump: as for `compile_kernel`.
        generate: compiles TIR-T to code.

    Raises:
        VerifyError: its record is malformed.
        LanguageError: its accesses to shared buffers race.
    """
    folder = os.environ.get("TESSERA_DUMP_DIR")
    runner = PassRunner(dump=Path(folder) if folder else None)
    record = tile_record(module)
    if record.after == "frontend":
        check_shared(module)
    if passes := remaining(module, "canonicalize", CANONICALIZE, record.after):
        runner.run(module, "canonicalize", passes)
    knobs = Knobs.of(record.knobs)
    forced = knobs.stages is not None
    while True:
        record_on(module, knobs=knobs.given())
        copy = clone(module)
        all_passes = schedule_passes(target, knobs)
        passes = remaining(module, "schedule", all_passes, record.after)
        try:
            if passes:
                runner.run(copy, "schedule", passes, before=module)
            return _finish(copy, target, dump, runner, generate)
        except ResourceError:
            # Layout conversions need shared memory that the schedule cannot foresee: try tiles as they are written, of
            # which there is one launch, and shallower rings.
            found = _schedule_of(copy).get("stages", 1)
            depths = [found] if isinstance(found, int) else found  # one, or those of several launches
            depth = max(depths)
            if len(passes) < len(all_passes):
                raise
            if (forced or len(depths) > 1) and knobs.fit_blocks is None:
                knobs = replace(knobs, fit_blocks=0)
            elif forced or depth < 2:
                raise
            else:
                knobs = replace(knobs, stages=depth - 1)


def remaining(module: ModuleOp, stage: str, passes: tuple[Pass, ...], after: str) -> tuple[Pass, ...]:
    """Return the passes of a stage that have not run on a module yet.

    Args:
        module: the module, for the error.
        stage: `canonicalize` or `schedule`.
        passes: the passes of the stage, in order.
        after: the stage and the name of the last one that it had.

    Raises:
        VerifyError: the stage has no such pass.
    """
    last_stage, _, last = after.partition(": ")
    if last_stage == "schedule" and stage == "canonicalize":
        return ()
    if last_stage != stage:
        return passes
    names = [one.name for one in passes]
    if not last:
        return ()
    if last not in names:
        raise VerifyError(
            f'tessera.after is "{after}", which is not a pass of the target',
            location=location_of(module),
            help=f"passes of {stage}: {', '.join(names) or 'none'}",
        )
    return passes[names.index(last) + 1 :]


def _finish(
    module: ModuleOp, target: TargetRecord, dump: Sequence[str], runner: PassRunner, generate: Generate
) -> Artifact:
    """Lower a scheduled module and generate code."""
    texts: dict[str, str | bytes] = {"tirh": _dumped(module)} if "tirh" in dump else {}
    lowered = runner.transform(module, "lower", target.backend, lambda m: _recorded(m, lower(m, target)))
    artifact = compile_threads(lowered, target, dump, generate)
    passes_ms = {record.name: round(record.ms, 3) for record in runner.records}
    return replace(
        artifact,
        dumps={**texts, **artifact.dumps},
        reflection={**artifact.reflection, "passes_ms": passes_ms},
    )


def _recorded(module: ModuleOp, lowered: ModuleOp) -> ModuleOp:
    """Write on TIR-T what it needs from its TIR-H to be compiled further."""
    kernel = kernel_of(module)
    end = kernel.body.block.last_op
    returned = end.tensors if isinstance(end, ReturnOp) else ()
    record = tile_record(module)
    facts = {**record.facts, "profile": kernel.profile.data, **_notes(module), "schedule": _schedule_of(module)}
    assumed = [op for op in kernel.body.block.ops if isinstance(op, AssumeOp)]
    if assumed:
        facts["assumptions"] = [{"condition": op.extent, "location": recorded(location_of(op))} for op in assumed]
    record_on(
        lowered,
        target=record.target,
        name=kernel.sym_name.data,
        args=[{name: getattr(spec, name) for name in _ARG_FIELDS} for spec in arg_specs(kernel)],
        returns=[kernel.body.block.args.index(tensor) for tensor in returned],
        facts=facts,
    )
    return lowered


def compile_threads(module: ModuleOp, target: TargetRecord, dump: Sequence[str], generate: Generate) -> Artifact:
    """Compile TIR-T with a record.

    Raises:
        VerifyError: the record is missing or malformed.
    """
    record = thread_record(module)
    code = generate(module, target, dump)
    launches = tuple(_launch(op, code) for op in module.ops if isinstance(op, FuncOp))
    reflection: dict[str, Any] = {**_shown(target, record.args, launches), **code.reflection}
    reflection |= {**record.facts, **_notes(module)}
    requires = tuple(reflection.pop("requires", ()))
    artifact = Artifact(
        record.name,
        target.backend,
        target.name,
        record.args,
        record.returns,
        launches,
        code.code,
        code.code_kind,
        {"tirt": _dumped(module)} if "tirt" in dump else {},
        reflection,
        requires,
    )
    return with_texts(artifact, code.dumps, dump)


def _shown(target: TargetRecord, args: Sequence[ArgSpec], launches: Sequence[Launch]) -> dict[str, Any]:
    """Return what reflection says on every target: its name and features, shapes of tensors, extents of launches."""
    return {
        "target": target.name,
        "features": sorted(target.features),
        "shapes": {arg.name: list(arg.dims) for arg in args if arg.kind == "tensor"},
        "grid": {
            launch.entry: [[_extent(extent, args), block] for extent, block in _own_grid(launch)] for launch in launches
        },
    }


def _own_grid(launch: Launch) -> Sequence[tuple[Any, int]]:
    """Return a launch's grid without how many programs share each tile, which comes last."""
    return launch.grid[:-1] if any(param.sharing for param in launch.params) else launch.grid


def _extent(extent: Any, args: Sequence[ArgSpec]) -> int | str:
    """Return an extent as a size or in words: `M`, `floordiv(M, 2)`."""
    match extent:
        case ["size", int(arg), int(axis)]:
            return args[arg].dims[axis]
        case ["stride", int(arg), int(axis)]:
            return f"stride({args[arg].name}, {axis})"
        case [str(fn), *parts]:
            return f"{fn}({', '.join(str(_extent(part, args)) for part in parts)})"
        case int():
            return extent
        case _:
            return str(extent)


def _dumped(module: ModuleOp) -> str:
    """Return the text of a stage; with locations where code holds them: what fails names its own."""
    return text_of(module, locations=any(isinstance(op, TileAssertOp | AssertOp | AssumeOp) for op in ops_in(module)))


def with_texts(artifact: Artifact, texts: Mapping[str, str | bytes], dump: Sequence[str]) -> Artifact:
    """Return an artefact with the dumps asked for; those that can be continued have a header about their kernel."""
    comments = platform_named(artifact.backend).comments
    kept = {
        name: with_header(text, artifact, comments[name]) if name in comments and isinstance(text, str) else text
        for name, text in texts.items()
        if name in dump
    }
    return replace(artifact, dumps={**artifact.dumps, **kept})


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
    for op in ops_in(module):
        for key, attr in op.attributes.items():
            value = int_value(attr)
            if key.startswith(decisions.PREFIX) and value is not None:
                values = found.setdefault(key.split(".", 1)[1], [])
                if value not in values:
                    values.append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def _notes(module: ModuleOp) -> dict[str, list[str]]:
    """Return the notes that the schedule left on grids, or the lowering on functions."""
    found: dict[str, list[str]] = {}
    for op in ops_in(module):
        for key, text in _note_items(op):
            texts = found.setdefault(key, [])
            if text not in texts:
                texts.append(text)
    return found


def _note_items(op: Operation) -> list[tuple[str, str]]:
    items: list[tuple[str, str]] = []
    for key, attr in op.attributes.items():
        if key.startswith("tessera_notes.") and isinstance(attr, ArrayAttr):
            notes = cast("tuple[StringAttr, ...]", attr.data)  # pyright: ignore[reportUnknownMemberType]
            items += [(key.split(".", 1)[1], note.data) for note in notes]
    return items
