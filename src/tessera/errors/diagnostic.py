"""The error classes a user can meet, and the caret printer.

Format (golden-tested in tests/errors):

    error[shape-mismatch]: mma: lhs tile<64x32xbf16>, rhs tile<16x64xbf16>: 32 != 16
      gemm.py:12:11, in gemm
            acc = ts.tile.mma(a, b)
                  ^^^^^^^^^^^^^^^^^
      help: transpose rhs or load a (32, 64) tile
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, ClassVar

from tessera.errors.location import Frame, Location, raised_from


class DiagnosticWarning(UserWarning):
    """Something Tessera mended by itself and the user should know, such as a corrupt cache entry."""


class TesseraError(Exception):
    """Base of every error Tessera raises on purpose.

    Args:
        code: stable kebab-case identifier, such as `shape-mismatch`.
        message: one line naming the operation and both offending values.
        location: where in the user's source, when known.
        help: one line that says what to do instead.
    """

    default_code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        location: Location | None = None,
        help: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.location = location
        self.help = help
        self.related: tuple[tuple[str, Location], ...] = ()
        """Other places that take part, each with what happens there."""

    def at(self, location: Location | None) -> TesseraError:
        """Attach `location` unless one is known already; returns self for `raise e.at(loc)`."""
        if self.location is None:
            self.location = location
        return self

    @property
    def where(self) -> Location | None:
        """The location, or the line of the user's program from which Tessera was called."""
        return self.location or raised_from(self.__traceback__)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """A traceback is not pickled: the location it tells is."""
        self.location = self.where
        return super().__reduce__()

    def __str__(self) -> str:
        return render(self)


class LanguageError(TesseraError):
    """The kernel's source uses something the language does not have."""

    default_code = "unsupported-syntax"


class TypeMismatchError(TesseraError):
    """Shapes, ranks or dtypes of a kernel's operation do not fit."""

    default_code = "type-mismatch"


class CallError(TesseraError):
    """A kernel was called with arguments that do not fit its signature."""

    default_code = "bad-argument"


class ResourceError(TesseraError):
    """A kernel needs more of a target's resource (shared memory, registers) than there is."""

    default_code = "resource-limit"


class TargetError(TesseraError):
    """A target, backend or optional dependency is unknown or missing."""

    default_code = "unknown-target"


class DeviceError(TesseraError):
    """A device or its driver refused, or a device-side assertion failed."""

    default_code = "device"


class VerifyError(TesseraError):
    """Textual IR that does not parse or verify."""

    default_code = "invalid-ir"


class CompilerFault(TesseraError):
    """A fault of the compiler itself: names the pass and the dump that shows it."""

    default_code = "compiler-fault"


def _caret_line(frame: Frame, source: str) -> str:
    start = max(frame.column - 1, 0)
    end = frame.end_column - 1 if frame.end_column > frame.column else start + 1
    end = max(min(end, len(source)), start + 1)
    return " " * start + "^" * (end - start)


def _frame_lines(frame: Frame) -> list[str]:
    where = f", in {frame.function}" if frame.function else ""
    lines = [f"  {frame.short()}{where}"]
    source = frame.source().expandtabs(1)
    if source.strip():
        lines += [f"    {source}", f"    {_caret_line(frame, source)}"]
    return lines


def render(error: TesseraError) -> str:
    """Return the full text of `error`: code, message, source line with carets, call chain, help."""
    lines = [f"error[{error.code}]: {error.message}"]
    location = error.where
    if location is not None:
        lines += _frame_lines(location.frame)
        for caller, same in groupby(location.callers):
            times, where = sum(1 for _ in same), f", in {caller.function}" if caller.function else ""
            lines.append(f"  called from {caller.short()}{where}" + (f", {times} times" if times > 1 else ""))
    for what, place in error.related:
        lines += [f"  note: {what}", *_frame_lines(place.frame)]
    if error.help:
        lines.append(f"  help: {error.help}")
    return "\n".join(lines)
