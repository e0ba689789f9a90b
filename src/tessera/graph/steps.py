"""Steps of the library's ops in traced functions: calls of the graph, with the steps of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.autodiff.rules import no_adjoint
from tessera.graph.calls import Sizes, Template, written
from tessera.graph.functions import take_along_axis
from tessera.graph.traced import Array, Trace
from tessera.graph.trees import flatten
from tessera.ir.graph.callees import Callee, Values
from tessera.ir.graph.structure import CallOp
from tessera.ir.graph.types import ArrayType, array_type
from tessera.ops import rows
from tessera.ops.steps import Step


def call_step(trace: Trace, step: Step, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of a step: its own declaration says their shapes and dtypes, of sizes that are symbols."""
    with trace.at_caller():
        made = step.results(*arguments)
        template = Template(trace, list(arguments))
        name, is_new = trace.name_of(step.name, (step.name, template.key))
        if is_new:
            trace.writer.callees[name] = Callee(
                _run(step, template), _pull(trace, step, template), _push(trace, step, template)
            )
        return tuple(written(trace, name, template, [_type_of(one) for one in made]))


def _type_of(made: Array) -> ArrayType:
    return array_type(made.ssa)


def _run(step: Step, template: Template) -> Callable[[Sizes], Callable[..., Sequence[Any]]]:
    def at(sizes: Sizes) -> Callable[..., Sequence[Any]]:
        fill = template.at(sizes)
        return lambda *given: step.fresh(*fill([*map(rows.in_rows, given)]))

    return at


def _pull(trace: Trace, step: Step, template: Template) -> Any:
    """Return what appends the step of a step's gradient."""
    gradient = step.gradient
    if gradient is None:
        return None if step.transposed is None else _transpose(trace, step, template)

    def pull(op: CallOp, cotangents: Values, needed: Sequence[bool]) -> Values:
        arguments = template.traced(op.inputs)
        results = tuple(Array(trace, one) for one in op.outputs)
        grads = [None if one is None else Array(trace, one) for one in cotangents]
        flags = template.flags(needed)
        kept = gradient.keep(tuple(arguments), results)
        of = gradient.of(kept)
        for at, is_needed in enumerate(flags):
            if any(flatten(is_needed)[0]) and of[at] is None:
                raise no_adjoint(op, f"{step.name} by its argument {_argument(step, at)!r}")
        found = gradient.step(*gradient.arguments(kept, grads, flags))
        places = template.flags([*range(1, len(needed) + 1)])
        by_place = {place: found[at].ssa for place, at in zip(places, of, strict=True) if at is not None}
        return [by_place.get(place) if one else None for place, one in enumerate(needed, 1)]

    return pull


def _transpose(trace: Trace, step: Step, template: Template) -> Any:
    """Return what appends the gradient of a linear step's first argument."""

    def pull(op: CallOp, cotangents: Values, needed: Sequence[bool]) -> Values:
        if any(needed[1:]):
            raise no_adjoint(op, f"{step.name} by other arguments than the first")
        (cotangent,) = cotangents
        assert cotangent is not None, "something came back"
        back, arguments = Array(trace, cotangent), template.traced(op.inputs)
        if callable(step.transposed):
            found = step.transposed(back, *arguments)
        else:
            found = take_along_axis(back, arguments[1], 1)
        return [found.ssa, *([None] * (len(needed) - 1))]

    return pull


def _push(trace: Trace, step: Step, template: Template) -> Any:
    """Return what appends the tangents of a step's results, where they follow from the step alone."""
    if step.tangents is None:
        return None

    def push(op: CallOp, tangents: Values, needed: Sequence[bool]) -> Values:
        given = tangents[0]
        if given is None or any(one is not None for one in tangents[1:]):
            raise no_adjoint(op, f"{step.name}, forwards, by other arguments than the first,")
        if step.tangents == "taken":
            own, places = Array(trace, given), Array(trace, op.outputs[1])
            return [take_along_axis(own, places, 1).ssa, None]
        found = step(Array(trace, given), *template.traced(op.inputs)[1:])
        return [one.ssa if is_needed else None for one, is_needed in zip(found, needed, strict=True)]

    return push


def _argument(step: Step, at: int) -> str:
    """Return the name of an argument, from a schema such as `(Tensor x, float eps) -> Tensor`."""
    return step.schema.partition(")")[0].split(",")[at].split()[-1]
