"""`ts.checkpoint`: what a function computes is computed again for its gradient, not kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from xdsl.ir import SSAValue

from tessera.autodiff import check_function
from tessera.autodiff.sweeps import gradients, tangents_of
from tessera.graph.own import Tree, padded, traced_where_differentiated, with_own
from tessera.graph.traced import Trace
from tessera.ir.graph.callees import Callee, Values
from tessera.ir.graph.types import array_type
from tessera.ir.graph.views import OwnOp

P = ParamSpec("P")
R = TypeVar("R")


def checkpoint(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function of which a gradient keeps the arguments only, and computes the rest again; a decorator.

    Args:
        function: a function of arrays. Arrays that it reads of the function around it are kept as arguments are.

    Returns:
        The function: values and derivatives are the same, in less memory and more time.

    Raises:
        CallError: `not-a-function`.
    """
    check_function(function, "what ts.checkpoint is given")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        trace = traced_where_differentiated((args, kwargs))
        return function(*args, **kwargs) if trace is None else _followed(trace, function, (args, kwargs))

    return call


def _followed(trace: Trace, function: Callable[..., Any], arguments: Any) -> Any:
    given, when = Tree(trace, arguments), len(trace.changes)

    def again(values: Sequence[SSAValue]) -> list[SSAValue]:
        args, kwargs = given.of(values)
        with trace.differentiated(), trace.as_of(when):
            return Tree(trace, function(*args, **kwargs)).values

    def rules(_made: Tree, _around: int) -> tuple[Any, Any]:
        def pull(op: OwnOp, cotangents: Values, _needed: Sequence[bool]) -> Values:
            known = [(at, one) for at, one in enumerate(cotangents) if one is not None]
            count = len(given.places)
            with trace.at_caller():
                late = _late(trace, [*op.inputs[:count], *(one for _, one in known)])
            results = again(late[:count])
            by = [*late[:count], *op.inputs[count:]]
            with trace.at_caller() as writer:
                return padded(op, gradients(writer, [results[at] for at, _ in known], late[count:], by))

        def push(op: OwnOp, tangents: Values, _needed: Sequence[bool]) -> Values:
            count = len(given.places)
            with trace.at_caller() as writer:
                fresh = [writer.alias(one) for one in op.inputs[:count]]
            results = again(fresh)
            known = zip([*fresh, *op.inputs[count:]], tangents[len(op.outputs) :], strict=True)
            pairs = [(by, along) for by, along in known if along is not None]
            with trace.at_caller() as writer:
                return tangents_of(writer, results, [by for by, _ in pairs], [along for _, along in pairs])

        return pull, push

    name = getattr(function, "__name__", "the function")
    return with_own(trace, name, lambda: function(*arguments[0], **arguments[1]), given, rules)


_LATE = "checkpoint"


def _late(trace: Trace, values: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Return values as ones of which none is there before all are: nothing computed of them is what was before."""
    trace.writer.callees.setdefault(_LATE, Callee(_same, lambda _op, given, _needed: given, _forwards))
    return trace.writer.call(_LATE, values, [array_type(one) for one in values], pure=True)


def _same(_sizes: Any) -> Callable[..., Sequence[Any]]:
    return lambda *given: given


def _forwards(_op: Any, tangents: Values, _needed: Sequence[bool]) -> Values:
    return tangents
