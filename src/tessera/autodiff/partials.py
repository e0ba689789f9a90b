"""Derivatives of elementwise functions, by their operands, and of the ops that are linear."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Apply = Callable[..., Any]
"""Applies an elementwise function to values and numbers."""
Partial = Callable[[Apply, Any, Any], Any]
"""Returns the derivative by one operand: takes how functions are applied, the operands, and the result."""


def _number(value: float) -> Partial:
    return lambda _f, _x, _y: value


def _ties(fn: str, mine: int) -> Partial:
    """Return the derivative of a maximum or minimum: 1 where an operand is the one, half where both are."""

    def partial(f: Apply, x: Any, y: Any) -> Any:
        other = x[1 - mine]
        return f("select", f("eq", x[mine], other), 0.5, f("select", f(fn, x[mine], other), 1.0, 0.0))

    return partial


def _square(f: Apply, x: Any) -> Any:
    return f("mul", x, x)


def _over_circle(numerator: int, sign: float) -> Partial:
    """Return a derivative of `atan2(y, x)`."""

    def partial(f: Apply, x: Any, _y: Any) -> Any:
        return f("div", f("mul", sign, x[numerator]), f("add", _square(f, x[0]), _square(f, x[1])))

    return partial


def _bell(factor: float) -> Partial:
    return lambda f, x, _y: f("mul", factor, f("exp", f("neg", _square(f, x[0]))))


def _by_root(sign: float) -> Partial:
    return lambda f, x, _y: f("mul", sign, f("rsqrt", f("sub", 1.0, _square(f, x[0]))))


ONE, LESS = _number(1.0), _number(-1.0)

PARTIALS: dict[str, tuple[Partial | None, ...]] = {
    "add": (ONE, ONE),
    "sub": (ONE, LESS),
    "mul": (lambda f, x, y: x[1], lambda f, x, y: x[0]),
    "rounded_mul": (lambda f, x, y: x[1], lambda f, x, y: x[0]),
    "div": (lambda f, x, y: f("div", 1.0, x[1]), lambda f, x, y: f("div", f("neg", y), x[1])),
    "floordiv": (None, None),
    "mod": (ONE, lambda f, x, y: f("neg", f("floordiv", x[0], x[1]))),
    "maximum": (_ties("gt", 0), _ties("gt", 1)),
    "minimum": (_ties("lt", 0), _ties("lt", 1)),
    "pow": (
        lambda f, x, y: f("mul", x[1], f("pow", x[0], f("sub", x[1], 1.0))),
        lambda f, x, y: f("select", f("eq", y, 0.0), 0.0, f("mul", y, f("log", x[0]))),
    ),
    "neg": (LESS,),
    "abs": (lambda f, x, y: f("select", f("eq", y, 0.0), 0.0, f("copysign", 1.0, x[0])),),
    "fma": (lambda f, x, y: x[1], lambda f, x, y: x[0], ONE),
    "copysign": (
        lambda f, x, y: f("select", f("eq", y, 0.0), 0.0, f("mul", f("copysign", 1.0, x[0]), f("copysign", 1.0, y))),
        None,
    ),
    "floor": (None,),
    "ceil": (None,),
    "round": (None,),
    "trunc": (None,),
    "sqrt": (lambda f, x, y: f("div", 0.5, y),),
    "rsqrt": (lambda f, x, y: f("mul", -0.5, f("div", y, x[0])),),
    "exp": (lambda f, x, y: y,),
    "exp2": (lambda f, x, y: f("mul", y, math.log(2.0)),),
    "expm1": (lambda f, x, y: f("add", y, 1.0),),
    "log": (lambda f, x, y: f("div", 1.0, x[0]),),
    "log2": (lambda f, x, y: f("div", 1.0 / math.log(2.0), x[0]),),
    "log10": (lambda f, x, y: f("div", 1.0 / math.log(10.0), x[0]),),
    "log1p": (lambda f, x, y: f("div", 1.0, f("add", x[0], 1.0)),),
    "sin": (lambda f, x, y: f("cos", x[0]),),
    "cos": (lambda f, x, y: f("neg", f("sin", x[0])),),
    "tan": (lambda f, x, y: f("add", 1.0, _square(f, y)),),
    "tanh": (lambda f, x, y: f("sub", 1.0, _square(f, y)),),
    "atan": (lambda f, x, y: f("div", 1.0, f("add", 1.0, _square(f, x[0]))),),
    "atan2": (_over_circle(1, 1.0), _over_circle(0, -1.0)),
    "asin": (_by_root(1.0),),
    "acos": (_by_root(-1.0),),
    "cbrt": (lambda f, x, y: f("div", 1.0 / 3.0, _square(f, y)),),
    "hypot": (lambda f, x, y: f("div", x[0], y), lambda f, x, y: f("div", x[1], y)),
    "erf": (_bell(2.0 / math.sqrt(math.pi)),),
    "erfc": (_bell(-2.0 / math.sqrt(math.pi)),),
    "sigmoid": (lambda f, x, y: f("mul", y, f("sub", 1.0, y)),),
}
"""For each function of floats, the derivative by each operand; None where it is 0. `lgamma`'s is no function here."""
