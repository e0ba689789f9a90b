"""`ts.custom_vjp` and `ts.custom_jvp`: derivatives that a program states, in JAX's spelling."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, cast

from tessera.autodiff import check_argnums, check_function
from tessera.autodiff.sweeps import gradients
from tessera.errors import CallError, caller_location, shown
from tessera.graph.own import Tree, no_closure, padded, traced_where_differentiated, with_own
from tessera.graph.traced import Trace
from tessera.ir.graph.callees import Values
from tessera.ir.graph.views import OwnOp

P = ParamSpec("P")
R = TypeVar("R")


class _Custom(Generic[P, R]):
    """A function with derivatives of its own.

    Args:
        function: the function.
        nondiff_argnums: numbers of arguments that are not differentiated by.
    """

    __wrapped__: Callable[..., Any]
    _called: ClassVar[str]

    def __init__(self, function: Callable[P, R], nondiff_argnums: int | Sequence[int] = ()) -> None:
        check_function(function, f"what ts.{self._called} is given")
        check_argnums(nondiff_argnums, "nondiff_argnums")
        functools.update_wrapper(cast(Any, self), function)
        self._function = function
        self._apart = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", "the function")

    def _by_place(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments by place, defaults among them."""
        if not kwargs:
            return tuple(args)
        bound = inspect.signature(self._function).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise CallError(
                f"{self._name} takes {', '.join(bound.kwargs)} by name only",
                code="argument-count",
                location=caller_location(),
                help="rules take arguments by place",
            )
        return bound.args

    def _split(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return what is not differentiated by, and what is."""
        apart = [at % len(args) if -len(args) <= at < len(args) else at for at in self._apart]
        if any(at >= len(args) or at < 0 for at in apart):
            raise CallError(
                f"nondiff_argnums of {self._name} is {self._apart}, of {len(args)} arguments",
                code="argument-count",
                location=caller_location(),
                help="number the arguments from 0, or from the end by negative numbers",
            )
        return tuple(args[at] for at in apart), tuple(one for at, one in enumerate(args) if at not in apart)

    def _check_stated(self, rule: Any, how: str) -> None:
        if rule is None:
            raise CallError(
                f"{self._name} has no rule yet",
                code="no-rule",
                location=caller_location(),
                help=f"call {self._name}.{how} first",
            )


class _Running(threading.local):
    """How many `fwd` of a function run inside one another in this thread."""

    count = 0


_MOST_RUNNING = 2
"""A `fwd` may call its function, whose rule gradients of gradients then take; in the `fwd` of that it is as written."""


class CustomVjp(_Custom[P, R]):
    """A function whose gradient is stated. See `custom_vjp`."""

    _called = "custom_vjp"
    _fwd: Any = None
    _bwd: Any = None

    def __init__(self, function: Callable[P, R], nondiff_argnums: int | Sequence[int] = ()) -> None:
        super().__init__(function, nondiff_argnums)
        self._running = _Running()

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """State the gradient.

        Args:
            fwd: takes the function's arguments and gives what the function gives, and anything else that `bwd` needs.
            bwd: takes the arguments of `nondiff_argnums`, what `fwd` kept, and a tree like the results of what comes
                back to them; gives a tuple of what comes back to each other argument, a tree like it. None stands for
                zeros.

        Raises:
            CallError: `not-a-function`.
        """
        check_function(fwd, "fwd")
        check_function(bwd, "bwd")
        self._fwd, self._bwd = fwd, bwd

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function; its rule, where a gradient of it is taken."""
        given = self._by_place(args, kwargs)
        self._check_stated(self._fwd, "defvjp(fwd, bwd)")
        trace = None if self._running.count == _MOST_RUNNING else traced_where_differentiated(given)
        return self._function(*args, **kwargs) if trace is None else cast(R, self._followed(trace, given))

    def _followed(self, trace: Trace, args: tuple[Any, ...]) -> Any:
        apart, smooth = self._split(args)
        given = Tree(trace, smooth)
        kept: list[Any] = []

        def forwards() -> Any:
            self._running.count += 1
            try:
                found = self._fwd(*args)
            finally:
                self._running.count -= 1
            if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
                raise CallError(
                    f"the fwd of {self._name} gives {shown(cast(object, found))}",
                    code="bad-gradient",
                    location=caller_location(),
                    help="it gives (results, kept)",
                )
            kept.append(cast("tuple[Any, Any]", found)[1])
            return cast("tuple[Any, Any]", found)[0]

        def rules(made: Tree, around: int) -> tuple[Any, Any]:
            def pull(op: OwnOp, cotangents: Values, needed: Sequence[bool]) -> Values:
                no_closure(self._name, needed, around)
                found: Any = self._bwd(*apart, kept[0], made.beside(cotangents))
                return padded(op, given.read(found, f"the bwd of {self._name}"))

            return pull, None

        return with_own(trace, self._name, forwards, given, rules)


class CustomJvp(_Custom[P, R]):
    """A function whose derivative is stated. See `custom_jvp`."""

    _called = "custom_jvp"
    _rule: Any = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """State the derivative.

        Args:
            rule: takes the arguments of `nondiff_argnums`, a tuple of the others, and a tuple like it of directions;
                gives the results, and a tree like them: the derivative, in which directions are linear.

        Returns:
            The rule.

        Raises:
            CallError: `not-a-function`.
        """
        check_function(rule, "a rule")
        self._rule = rule
        return rule

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function; derivatives of it are its rule's."""
        given = self._by_place(args, kwargs)
        self._check_stated(self._rule, "defjvp(rule)")
        trace = traced_where_differentiated(given)
        return self._function(*args, **kwargs) if trace is None else cast(R, self._followed(trace, given))

    def _followed(self, trace: Trace, args: tuple[Any, ...]) -> Any:
        apart, smooth = self._split(args)
        given = Tree(trace, smooth)
        count = len(given.places)

        def rules(made: Tree, around: int) -> tuple[Any, Any]:
            def along(directions: Any) -> Values:
                found = self._rule(*apart, smooth, directions)
                if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
                    raise CallError(
                        f"the rule of {self._name} gives {shown(cast(object, found))}",
                        code="bad-gradient",
                        location=caller_location(),
                        help="it gives (results, derivatives)",
                    )
                return made.read(found[1], f"the rule of {self._name}")

            def push(op: OwnOp, tangents: Values, _needed: Sequence[bool]) -> Values:
                first = len(op.outputs)
                no_closure(self._name, [one is not None for one in tangents[first:]], around)
                return along(given.beside(tangents[first : first + count]))

            def pull(op: OwnOp, cotangents: Values, needed: Sequence[bool]) -> Values:
                no_closure(self._name, needed, around)
                with trace.at_caller() as w:
                    zeros = [w.alias(w.zeros_like(one)) for one in given.values]
                with trace.differentiated():
                    found = along(given.of(zeros))
                pairs = [(of, back) for of, back in zip(found, cotangents, strict=True) if of and back]
                with trace.at_caller() as w:
                    back = gradients(w, [of for of, _ in pairs], [back for _, back in pairs], zeros)
                return padded(op, back)

            return pull, push

        return with_own(trace, self._name, lambda: cast(Any, self._function)(*args), given, rules)


def custom_vjp(function: Callable[P, R], nondiff_argnums: int | Sequence[int] = ()) -> CustomVjp[P, R]:
    """Return a function whose gradient is stated by `defvjp`; a decorator.

    Args:
        function: a function of arrays.
        nondiff_argnums: numbers of arguments that are not differentiated by, such as functions and options.

    Returns:
        The function. Where no gradient is taken of it, it runs as it is; arrays that are differentiated by have to be
        arguments (`closed-over`). `ts.jvp` of it is refused (`no-adjoint`). Gradients of gradients differentiate `fwd`
        and `bwd`.

    Raises:
        CallError: `not-a-function`, `bad-argument`; `no-rule`, when it is called before `defvjp`.
    """
    return CustomVjp(function, nondiff_argnums)


def custom_jvp(function: Callable[P, R], nondiff_argnums: int | Sequence[int] = ()) -> CustomJvp[P, R]:
    """Return a function whose derivative is stated by `defjvp`, for both modes; a decorator.

    Args:
        function: as for `custom_vjp`.
        nondiff_argnums: as for `custom_vjp`.

    Returns:
        The function. The gradient is the transpose of the rule, which is linear in its directions.

    Raises:
        CallError: `not-a-function`, `bad-argument`; `no-rule`, when it is called before `defjvp`.
    """
    return CustomJvp(function, nondiff_argnums)
