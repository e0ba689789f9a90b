"""Kernels from texts: compilation continues from a dump of any level, edited or not.

A dump says what kernel it is of: TIR in its module's attributes (`ir/record.py`), code in comment lines at its start
(`target/header.py`). The level is recognised from the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from xdsl.dialects.builtin import ModuleOp

from tessera.driver.pipeline import Generate, compile_threads, compile_tiles, with_texts
from tessera.driver.records import kernel_of, thread_record, tile_record
from tessera.errors import CallError, Frame, Location, VerifyError
from tessera.ir.record import record_of, record_on
from tessera.ir.target.structure import FuncOp
from tessera.ir.text import parse_module, text_of
from tessera.platforms.platform import Platform, check_dumps, platform_named
from tessera.target.artifact import Artifact, check_together
from tessera.target.header import split_header
from tessera.target.records import TargetRecord
from tessera.target.registry import families, target_named
from tessera.target.schema import ArtifactError

_LLVM = ("target ", "source_filename", "define", "declare", "@", "attributes")
_DEFINED = {"ll": re.compile(r"^define\b[^@\n]*@(\S+?)\(", re.M), "ptx": re.compile(r"\.entry\s+([\w$.]+)")}


def level_of(text: str) -> str:
    """Return what a text is: `mlir` (TIR-H or TIR-T), `ll`, `ptx` or `asm`."""
    comments = ("//", ";", "#")
    lines = (line.strip() for line in text.split("\n"))
    first = next((line for line in lines if line and not line.startswith(comments)), "")
    if first.startswith(".version"):
        return "ptx"
    if first.startswith(_LLVM):
        return "ll"
    return "asm" if first.startswith(".") else "mlir"


def read_dump(source: str | Path) -> tuple[str, str]:
    """Return a dump's text and its name in messages.

    Args:
        source: a path, or the text itself, which has several lines.

    Raises:
        CallError: `no-such-file`.
    """
    if isinstance(source, str) and "\n" in source:
        return source, "<input>"
    try:
        return Path(source).read_text(encoding="utf-8"), str(source)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CallError(
            f"{source!s:.200} cannot be read: {why}",
            code="no-such-file",
            help="give a dump of a kernel, or its text",
        ) from error


def compile_text(text: str, file: str, target: TargetRecord | None, dump: Sequence[str]) -> Artifact:
    """Compile a dump from its level on.

    Args:
        text: the dump.
        file: its name in messages.
        target: what to compile for; by default what the dump says. After scheduling it cannot be another one.
        dump: stages to keep, of this level and those below.

    Raises:
        VerifyError: the text is wrong; has the line.
        CallError: `no-record` when it does not say what kernel it is of, `no-target`, `wrong-target`, or
            `no-such-level` for stages before it and for texts that cannot be continued.
        TesseraError: what the compiler says.
    """
    level = level_of(text)
    if level == "mlir":
        module = parse_module(text, file)
        return _compile_module(module, file, target, dump, lambda platform: platform.generate)
    return _compile_code(text, file, level, target, dump)


def text_at(module: ModuleOp, file: str, target: TargetRecord | None, level: str) -> str:
    """Return the text of a level that TIR-H or TIR-T is compiled to.

    Args:
        module: the module, which is left as it is.
        file: its name in messages.
        target: as for `compile_text`.
        level: `tirh` (scheduled), `tirt`, `ll`, `ptx` or `asm`, as the target has them.

    Raises:
        TesseraError: as `compile_text`, with `no-such-level` for a level that the target lacks.
    """
    if any(isinstance(op, FuncOp) for op in module.ops) and not record_of(module):
        return _text_of_functions(module, file, target, level)
    artifact = _compile_module(module.clone(), file, target, [level], lambda platform: platform.write)
    return str(artifact.dumps[level])


def _text_of_functions(module: ModuleOp, file: str, target: TargetRecord | None, level: str) -> str:
    """Return a text for TIR-T without a record, such as TIR-T written by hand; the text has none either."""
    target = _target("", target, file, "")
    platform = _platform(target, [level], "tirt")
    return text_of(module) if level == "tirt" else str(platform.write(module, target, [level]).dumps[level])


def _compile_module(
    module: ModuleOp, file: str, target: TargetRecord | None, dump: Sequence[str], maker: Callable[[Platform], Generate]
) -> Artifact:
    if any(isinstance(op, FuncOp) for op in module.ops):
        record = thread_record(module)
        target = _target(record.target, target, file, "tirt")
        platform = _platform(target, dump, "tirt")
        return _agreeing(compile_threads(module, target, dump, maker(platform)), file)
    kernel_of(module)
    record = tile_record(module)
    target = _target(record.target, target, file, "scheduled TIR-H" if record.after.startswith("schedule: ") else "")
    platform = _platform(target, dump, "tirh")
    record_on(module, target=target.name, after=record.after, knobs=record.knobs, facts=record.facts)
    return _agreeing(compile_tiles(module, target, dump, maker(platform)), file)


def _compile_code(text: str, file: str, level: str, target: TargetRecord | None, dump: Sequence[str]) -> Artifact:
    known, code, lines = split_header(text, _comment(level), file)
    target = _target(known.target, target, file, level)
    platform = _platform(target, dump, level)
    defined = set(_DEFINED[level].findall(code)) if level in _DEFINED else {one.entry for one in known.launches}
    for launch in known.launches:
        if launch.entry not in defined:
            raise VerifyError(
                f"tessera.launches names the entry {launch.entry}, which the code does not define",
                location=Location(Frame(file, 1)),
            )
    with _Placed(file, lines):
        made = platform.resume(level, code, target, dump)
    kernels = {**known.reflection.get("kernels", {})}
    for name, facts in made.reflection.get("kernels", {}).items():
        kernels[name] = {**kernels.get(name, {}), **facts}
    reflection = {**known.reflection, **made.reflection, "kernels": kernels}
    artifact = replace(known, code=made.code, code_kind=made.code_kind, reflection=reflection)
    return with_texts(artifact, made.dumps, dump)


def _comment(level: str) -> str:
    """Return what begins a comment in code of a level; it is the same for all platforms that continue it."""
    found = (one.comments[level] for one in families() if isinstance(one, Platform) and level in one.comments)
    comment = next(found, None)
    if comment is None:
        raise CallError(
            f"nothing is compiled further from {level}",
            code="no-such-level",
            help="continue the dump before it, such as ll",
        )
    return comment


def _target(recorded: str, given: TargetRecord | None, file: str, fixed: str) -> TargetRecord:
    """Return what to compile for.

    Args:
        recorded: the target that the dump says, if any.
        given: what the caller says.
        file: the dump's name in messages.
        fixed: what the dump is, where that ties it to one target, else empty.
    """
    if given is None and not recorded:
        raise CallError(f"{file} does not say its target", code="no-target", help="name one: --target sm_90a")
    if given is not None and recorded and fixed and given.name != recorded:
        raise CallError(
            f"{file} is {fixed} for {recorded}, not for {given.name}",
            code="wrong-target",
            help="continue TIR-H from before scheduling, or compile the kernel itself",
        )
    return target_named(recorded) if given is None else given


def _platform(target: TargetRecord, dump: Sequence[str], level: str) -> Platform:
    """Return the platform of a target, which has all levels asked for, at or below `level`."""
    check_dumps(dump, target, level)
    return platform_named(target.backend)


def _agreeing(artifact: Artifact, file: str) -> Artifact:
    """Check that an edited text is consistent: parameters and grids refer to arguments that exist."""
    try:
        check_together(artifact)
    except ArtifactError as error:
        raise VerifyError(error.what, location=Location(Frame(file, 1))) from error
    return artifact


class _Placed:
    """Gives an error of a text of code its file, and its line as the file counts it."""

    def __init__(self, file: str, lines: int) -> None:
        self.file, self.lines = file, lines

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, VerifyError) and error.location is not None and not error.location.frame.file:
            frame = error.location.frame
            error.location = Location(replace(frame, file=self.file, line=frame.line + self.lines))
