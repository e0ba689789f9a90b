"""Functions whose derivatives are their own: what is traced of them, and by what the derivatives are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.autodiff.rules import is_smooth
from tessera.errors import CallError, TypeMismatchError, caller_location, shown
from tessera.graph.functions import is_traced, trace_of
from tessera.graph.traced import Array, Trace
from tessera.graph.trees import UnlikeError, flatten, leaves_like, outline_text, unflatten
from tessera.ir.graph.callees import Callee
from tessera.ir.graph.types import dims_of
from tessera.ir.graph.views import OwnOp


class Tree:
    """A tree of arguments or results, with the arrays of the graph among its leaves.

    Args:
        trace: the tracing.
        tree: the tree.
    """

    def __init__(self, trace: Trace, tree: Any) -> None:
        self.tracing = trace
        self.leaves, self.outline = flatten(tree)
        self.places = [at for at, leaf in enumerate(self.leaves) if isinstance(leaf, Array)]

    @property
    def values(self) -> list[SSAValue]:
        """The arrays, in order."""
        return [self.leaves[at].ssa for at in self.places]

    def of(self, values: Sequence[SSAValue]) -> Any:
        """Return the tree with other arrays."""
        leaves = list(self.leaves)
        for at, value in zip(self.places, values, strict=True):
            leaves[at] = Array(self.tracing, value)
        return unflatten(self.outline, iter(leaves))

    def beside(self, values: Sequence[SSAValue | None]) -> Any:
        """Return a tree of tangents or cotangents: zeros where there is none, or no array."""
        with self.tracing.at_caller() as writer:
            found: list[Any] = [0.0] * len(self.leaves)
            for at, own, value in zip(self.places, self.values, values, strict=True):
                found[at] = Array(self.tracing, writer.zeros_like(own) if value is None else value)
        return unflatten(self.outline, iter(found))

    def read(self, tree: Any, what: str) -> list[SSAValue | None]:
        """Return tangents or cotangents of the arrays from a tree that a rule gave; None stands for zeros.

        Raises:
            TypeMismatchError: `bad-gradient`.
        """
        try:
            leaves = leaves_like(tree, self.outline, none_for_any=True)
        except UnlikeError as error:
            wanted = outline_text(error.outline)
            raise _bad(f"{what} gives {shown(error.tree)}", f"it gives a tree like {wanted}") from None
        return [None if leaves[at] is None else self._fitting(leaves[at], self.leaves[at], what) for at in self.places]

    def _fitting(self, leaf: Any, own: Array, what: str) -> SSAValue:
        with self.tracing.at_caller() as writer:
            found = self.tracing.array(leaf).ssa
            dims = dims_of(found), dims_of(own.ssa)
            if len(dims[0]) != len(dims[1]) or not all(map(writer.same, *dims)):
                raise _bad(f"{what} gives {Array(self.tracing, found)!r} for {own!r}", "it gives an array of its shape")
            return writer.cast(found, own.element)


def _bad(message: str, help: str) -> TypeMismatchError:
    return TypeMismatchError(message, code="bad-gradient", location=caller_location(), help=help)


def traced_where_differentiated(args: Any) -> Trace | None:
    """Return the tracing that arguments take part in, where a derivative is taken around it."""
    if not is_traced(args):
        return None
    trace = trace_of(args)
    return trace if trace.depth else None


def with_own(
    trace: Trace, name: str, compute: Callable[[], Any], given: Tree, rules: Callable[[Tree, int], tuple[Any, Any]]
) -> Any:
    """Return what is computed, with derivatives of its own.

    Args:
        trace: the tracing.
        name: for messages.
        compute: traces the results.
        given: by what the derivatives are.
        rules: takes the results and how many arrays of the surrounding function they read; gives the two rules of a
            `Callee`, of which operands are the results, the given arrays and those.
    """
    last = trace.writer.graph.body.block.last_op
    made = Tree(trace, compute())
    around = _read_around(trace, last, given.values)
    unique, _ = trace.name_of(name, object())
    pull, push = rules(made, len(around))
    trace.writer.callees[unique] = Callee(_never, pull, push)
    with trace.at_caller() as writer:
        return made.of(writer.own(unique, made.values, [*given.values, *around]))


def _never(_sizes: Any) -> Any:
    raise AssertionError("derivatives of its own are dropped before a graph runs")


def _read_around(trace: Trace, last: Operation | None, given: Sequence[SSAValue]) -> list[SSAValue]:
    """Return the smooth values from before an op that those after it read, other than given ones."""
    found: dict[SSAValue, None] = {}
    op = trace.writer.graph.body.block.first_op if last is None else last.next_op
    inside = set[Operation]()
    while op is not None:
        inside.add(op)
        found.update(dict.fromkeys(one for one in op.operands if one.owner not in inside and is_smooth(one)))
        op = op.next_op
    return [one for one in found if one not in given]


def no_closure(name: str, needed: Sequence[bool], around: int) -> None:
    """Check that a function with derivatives of its own reads no array that is differentiated by, but its arguments.

    Raises:
        CallError: `closed-over`.
    """
    if around and any(needed[-around:]):
        raise CallError(
            f"{name} reads an array of the function around it that is differentiated by",
            code="closed-over",
            location=caller_location(),
            help="pass it as an argument, so that the rule gives its gradient",
        )


def padded(op: OwnOp, found: Sequence[SSAValue | None]) -> list[SSAValue | None]:
    """Return what comes back to the given arrays as what comes back to all operands of an op."""
    before = len(op.outputs)
    return [*([None] * before), *found, *([None] * (len(op.sources) - before - len(found)))]
