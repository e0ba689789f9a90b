"""`ts.grad` and its kin: derivatives of functions of whole arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tessera.autodiff import argnums_of, check_argnums, check_function
from tessera.autodiff.sweeps import gradients, tangents_of
from tessera.errors import CallError, TypeMismatchError, caller_location
from tessera.graph.functions import is_traced, trace_of
from tessera.graph.jit import jit
from tessera.graph.traced import Array, Trace
from tessera.graph.trees import Outline, flatten, unflatten
from tessera.ir.graph.types import array_type, dims_of

Argnums = int | Sequence[int]


def _check_function(function: object, argnums: Any = 0) -> None:
    """Check what is to be differentiated.

    Raises:
        CallError: `not-a-function` or `bad-argument`.
    """
    check_function(function, "what a derivative is taken of")
    check_argnums(argnums, "argnums")
    if isinstance(argnums, tuple | list) and not argnums:
        raise CallError(
            "argnums names no argument",
            code="bad-argument",
            location=caller_location(),
            help="the number of an argument, or a tuple of such numbers",
        )


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that traces itself where it is called with arrays."""
    whole = jit(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if is_traced(args, kwargs) else whole(*args, **kwargs)

    return call


def _fresh(trace: Trace, tree: Any) -> tuple[list[Array], Outline, Any]:
    """Return the arrays of a tree as ones of their own, how they are nested, and the tree of them."""
    leaves, outline = flatten(tree)
    with trace.at_caller() as writer:
        made = [Array(trace, writer.alias(trace.array(leaf).ssa)) for leaf in leaves]
    return made, outline, unflatten(outline, iter(made))


def _number(value: Any) -> Array:
    """Return what a function gave as an array without dimensions.

    Raises:
        TypeMismatchError: `not-a-number`.
    """
    if not isinstance(value, Array) or value.ndim or not array_type(value.ssa).dtype.is_float:
        raise TypeMismatchError(
            f"a gradient of {value!r}",
            code="not-a-number",
            location=caller_location(),
            help="differentiate a function that gives one floating point number, such as a mean; or use ts.vjp",
        )
    return value


def value_and_grad(
    function: Callable[..., Any], argnums: Argnums | None = None, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives the value and the gradient of a function (reverse mode).

    Args:
        function: gives one number of floating point, as an array without dimensions; with `has_aux` a pair of it and
            anything else.
        argnums: number of the argument, or numbers of arguments, that it is differentiated by. They may be tuples,
            lists and dictionaries of arrays of floating point. By default what `ts.autodiff` says of the function,
            else the first.
        has_aux: whether the function gives a pair.

    Returns:
        A function of the same arguments, which gives `(value, gradient)`, or `((value, aux), gradient)`. The gradient
        is nested as the argument is; of several arguments it is a tuple.

    Raises:
        TypeMismatchError: `not-a-number`, when it is called.
        LanguageError: `no-adjoint`, when it is called, with the line that has no derivative.
    """
    argnums = argnums_of(function) if argnums is None else argnums
    _check_function(function, argnums)

    def compute(*args: Any, **kwargs: Any) -> Any:
        numbers = [argnums] if isinstance(argnums, int) else list(argnums)
        trace = trace_of(args, kwargs)
        given = list(args)
        made: list[tuple[list[Array], Outline]] = []
        for number in numbers:
            if not -len(args) <= number < len(args):
                raise CallError(
                    f"there is no argument {number} among {len(args)}",
                    code="argument-count",
                    location=caller_location(),
                    help="argnums counts arguments that are given by place, from 0",
                )
            leaves, outline, given[number] = _fresh(trace, args[number])
            made.append((leaves, outline))
        with trace.differentiated():
            found = function(*given, **kwargs)
        value = _number(found[0] if has_aux else found)
        with trace.at_caller() as writer:
            one = writer.full(1.0, array_type(value.ssa).dtype)
            wanted = [leaf.ssa for leaves, _ in made for leaf in leaves]
            grads = iter([Array(trace, each) for each in gradients(writer, [value.ssa], [one], wanted)])
        trees = [unflatten(outline, grads) for _, outline in made]
        return found, trees[0] if isinstance(argnums, int) else tuple(trees)

    functools.update_wrapper(compute, function)
    return _traced(compute)


def grad(function: Callable[..., Any], argnums: Argnums | None = None, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives the gradient of a function (reverse mode).

    Args:
        function: as for `value_and_grad`, like all that follow.
        argnums: what it is differentiated by.
        has_aux: whether it gives a pair.

    Returns:
        A function of the same arguments, which gives the gradient, or `(gradient, aux)`.

    Raises:
        TypeMismatchError: `not-a-number`, when it is called.
        LanguageError: `no-adjoint`, when it is called.
    """
    both = value_and_grad(function, argnums, has_aux)

    def compute(*args: Any, **kwargs: Any) -> Any:
        found, gradient = both(*args, **kwargs)
        return (gradient, found[1]) if has_aux else gradient

    functools.update_wrapper(compute, function)
    return _traced(compute)


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return what a function gives, and a function from weights of it to weights of the arguments (reverse mode).

    Args:
        function: a function of arrays.
        primals: its arguments; those of floating point are differentiated by.

    Returns:
        The results, and a function that takes a tree like them and gives a tuple of trees like the arguments: the
        transposed Jacobian times it.

    Raises:
        LanguageError: `no-adjoint`.
    """
    _check_function(function)

    def pull(arguments: Any, weights: Any) -> Any:
        trace = trace_of(arguments, weights)
        leaves, outline, fresh = _fresh(trace, arguments)
        with trace.differentiated():
            results, nested = flatten(function(*fresh))
        given, also = flatten(weights)
        if nested != also:
            raise CallError(
                "weights are not nested as the results are",
                code="wrong-tree",
                location=caller_location(),
                help="give an array for each array that the function gives",
            )
        with trace.at_caller() as writer:
            back = [trace.array(one).astype(trace.array(of).dtype).ssa for one, of in zip(given, results, strict=True)]
            _check_alike(trace, results, back)
            of = [trace.array(one).ssa for one in results]
            found = gradients(writer, of, back, [leaf.ssa for leaf in leaves])
        return unflatten(outline, iter([Array(trace, each) for each in found]))

    if is_traced(primals):
        return function(*primals), functools.partial(pull, primals)
    return jit(function)(*primals), functools.partial(jit(pull), primals)


def _check_alike(trace: Trace, values: Sequence[Any], others: Sequence[Any]) -> None:
    """Check that weights or directions have the shapes of what they belong to.

    Raises:
        TypeMismatchError: `shape-mismatch`.
    """
    for value, other in zip(values, others, strict=True):
        dims, given = dims_of(trace.array(value).ssa), dims_of(other)
        if len(dims) != len(given) or not all(map(trace.writer.same, dims, given)):
            raise TypeMismatchError(
                f"({', '.join(map(str, given))}) belongs to an array ({', '.join(map(str, dims))})",
                code="shape-mismatch",
                location=caller_location(),
                help="give an array of its shape",
            )


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return what a function gives, and its derivative along a direction (forward mode).

    Args:
        function: a function of arrays.
        primals: its arguments.
        tangents: a tree like them: the direction.

    Returns:
        The results, and a tree like them: the Jacobian times the direction.

    Raises:
        LanguageError: `no-adjoint`.
    """
    _check_function(function)
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CallError(
            "primals and tangents are no tuples",
            code="bad-argument",
            location=caller_location(),
            help="ts.jvp(f, (x,), (direction,))",
        )

    def push(arguments: Any, directions: Any) -> Any:
        trace = trace_of(arguments, directions)
        leaves, outline, fresh = _fresh(trace, arguments)
        given, also = flatten(directions)
        if outline != also:
            raise CallError(
                "tangents are not nested as primals are",
                code="wrong-tree",
                location=caller_location(),
                help="give a direction for each array",
            )
        along = [trace.array(one).ssa for one in given]
        _check_alike(trace, leaves, along)
        with trace.differentiated():
            results, nested = flatten(function(*fresh))
        with trace.at_caller() as writer:
            of = [trace.array(one).ssa for one in results]
            found = tangents_of(writer, of, [leaf.ssa for leaf in leaves], along)
        return unflatten(nested, iter(results)), unflatten(nested, iter([Array(trace, each) for each in found]))

    both = tuple(primals), tuple(tangents)
    return push(*both) if is_traced(both) else jit(push)(*both)


def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return what a function gives, and its derivative there, a linear function (forward mode).

    Args:
        function: a function of arrays.
        primals: its arguments.

    Returns:
        The results, and a function that takes a direction for each argument, a tree like it, and gives a tree like the
        results: the Jacobian times the directions. It is traced once for all directions; outside of a traced function
        it computes the function again.

    Raises:
        LanguageError: `no-adjoint`, when the derivative is called.
    """
    _check_function(function)

    def push(arguments: Any, directions: Any) -> Any:
        return jvp(function, arguments, directions)[1]

    if is_traced(primals):
        return function(*primals), lambda *directions: push(primals, directions)
    pushed = jit(push)
    return jit(function)(*primals), lambda *directions: pushed(primals, directions)


def stop_gradient(x: Any) -> Any:
    """Return an array itself, of which nothing depends for what is differentiated.

    Args:
        x: an array; outside of a traced function it is returned as it is.
    """
    if not isinstance(x, Array):
        return x
    with x.tracing.at_caller() as writer:
        return Array(x.tracing, writer.stop(x.ssa))
