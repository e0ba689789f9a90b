"""Calls of kernels in traced functions, and the gradients that a program states for its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from tessera.errors import LanguageError, caller_location, shown

Rule = Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""Gives cotangents of what a kernel reads; see `HasGradient.vjp`."""

TRACERS: dict[type, Callable[[Any, Sequence[Any]], Any]] = {}
"""For each class of traced arrays what a kernel's call with one does, given the kernel and the values by parameter."""
_RULES: WeakKeyDictionary[Any, Rule] = WeakKeyDictionary()
"""The gradients by the kernels' functions: a kernel that takes several dtypes is several."""


def tracer_of(values: Sequence[Any]) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Return what traces a call with these values, None where none of them is traced."""
    if TRACERS:
        for value in values:
            found = TRACERS.get(cast(Any, type(value)))
            if found is not None:
                return found
    return None


def rule_of(function: Any) -> Rule | None:
    """Return the gradient that is stated for a kernel's function."""
    return _RULES.get(function)


class HasGradient:
    """What can be given a gradient."""

    __wrapped__: Callable[..., Any]

    def vjp(self, rule: Rule) -> Rule:
        """State the gradient of the kernel in functions that `ts.jit` and `ts.grad` trace: `@kernel.vjp`.

        Args:
            rule: `rule(given, results, cotangents)`: a function of whole arrays. `given` are the call's arguments by
                the parameters' names, arrays as they were before it; `results` the arrays that it wrote;
                `cotangents` what comes back to each of these. It returns a dictionary: for arrays that the kernel
                reads, by name, what comes back to them, of their shape; nothing comes back to those it leaves out.

        Returns:
            The rule.

        Raises:
            LanguageError: `not-a-function`.
        """
        if not callable(rule):
            raise LanguageError(
                f"a gradient that is {shown(rule)}",
                code="not-a-function",
                location=caller_location(),
                help="decorate a function of (given, results, cotangents)",
            )
        _RULES[self.__wrapped__] = rule
        return rule
