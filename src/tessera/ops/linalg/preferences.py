"""`specialize`: other schedules for the products of a function, on devices that one describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, ParamSpec, TypeVar, cast

from tessera.driver.variants import destination_of
from tessera.errors import CallError, caller_location
from tessera.ops import arrays
from tessera.ops.linalg.problem import CHOICES, Options
from tessera.ops.rules import RULES, Rule
from tessera.schedule.knobs import nearest
from tessera.target.registry import target_named

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ALIASES = {"tile_sizes": "block"}
_NAMES = tuple(Options.__dataclass_fields__)


def specialize(*, when: Mapping[str, Any], use: Mapping[str, Any]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a decorator: products that the function calls use these schedules on the devices described.

        @op.specialize(when={"backend": "cpu"}, use={"tile_sizes": [64, 64, 64]})
        def layer(a, b):
            return op.linalg.matmul(a, b)

    Args:
        when: keys of `ts.runtime.capabilities()` with the values that a device has to have; of lists the members it
            has to have (`{"features": ["wgmma"]}`), of dictionaries the entries. Empty for every device.
        use: what `op.linalg.gemm` takes for its schedule: `tile_sizes` (`block`), `stages`, `num_warps`, `split_k` and
            others. What a call asks for itself stands; the innermost function that names an option decides.

    Raises:
        CallError: `unknown-keyword` for a capability that no device has or an option that products do not have,
            `bad-argument` for a value that an option cannot have, for what is no dictionary, or for a function that
            runs in pieces (`async def`, or with `yield`).
    """
    if not isinstance(when, Mapping) or not isinstance(use, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CallError(
            "when and use are dictionaries",
            code="bad-argument",
            location=caller_location(),
            help="when={...} says of which products, use={...} what they use",
        )
    _check_capabilities(when)
    rule = Rule(tuple(when.items()), tuple(_option(name, value) for name, value in use.items()))

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        if iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function):
            raise CallError(
                f"{function.__name__} runs in pieces",
                code="bad-argument",
                location=caller_location(),
                help="decorate the function that calls products, which returns when they have been called",
            )

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            token = RULES.set((*RULES.get(), rule))
            try:
                return function(*args, **kwargs)
            finally:
                RULES.reset(token)

        return call

    return decorate


def _check_capabilities(when: Mapping[str, Any]) -> None:
    """Check the names of capabilities: those of this machine, which all devices have.

    Raises:
        CallError: `unknown-keyword`.
    """
    known = target_named("cpu").capabilities()
    for name in when:
        if name not in known:
            raise CallError(
                f"devices have no capability {name!r}",
                code="unknown-keyword",
                location=caller_location(),
                help=nearest(str(name), known),
            )


def _option(name: str, value: Any) -> tuple[int, Any]:
    """Return an option by its place."""
    known = _ALIASES.get(name, name)
    knob = CHOICES.get(known)
    if knob is None:
        raise CallError(
            f"a product has no schedule option {name!r}",
            code="unknown-keyword",
            location=caller_location(),
            help=nearest(name, [*_ALIASES, *CHOICES]),
        )
    if not knob.accepts(value):
        message, help_line = knob.refusal(value)
        raise CallError(message, code="bad-argument", location=caller_location(), help=help_line)
    return _NAMES.index(known), tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def specialized(options: tuple[Any, ...], array: Any, rules: tuple[Rule, ...]) -> tuple[Any, ...]:
    """Return the options of a call with what the rules add for the device of an array."""
    facts = destination_of(arrays.view(array, "a").device).record().capabilities()
    found = list(options)
    for rule in reversed(rules):
        if all(_has(facts.get(name), value) for name, value in rule.when):
            for place, value in rule.use:
                if found[place] is None:
                    found[place] = value
    return tuple(found)


def _has(fact: Any, wanted: Any) -> bool:
    """Return whether a capability is what is asked for."""
    if isinstance(wanted, Mapping):
        inner = cast("Mapping[str, Any]", wanted)
        return isinstance(fact, Mapping) and all(
            _has(cast(Any, fact).get(name), value) for name, value in inner.items()
        )
    if isinstance(wanted, list | tuple):
        return isinstance(fact, list | tuple) and all(one in fact for one in cast("list[Any]", wanted))
    return fact == wanted
