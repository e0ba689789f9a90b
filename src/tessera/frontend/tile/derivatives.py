"""Derivatives of functions of tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.frontend.tile.stub import tile_function

__all__ = ["jvp"]


@tile_function
def jvp(function: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return a function's result and its derivative along a direction: `f(x)` and `f'(x) · t`.

        @ts.function
        def capped(score):
            return 30.0 * ts.tile.tanh(score / 30.0)

        y, slope = ts.tile.jvp(capped, (x,), (1.0,))

    The function is inlined once, and each of its ops is followed by its derivative (forward mode); what does not depend
    on an operand with a tangent costs nothing.

    Args:
        function: a `@ts.function` of elementwise functions, casts, broadcasts, transposes and sums.
        primals: what it is called with.
        tangents: for each of them the direction, a tile or scalar that broadcasts to it; 0 for what stays as it is, and
            for what is no float.

    Returns:
        The result and its derivative, of one shape and dtype; two tuples where the function returns a tuple. The
        derivative of what does not depend on an operand with a tangent is 0. At equal operands of `maximum` and
        `minimum` each has half of it; at kinks of `abs`, `floor` and their like it is 0.

    Raises:
        LanguageError: `no-derivative`, with its line, for what has none here: loops and branches, products of
            matrices, maxima along a dimension. Integers and bools made of floats count as constants.
        TypeMismatchError: `bad-argument` where primals and tangents do not match.

    Source: Griewank & Walther, Evaluating derivatives, 2nd ed., 2008, ch. 3.
    """
    ...
