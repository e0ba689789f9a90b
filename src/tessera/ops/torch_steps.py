"""Steps of library ops as operators of PyTorch: schema, implementation, shapes for tracing, gradients.

A call on plain tensors that nothing but automatic differentiation follows does without the operator, which costs the
host several times what the call does: it is an `autograd.Function` of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any, cast

from tessera.errors import CallError
from tessera.ops.repeats import repeated
from tessera.ops.steps import STEPS, Arguments, Gradient, Step, as_tuple, is_followed
from tessera.ops.tapes import filled, slots
from tessera.ops.watching import has_modes

NAMESPACE = "tessera"

_SAVED = object()
"""Stands for a tensor among what is kept: PyTorch keeps it."""

_OPERATORS: dict[str, Any] = {}
_FUNCTIONS: dict[str, Any] = {}
_TRANSFORMED: dict[str, Any] = {}
_LIBRARIES: list[Any] = []
_REGISTERING = RLock()


def operator_of(step: Step) -> Any:
    """Return a step as an operator of PyTorch, `torch.ops.tessera.<name>`; it is registered the first time."""
    _register_first(step.name)
    return _OPERATORS[step.name]


def _register_first(name: str) -> bool:
    """Register the step of a name, unless that is done; `torch.compile` calls this and does not look inside."""
    if name not in _OPERATORS:
        with _REGISTERING:  # another thread may have done it, and a step registers that of its gradient
            if name not in _OPERATORS:
                _OPERATORS[name] = _registered(next(step for step in STEPS if step.name == name))
    return True


cast(
    "Any", _register_first
)._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result, which imports it


def followed(step: Step, arguments: Arguments) -> Arguments:
    """Return the results of a step that PyTorch follows."""
    torch: Any = sys.modules["torch"]
    if torch.compiler.is_compiling() or not _is_plain(torch, arguments):
        return as_tuple(operator_of(step)(*arguments))
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return _transformed(step)(*arguments)
    return as_tuple(_function_of(step).apply(*arguments))


def _is_plain(torch: Any, arguments: Arguments) -> bool:
    """Return whether no mode of PyTorch takes part in a call, and no tensor of another class."""
    if has_modes(torch):
        return False
    listed = [one for some in arguments if isinstance(some, list | tuple) for one in cast("Arguments", some)]
    if any(isinstance(one, torch.Tensor) for one in listed):  # a function sees tensors that are arguments only
        return False
    plain = torch.Tensor, torch.nn.Parameter
    return all(type(one) in plain for one in arguments if isinstance(one, torch.Tensor))


def _function_of(step: Step) -> Any:
    """Return a step as a function that PyTorch differentiates."""
    found = _FUNCTIONS.get(step.name)
    if found is None:
        base: Any = sys.modules["torch"].autograd.Function
        forward, backward = _both(step)
        body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        found = _FUNCTIONS[step.name] = type(f"{NAMESPACE}_{step.name}", (base,), body)
    return found


def _transformed_of(step: Step) -> Any:
    """Return a step as a function for `torch.func`: batches of `vmap` are computed one after the other."""
    found: Any = _TRANSFORMED.get(step.name)
    if found is None:
        torch: Any = sys.modules["torch"]
        setup, backward = _refused_setup, _refused(step.name)
        if step.gradient is not None:
            setup, backward = _gradient_of(step.gradient, _names(step.schema), _transformed(step.gradient.step))

        def forward(*inputs: Any) -> Any:
            return _returned(step.fresh(*inputs))

        def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
            parts = [
                as_tuple(
                    found.apply(
                        *(
                            one.select(of, at) if isinstance(of, int) else one
                            for one, of in zip(inputs, dims, strict=True)
                        )
                    )
                )
                for at in range(info.batch_size)
            ]
            whole = tuple(torch.stack(one) for one in zip(*parts, strict=True))
            return _returned(whole), _returned((0,) * len(whole))

        body: dict[str, Any] = {"forward": forward, "setup_context": setup, "backward": backward, "vmap": vmap}
        statics = {name: staticmethod(function) for name, function in body.items()}
        found = _TRANSFORMED[step.name] = type(f"{NAMESPACE}_{step.name}", (torch.autograd.Function,), statics)
    return found


def _transformed(step: Step) -> Callable[..., Arguments]:
    """Return what calls a step in `torch.func`."""
    return lambda *given: as_tuple(_transformed_of(step).apply(*given))


def _refused_setup(_ctx: Any, _inputs: Any, _output: Any) -> None:
    """Keep nothing."""


def _both(step: Step) -> tuple[Any, Any]:
    """Return what computes a step, for its gradient, and what computes that."""
    run = _again(step)
    gradient = step.gradient
    if gradient is None:

        def alone(_ctx: Any, *inputs: Any) -> Any:
            return _returned(run(*inputs))

        return alone, _refused(step.name)
    again = _again(gradient.step)
    setup, backward = _gradient_of(
        gradient, _names(step.schema), lambda *given: (gradient.step if is_followed(given) else again)(*given)
    )

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _returned(run(*inputs))
        setup(ctx, inputs, output)
        return output

    return forward, backward


def _again(step: Step) -> Callable[..., Arguments]:
    """Return a step that PyTorch does not follow, whose calls are repeated; see `ops.repeats`."""

    def fresh(_name: str, *arguments: Any) -> Arguments:
        return step.fresh(*arguments)

    return partial(repeated(fresh), step.name)


def _library(torch: Any) -> Any:
    """Return the library that the operators are defined in; it lives as long as the process."""
    if not _LIBRARIES:
        _LIBRARIES.append(torch.library.Library(NAMESPACE, "DEF"))
    return _LIBRARIES[0]


def _registered(step: Step) -> Any:
    torch: Any = sys.modules["torch"]
    library, name = _library(torch), f"{NAMESPACE}::{step.name}"
    library.define(step.name + step.schema)

    def results(*arguments: Any) -> Any:
        return _returned(step.results(*arguments))

    def run(*arguments: Any) -> Any:
        return _returned(step.fresh(*arguments))

    for device in ("CPU", "CUDA"):
        library.impl(step.name, run, device)
    torch.library.register_fake(name, results, lib=library)
    if step.gradient is not None:
        _register_gradient(torch, library, name, step)
    else:
        torch.library.register_autograd(name, _refused(step.name), lib=library)
    return getattr(torch.ops.tessera, step.name)


def _refused(name: str) -> Any:
    """Return a gradient that says that there is none: PyTorch would only warn, and take it for 0."""

    def backward(_ctx: Any, *_grads: Any) -> Any:
        raise CallError(
            f"{name} has no gradient",
            code="no-gradient",
            help="gradients of gradients are not there: leave create_graph away",
        )

    return backward


def _none(need: Any) -> Any:
    """Return what stands for no gradient of an argument: a list for a list of tensors."""
    return [None] * len(cast("list[Any]", need)) if isinstance(need, list | tuple) else None


def _returned(results: Arguments) -> Any:
    (only,) = results if len(results) == 1 else (results,)
    return only


def _register_gradient(torch: Any, library: Any, name: str, step: Step) -> None:
    """Let PyTorch differentiate a step by that of its gradient."""
    gradient = step.gradient
    assert gradient is not None
    operator = operator_of(gradient.step)
    setup_context, backward = _gradient_of(gradient, _names(step.schema), lambda *given: as_tuple(operator(*given)))
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=library)


def _names(schema: str) -> list[str]:
    """Return the names of the arguments of a schema."""
    return [one.split()[-1] for one in schema[1 : schema.index(") ->")].split(",")]


def _gradient_of(gradient: Gradient, names: list[str], run: Callable[..., Arguments]) -> tuple[Any, Any]:
    """Return what keeps what a gradient needs, and what computes it.

    Args:
        gradient: the gradient.
        names: those of the arguments of the step that it is of.
        run: its step.
    """
    torch: Any = sys.modules["torch"]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kept = gradient.keep(inputs, as_tuple(output))
        for name, at, need in zip(names, gradient.of(kept), ctx.needs_input_grad, strict=False):  # PyTorch adds one
            if at is None and need is True:  # of one tensor; the list's answer is a list
                raise CallError(
                    f"{name} has no gradient",
                    code="no-gradient",
                    help="detach it, or call the op under torch.no_grad()",
                )
        ctx.set_materialize_grads(False)
        noted = slots(kept)
        ctx.is_noted = noted is not None
        if noted is not None:
            ctx.kept, ctx.takes = noted, [isinstance(one, torch.Tensor) for one in inputs]
            return
        ctx.save_for_backward(*(one for one in kept if isinstance(one, torch.Tensor)))
        ctx.kept = [_SAVED if isinstance(one, torch.Tensor) else one for one in kept]

    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.is_noted:
            kept = filled(ctx.kept)
        else:
            saved = iter(ctx.saved_tensors)
            kept = tuple(next(saved) if one is _SAVED else one for one in ctx.kept)
        of, needed = gradient.of(kept), tuple(ctx.needs_input_grad)
        if all(grad is None for grad in grads):
            return tuple(map(_none, needed))
        found = gradient.view(kept, grads) if gradient.view is not None else None
        if found is None:
            found = run(*gradient.arguments(kept, grads, needed))
        return tuple(found[at] if at is not None and need else _none(need) for at, need in zip(of, needed, strict=True))

    return setup_context, backward
