"""Ops that change arrays in traced functions: what they write is a new value, and an argument's is written back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.ir import BlockArgument, SSAValue

from tessera.errors import CallError, LanguageError, caller_location
from tessera.graph.traced import Array, Trace
from tessera.ir.graph.callees import Callee
from tessera.ir.graph.types import array_type
from tessera.ir.graph.views import AliasOp, OwnOp, StopOp, memory_of
from tessera.ops import arrays
from tessera.runtime.arguments import check_writable

Run = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
_SAME = (AliasOp, OwnOp, StopOp)


def call_changing(
    trace: Trace, name: str, run: Run, changed: Sequence[Any], read: Sequence[Any], made: Sequence[Any]
) -> list[Array]:
    """Append a call that changes arrays; see `Traced.change`."""
    with trace.at_caller() as writer:
        targets = [_checked(trace, one, name) for one in changed]
        inputs = [one.ssa for one in (*targets, *map(trace.array, read))]
        count = len(targets)
        unique, _ = trace.name_of(name, object())
        writer.callees[unique] = Callee(_runner(run, count), changed=count)
        types = [array_type(one.ssa) for one in (*targets, *made)]
        found = writer.call(unique, inputs, types, pure=True)
    for target, value in zip(targets, found[:count], strict=True):
        target.put(value)
    return [Array(trace, one) for one in found[count:]]


def _runner(run: Run, count: int) -> Callable[[Mapping[str, int]], Callable[..., Sequence[Any]]]:
    return lambda _sizes: lambda *given: run(given[:count], given[count:])


def _checked(trace: Trace, array: Any, name: str) -> Array:
    """Return an array that is to be changed.

    Raises:
        CallError: `written-argument`.
        LanguageError: `not-in-graphs`.
    """
    if trace.depth:
        raise LanguageError(
            f"{name} changes arrays of what is differentiated",
            code="not-in-graphs",
            help="call it with the gradients that ts.grad gives",
        )
    if not isinstance(array, Array):
        raise _refused(f"{name} changes an array of the program around ts.jit", "pass it as an argument")
    if array.target is None and not isinstance(array.ssa, BlockArgument) and _argument_of(array.ssa) is not None:
        raise _refused(f"{name} changes a part, a transpose or another shape of an argument", "change the whole")
    return array


def _refused(message: str, help: str) -> CallError:
    return CallError(message, code="written-argument", location=caller_location(), help=help)


def _argument_of(value: SSAValue) -> BlockArgument | None:
    """Return the argument of a graph in whose memory a value lies."""
    found = memory_of(value, _SAME)
    return found if isinstance(found, BlockArgument) else None


def write_back(trace: Trace, results: Sequence[SSAValue]) -> list[SSAValue]:
    """Append what is written to arguments; return the results, copies where they lie in arguments that change.

    What is written is a copy, too, where it lies in an argument that is written before: `x[:], y[:] = y, x`.
    """
    writer = trace.writer
    arguments = {writer.arguments[number] for number in trace.targets}

    def apart(value: SSAValue, own: SSAValue | None = None) -> SSAValue:
        return writer.copy(value) if value is not own and _argument_of(value) in arguments else value

    kept = [apart(one) for one in results]
    changes = [(writer.arguments[number], value) for number, value in sorted(trace.targets.items())]
    written = [apart(value, argument) for argument, value in changes]
    for (argument, _), value in zip(changes, written, strict=True):
        writer.update(argument, value)
    return kept


Span = tuple[int, int]
"""Where the memory of an array begins and ends, in bytes from its first element."""


def spans_of(given: Sequence[Any], changed: Sequence[int]) -> list[Span]:
    """Return the memory of arrays such as those of a call.

    Args:
        given: all arrays of a call.
        changed: numbers of those that are written to.

    Raises:
        CallError: `read-only` or `overlapping`.
    """
    views = [arrays.view(array, f"array {number}") for number, array in enumerate(given)]
    for number in changed:
        check_writable(f"array {number}", views[number])
    return [view.span() for view in views]


def check_apart(starts: Sequence[int], spans: Sequence[Span], changed: Sequence[int]) -> None:
    """Check that arrays that are written to lie apart from all others.

    Args:
        starts: the address of each array's first element.
        spans: their memory.
        changed: numbers of those that are written to.

    Raises:
        CallError: `overlapping-arguments`.
    """
    places = zip(starts, spans, range(len(starts)), strict=True)
    found = sorted([(start + low, start + high, number) for start, (low, high), number in places if low < high])
    last, whose = 0, 0
    for start, end, number in found:
        if start < last and (number in changed or whose in changed):
            raise CallError(
                f"array {whose} and array {number} share memory, and one of them is changed",
                code="overlapping-arguments",
                location=caller_location(),
                help="pass one of them, or copies",
            )
        if end > last:
            last, whose = end, number
