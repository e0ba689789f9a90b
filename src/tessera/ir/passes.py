"""Passes: what one is, how patterns become one, how they are found, and the runner that times and dumps them.

A pass is a frozen dataclass with a kebab-case name in a file of its own; the packages of passes are scanned,
so that nothing lists passes but `driver/pipeline.py`, which orders them.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import ClassVar, Literal, Self

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.pattern_rewriter import RewritePattern
from xdsl.utils.exceptions import VerifyException

from tessera.data import dataclass
from tessera.errors import CallError, CompilerFault, TesseraError
from tessera.ir.cloning import clone
from tessera.ir.record import passed
from tessera.ir.rewriting import rewrite
from tessera.ir.text import text_of
from tessera.ir.verifying import verify
from tessera.ir.walking import ops_in, ops_inside


@dataclass(frozen=True)
class Pass(ABC):
    """A transformation of a module that keeps its meaning."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, module: ModuleOp) -> None:
        """Change `module` in place."""

    def __str__(self) -> str:
        """Return the pass with its options, as dumps show it and `pass_of` reads it: `unroll{limit=8}`."""
        shown = ",".join(f"{name}={value}" for name, value in self.options().items())
        return f"{self.name}{{{shown}}}" if shown else self.name

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the options that there are."""
        return tuple(option.name for option in fields(cls))

    def options(self) -> Mapping[str, object]:
        """Return the options by name."""
        return {option.name: getattr(self, option.name) for option in fields(self)}

    @classmethod
    def with_options(cls, given: Mapping[str, str]) -> Self:
        """Return the pass with options as texts have them; those of passes with no rule of their own are integers.

        Raises:
            CallError: `unknown-option` or `bad-option`.
        """
        cls.check_names(given)
        for name, text in given.items():
            if not text.isdecimal():
                message = f"option {name} of {cls.name} is an integer, got {text!r}"
                raise CallError(message, code="bad-option", help=f"such as {name}=4")
        return cls(**{name: int(text) for name, text in given.items()})

    @classmethod
    def check_names(cls, given: Mapping[str, str]) -> None:
        """Check that all options are ones that there are.

        Raises:
            CallError: `unknown-option`, with those there are.
        """
        for name in given:
            if name not in cls.option_names():
                there = ", ".join(cls.option_names())
                near = difflib.get_close_matches(name, cls.option_names(), 1, 0.7)
                meant = f"did you mean {near[0]}? " if near else ""
                help_line = f"{meant}one of {there}" if there else "it has none"
                raise CallError(f"{cls.name} has no option {name!r}", code="unknown-option", help=help_line)


@dataclass(frozen=True)
class PatternPass(Pass):
    """A pass that applies rewrite patterns until none matches."""

    @abstractmethod
    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns, the most likely first."""

    def apply(self, module: ModuleOp) -> None:
        """Rewrite; a new op has the location of the op that it replaces."""
        rewrite(module, self.patterns())


def passes_in(package: str) -> dict[str, type[Pass]]:
    """Return the passes that the files of a stage's package and of its folders define, by `<stage>-<name>`."""
    found: dict[str, type[Pass]] = {}
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        module = importlib.import_module(info.name)
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Pass) and cls.__module__ == module.__name__:
                if not inspect.isabstract(cls):
                    found[f"{package.rsplit('.', 1)[-1]}-{cls.name}"] = cls
    return found


_TEXT = re.compile(r"\s*([\w-]+)\s*(?:\{(.*)\})?\s*", re.DOTALL)


def pass_of(text: str, known: Mapping[str, type[Pass]]) -> tuple[str, Pass]:
    """Return the stage and the pass that a text such as `warp-specialize{target=sm_90a,stages=3}` tells.

    Args:
        text: the pass's name, with or without its stage, and options in braces.
        known: the passes there are, by `<stage>-<name>`.

    Raises:
        CallError: `unknown-pass`, with the nearest names; `unknown-option`, with those there are; `bad-option`.
        TesseraError: an option has a bad value, as the pass says.
    """
    match = _TEXT.fullmatch(text)
    name, inside = match.groups() if match is not None else (text, None)
    for full, cls in known.items():
        if name in (full, cls.name):
            return full.removesuffix(f"-{cls.name}"), cls.with_options(_options(cls, inside or ""))
    near = difflib.get_close_matches(name, known, cutoff=0.4) or sorted(known)
    raise CallError(f"no pass is called {name!r}", code="unknown-pass", help=f"one of {', '.join(near)}")


def _options(cls: type[Pass], inside: str) -> dict[str, str]:
    """Return the options between the braces of a pass's text."""
    given: dict[str, str] = {}
    for item in inside.split(",") if inside.strip() else []:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value) or name in given:
            what = "given twice" if name in given else "no name=value"
            there = ", ".join(cls.option_names())
            help_line = f"name=value, with commas between; the names are {there}" if there else "it has none"
            raise CallError(f"option {item.strip()!r} of {cls.name} is {what}", code="bad-option", help=help_line)
        given[name] = value
    return given


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did.

    Args:
        stage: the stage it ran in, such as `canonicalize`.
        name: the pass with its options.
        ms: how long it took.
        ops: number of ops after it, when dumps are on.
        dump: the dump that shows its result, when dumps are on and it changed something.
    """

    stage: str
    name: str
    ms: float
    ops: int | None
    dump: Path | None = None


@dataclass(eq=False)
class PassRunner:
    """Runs passes and stages: times, verifies, and dumps them.

    Args:
        dump: folder for `NN-stage-pass.mlir`, written when a pass changed something; None for none.
        verify: after the first `pass` and each one that changed something, or once per `stage`. The former is the
            default with `TESSERA_VERIFY=pass`.
        records: what ran so far.
    """

    dump: Path | None = None
    verify: Literal["stage", "pass"] = field(
        default_factory=lambda: "pass" if os.environ.get("TESSERA_VERIFY") == "pass" else "stage"
    )
    records: list[PassRecord] = field(default_factory=list[PassRecord])
    _content: str = ""

    def run(self, module: ModuleOp, stage: str, passes: Sequence[Pass], before: ModuleOp | None = None) -> None:
        """Apply `passes` to `module` in order.

        Args:
            module: changed in place.
            stage: the stage they belong to.
            passes: the passes.
            before: the same module, if the caller has a copy: what a fault is reproduced from.

        Raises:
            CompilerFault: a pass failed or left invalid IR; names it and the dump of the IR it was given.
        """
        before = before or clone(module)
        known: list[object] = []
        for position, step in enumerate(passes):
            with _Blame(stage, step.name, lambda at=position: self._reproduce(before, stage, passes, at)):
                start = perf_counter()
                step.apply(module)
                elapsed = perf_counter() - start
                passed(module, stage, step.name)
                if self.verify == "pass" and known != (known := _contents(module)):
                    verify(module)
                elif self.verify == "stage" and position == len(passes) - 1:
                    verify(module)
            self._record(module, stage, str(step), elapsed)

    def transform(self, module: ModuleOp, stage: str, name: str, step: Callable[[ModuleOp], ModuleOp]) -> ModuleOp:
        """Return the module that a lowering makes of `module`, recorded, verified and dumped as a pass is.

        Raises:
            CompilerFault: the lowering failed or gave invalid IR.
        """
        with _Blame(stage, name, lambda: self._write(f"failed-{stage}-{name}.mlir", text_of(module))):
            start = perf_counter()
            result = step(module)
            elapsed = perf_counter() - start
            verify(result)
        self._record(result, stage, name, elapsed)
        return result

    def _record(self, module: ModuleOp, stage: str, name: str, seconds: float) -> None:
        ops, path = None, None
        if self.dump is not None:
            ops, text = sum(1 for _ in ops_in(module)), text_of(module)
            content = text.partition("\n")[2]  # the first line says which pass was the last
            if content != self._content:
                number = len(self.records)
                header = f"// {stage}: {name}, {seconds * 1e3:.2f} ms, {ops} ops\n"
                path = self._write(f"{number:02d}-{stage}-{name.split('{')[0]}.mlir", header + text)
                self._content = content
        self.records.append(PassRecord(stage, name, seconds * 1e3, ops, path))

    def _reproduce(self, before: ModuleOp, stage: str, passes: Sequence[Pass], failed: int) -> Path:
        """Write the IR that the failing pass was given."""
        for step in passes[:failed]:
            step.apply(before)
        return self._write(f"failed-{stage}-{passes[failed].name}.mlir", text_of(before))

    def _write(self, name: str, text: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="tessera-fault-")) if self.dump is None else self.dump
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TesseraError(
                f"the IR cannot be written to {folder}: {error.strerror}",
                code="cannot-write",
                help="set TESSERA_DUMP_DIR to a folder that can be written, or unset it",
            ) from error
        return path


def _contents(module: ModuleOp) -> list[object]:
    """Return all that the verifier reads of a module's ops: equal lists are of modules that are both valid or neither.

    It holds on to the ops, so that one that is erased is no other's twin.
    """
    return [_content(op) for op in ops_inside(module.body)]


def _content(op: Operation) -> tuple[object, ...]:
    blocks = [block.arg_types for region in op.regions for block in region.blocks] if op.regions else None
    operands = op._operands  # pyright: ignore[reportPrivateUsage]
    types = [value.type for value in op.results]
    return op, op.parent, operands, op.results, types, op.properties.copy(), op.attributes.copy(), blocks


class _Blame:
    """Turns an exception that leaves a pass into a `CompilerFault` that names the pass and a reproducer."""

    def __init__(self, stage: str, name: str, reproduce: Callable[[], Path]) -> None:
        self.stage, self.name, self.reproduce = stage, name, reproduce

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, TesseraError):
            return
        what = "left invalid IR" if isinstance(error, VerifyException) else f"failed with {type(error).__name__}"
        first = str(error).strip().split("\n")[0]
        raise CompilerFault(
            f"pass {self.name} of stage {self.stage} {what}: {first}",
            help=f"this is a fault of the compiler; the IR it was given is in {self.reproduce()}",
        ) from error
