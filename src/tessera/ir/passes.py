"""Passes: what one is, how patterns become one, how they are found, and the runner that times and dumps them.

A pass is a frozen dataclass with a kebab-case name in a file of its own; the packages of passes are scanned,
so that nothing lists passes but `jit/pipeline.py`, which orders them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import ClassVar, Literal

from xdsl.dialects.builtin import UNKNOWN_LOC, ModuleOp
from xdsl.ir import Operation
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriterListener,
    PatternRewriteWalker,
    RewritePattern,
)
from xdsl.utils.exceptions import VerifyException

from tessera.errors import CompilerFault, TesseraError
from tessera.ir.text import text_of


@dataclass(frozen=True)
class Pass(ABC):
    """A transformation of a module that keeps its meaning."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, module: ModuleOp) -> None:
        """Change `module` in place."""

    def options(self) -> str:
        """Return the pass with its options as the dumps' headers show it: `unroll{limit=8}`."""
        shown = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        return f"{self.name}{{{shown}}}" if shown else self.name


@dataclass(frozen=True)
class PatternPass(Pass):
    """A pass that applies rewrite patterns until none matches."""

    @abstractmethod
    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns, the most likely first."""

    def apply(self, module: ModuleOp) -> None:
        """Rewrite; a new op has the location of the op that it replaces."""
        located = _Located(GreedyRewritePatternApplier(list(self.patterns()), dce_enabled=False))
        listener = PatternRewriterListener(operation_insertion_handler=[located.inserted])
        PatternRewriteWalker(located, listener=listener).rewrite_module(module)


class _Located(RewritePattern):
    """Gives the ops that a pattern inserts the location of the op that it matched."""

    def __init__(self, pattern: RewritePattern) -> None:
        self.pattern = pattern
        self.matched: Operation | None = None

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        self.matched = op
        self.pattern.match_and_rewrite(op, rewriter)

    def inserted(self, op: Operation) -> None:
        if self.matched is None:
            return
        for new in op.walk():
            if new.location == UNKNOWN_LOC:
                new.location = self.matched.location


def passes_in(package: str) -> dict[str, type[Pass]]:
    """Return the passes that the files of `package` define, by `<stage>-<name>`; the stage is the folder."""
    found: dict[str, type[Pass]] = {}
    root = importlib.import_module(package)
    for info in pkgutil.iter_modules(root.__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Pass) and cls.__module__ == module.__name__:
                if not inspect.isabstract(cls):
                    found[f"{package.rsplit('.', 1)[-1]}-{cls.name}"] = cls
    return found


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did.

    Args:
        stage: the stage it ran in, such as `canonicalize`.
        name: the pass with its options.
        ms: how long it took.
        ops: number of ops after it.
        dump: the dump that shows its result, when dumps are on and it changed something.
    """

    stage: str
    name: str
    ms: float
    ops: int
    dump: Path | None = None


@dataclass(eq=False)
class PassRunner:
    """Runs passes and stages: times, verifies, and dumps them.

    Args:
        dump: folder for `NN-stage-pass.mlir`, written when a pass changed something; None for none.
        verify: after each `pass`, or once per `stage`. `TESSERA_VERIFY=pass` makes the former the default.
        records: what ran so far.
    """

    dump: Path | None = None
    verify: Literal["stage", "pass"] = field(
        default_factory=lambda: "pass" if os.environ.get("TESSERA_VERIFY") == "pass" else "stage"
    )
    records: list[PassRecord] = field(default_factory=list[PassRecord])
    _text: str = ""

    def run(self, module: ModuleOp, stage: str, passes: Sequence[Pass]) -> None:
        """Apply `passes` to `module` in order.

        Raises:
            CompilerFault: a pass failed or left invalid IR; names it and the dump of the IR it was given.
        """
        before = module.clone()
        for position, step in enumerate(passes):
            with _Blame(stage, step.name, lambda at=position: self._reproduce(before, stage, passes, at)):
                start = perf_counter()
                step.apply(module)
                elapsed = perf_counter() - start
                if self.verify == "pass" or position == len(passes) - 1:
                    module.verify()
            self._record(module, stage, step.options(), elapsed)

    def transform(
        self, module: ModuleOp, stage: str, name: str, step: Callable[[ModuleOp], ModuleOp]
    ) -> ModuleOp:
        """Return the module that a lowering makes of `module`, recorded, verified and dumped as a pass is.

        Raises:
            CompilerFault: the lowering failed or gave invalid IR.
        """
        with _Blame(stage, name, lambda: self._write(f"failed-{stage}-{name}.mlir", text_of(module))):
            start = perf_counter()
            result = step(module)
            elapsed = perf_counter() - start
            result.verify()
        self._record(result, stage, name, elapsed)
        return result

    def _record(self, module: ModuleOp, stage: str, name: str, seconds: float) -> None:
        ops, path = sum(1 for _ in module.walk()), None
        if self.dump is not None:
            text = text_of(module)
            if text != self._text:
                number = len(self.records)
                header = f"// {stage}: {name}, {seconds * 1e3:.2f} ms, {ops} ops\n"
                path = self._write(f"{number:02d}-{stage}-{name.split('{')[0]}.mlir", header + text)
                self._text = text
        self.records.append(PassRecord(stage, name, seconds * 1e3, ops, path))

    def _reproduce(self, before: ModuleOp, stage: str, passes: Sequence[Pass], failed: int) -> Path:
        """Write the IR that the failing pass was given."""
        for step in passes[:failed]:
            step.apply(before)
        return self._write(f"failed-{stage}-{passes[failed].name}.mlir", text_of(before))

    def _write(self, name: str, text: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="tessera-fault-")) if self.dump is None else self.dump
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(text, encoding="utf-8")
        return path


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
        what = (
            "left invalid IR" if isinstance(error, VerifyException) else f"failed with {type(error).__name__}"
        )
        first = str(error).strip().split("\n")[0]
        raise CompilerFault(
            f"pass {self.name} of stage {self.stage} {what}: {first}",
            help=f"this is a fault of the compiler; the IR it was given is in {self.reproduce()}",
        ) from error
