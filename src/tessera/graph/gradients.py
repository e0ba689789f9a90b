"""`ts.grad` and its kin: derivatives of functions of whole arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, cast

from xdsl.ir import SSAValue

from tessera.autodiff import argnums_of, check_argnums, check_function
from tessera.autodiff.sweeps import gradients, tangents_of
from tessera.errors import CallError, TypeMismatchError, caller_location, shown
from tessera.graph.floats import Number, is_float
from tessera.graph.functions import trace_of
from tessera.graph.jit import jit
from tessera.graph.traced import Array, Trace
from tessera.graph.trees import Outline, UnlikeError, flatten, leaves_like, outline_text, unflatten
from tessera.ir.graph.types import array_type, dims_of
from tessera.ops import arrays

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
        return function(*args, **kwargs) if _is_inside(args, kwargs) else whole(*args, **kwargs)

    return call


def _is_inside(*values: Any) -> bool:
    """Return whether arrays or floats of a traced function are among some values."""
    return any(isinstance(leaf, Array | Number) for leaf in flatten(list(values))[0])


class _Given:
    """What is differentiated by: arrays and floats of a tree, as arrays of their own. Other leaves stay as they are.

    Args:
        trace: the tracing.
        tree: the tree.
    """

    def __init__(self, trace: Trace, tree: Any) -> None:
        self.tracing = trace
        self.leaves, self.outline = flatten(tree)
        self.places = [at for at, leaf in enumerate(self.leaves) if _is_number(leaf)]
        with trace.at_caller() as writer:
            self.made = [Array(trace, writer.alias(trace.array(self.leaves[at]).ssa)) for at in self.places]
        self.values = [one.ssa for one in self.made]

    @property
    def tree(self) -> Any:
        """The tree of the arrays."""
        return self._with(self.leaves, self.made)

    def gradient(self, values: Sequence[SSAValue]) -> Any:
        """Return a tree of gradients: None for what is no array and no float."""
        return self._with([None] * len(self.leaves), [Array(self.tracing, one) for one in values])

    def _with(self, leaves: Sequence[Any], made: Sequence[Array]) -> Any:
        found = dict(enumerate(leaves)) | dict(zip(self.places, made, strict=True))
        return unflatten(self.outline, iter(found.values()))

    def directions(self, tree: Any) -> list[SSAValue]:
        """Return a direction for each array from a tree like that of the arrays.

        Raises:
            CallError: `wrong-tree`.
            TypeMismatchError: `shape-mismatch`.
        """
        leaves = _alike(tree, self.outline, "tangents are not nested as primals are", "give a direction for each array")
        found = [self.tracing.array(leaves[at]).ssa for at in self.places]
        _check_alike(self.tracing, self.made, found)
        return found

    def check_smooth(self, number: int) -> None:
        """Check that an argument is of floating point.

        Raises:
            TypeMismatchError: `not-a-number`.
        """
        others = [one.element for one in self.made if not one.element.is_float]
        if others or not self.made:
            has = f"elements of {others[0].name}" if others else "no array"
            raise TypeMismatchError(
                f"a gradient by argument {number}, which has {has}",
                code="not-a-number",
                location=caller_location(),
                help="gradients are by arrays of floating point: x.astype(np.float64); argnums names other arguments",
            )


def _is_number(leaf: Any) -> bool:
    """Return whether a leaf is an array, or a number of floating point."""
    return isinstance(leaf, Array | Number) or arrays.is_array(leaf) or is_float(leaf)


def _alike(tree: Any, outline: Outline, problem: str, help: str) -> list[Any]:
    """Return the leaves of a tree in the order of an outline.

    Raises:
        CallError: `wrong-tree`.
    """
    try:
        return leaves_like(tree, outline)
    except UnlikeError as error:
        raise CallError(
            f"{problem}: {shown(error.tree)} stands for {outline_text(error.outline)}",
            code="wrong-tree",
            location=caller_location(),
            help=help,
        ) from None


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


def _pair(found: Any) -> tuple[Any, Any]:
    """Return what a function gave with `has_aux`.

    Raises:
        CallError: `bad-argument`.
    """
    if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
        raise CallError(
            f"with has_aux=True the function gives {shown(cast(object, found))}",
            code="bad-argument",
            location=caller_location(),
            help="return a pair: the number that is differentiated, and anything else",
        )
    return cast("tuple[Any, Any]", found)


def value_and_grad(
    function: Callable[..., Any], argnums: Argnums | None = None, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that gives the value and the gradient of a function (reverse mode).

    Args:
        function: gives one number of floating point, as an array without dimensions; with `has_aux` a pair of it and
            anything else.
        argnums: number of the argument, or numbers of arguments, that it is differentiated by. They may be floats, and
            tuples, lists, dictionaries and objects of arrays of floating point and floats. By default what
            `ts.autodiff` says of the function, else the first.
        has_aux: whether the function gives a pair.

    Returns:
        A function of the same arguments, which gives `(value, gradient)`, or `((value, aux), gradient)`. The gradient
        is nested as the argument is, with None for what is no array and no float; of several arguments it is a tuple.

    Raises:
        CallError: `argument-count`; `bad-argument` where `has_aux` finds no pair; all when it is called.
        TypeMismatchError: `not-a-number` for results that are none, and for arguments of integers, when it is called.
        LanguageError: `no-adjoint`, when it is called, with the line that has no derivative.
    """
    argnums = argnums_of(function) if argnums is None else argnums
    _check_function(function, argnums)

    def compute(*args: Any, **kwargs: Any) -> Any:
        numbers = [argnums] if isinstance(argnums, int) else list(argnums)
        trace = trace_of(args, kwargs)
        given = list(args)
        by: list[_Given] = []
        for number in numbers:
            if not -len(args) <= number < len(args):
                raise CallError(
                    f"there is no argument {number} among {len(args)}",
                    code="argument-count",
                    location=caller_location(),
                    help="argnums counts arguments that are given by place, from 0",
                )
            by.append(_Given(trace, args[number]))
            by[-1].check_smooth(number)
            given[number] = by[-1].tree
        with trace.differentiated():
            found = function(*given, **kwargs)
        value = _number(_pair(found)[0] if has_aux else found)
        with trace.at_caller() as writer:
            one = writer.full(1.0, array_type(value.ssa).dtype)
            wanted = [value for one in by for value in one.values]
            grads = iter(gradients(writer, [value.ssa], [one], wanted))
        trees = [one.gradient([*islice(grads, len(one.values))]) for one in by]
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
        transposed Jacobian times it, zeros for arrays of integers, None for what is no array and no float.

    Raises:
        LanguageError: `no-adjoint`.
    """
    _check_function(function)

    def pull(arguments: Any, weights: Any) -> Any:
        trace = trace_of(arguments, weights)
        given = _Given(trace, arguments)
        with trace.differentiated():
            results, nested = flatten(function(*given.tree))
        problem = "weights are not nested as the results are"
        leaves = _alike(weights, nested, problem, "give an array for each array that the function gives")
        with trace.at_caller() as writer:
            back = [trace.array(one).astype(trace.array(of).dtype).ssa for one, of in zip(leaves, results, strict=True)]
            _check_alike(trace, results, back)
            of = [trace.array(one).ssa for one in results]
            found = gradients(writer, of, back, given.values)
        return given.gradient(found)

    if _is_inside(primals):
        later = _Later(pull, primals)
        return function(*primals), later
    return jit(function)(*primals), functools.partial(jit(pull), _held(primals))


def _held(tree: Any) -> Any:
    """Return a tree with what its arrays are now, whatever changes them."""
    leaves, outline = flatten(tree)
    held = (
        Array(one.tracing, one.ssa, is_weak=one.is_weak)
        if isinstance(one, Array)
        else arrays.copied(one)
        if arrays.is_array(one)
        else one
        for one in leaves
    )
    return unflatten(outline, held)


class _Later:
    """A derivative that a traced function takes later, of arrays as they are now.

    Args:
        compute: computes it of the arguments, and of weights or directions.
        primals: the arguments.
    """

    def __init__(self, compute: Callable[[Any, Any], Any], primals: Any) -> None:
        self._compute, self._primals, self._trace = compute, _held(primals), trace_of(primals)
        self._count = len(self._trace.changes)

    def __call__(self, given: Any) -> Any:
        given = _held(given)
        with self._trace.as_of(self._count):
            return _held(self._compute(self._primals, given))


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
        given = _Given(trace, arguments)
        along = given.directions(directions)
        with trace.differentiated():
            results, nested = flatten(function(*given.tree))
        with trace.at_caller() as writer:
            of = [trace.array(one).ssa for one in results]
            found = tangents_of(writer, of, given.values, along)
        return unflatten(nested, iter(results)), unflatten(nested, iter([Array(trace, each) for each in found]))

    both = tuple(primals), tuple(tangents)
    return push(*both) if _is_inside(both) else jit(push)(*both)


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

    if _is_inside(primals):
        later = _Later(push, primals)
        return function(*primals), lambda *directions: later(directions)
    pushed, held = jit(push), _held(primals)
    return jit(function)(*primals), lambda *directions: pushed(held, directions)


def stop_gradient(x: Any) -> Any:
    """Return an array itself, of which nothing depends for what is differentiated.

    Args:
        x: an array; outside of a traced function it is returned as it is.
    """
    if not isinstance(x, Array):
        return x
    with x.tracing.at_caller() as writer:
        return Array(x.tracing, writer.stop(x.ssa))
