"""What activations of neural networks mean, in float64: the formulas of the papers, not those that are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tessera.tools.fuzz.meaning_values import Array

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848, 1.0507009873554804934


def _mish(x: Array) -> Array:
    return x * np.tanh(np.logaddexp(0.0, x))


def _elu(alpha: float) -> Callable[[Array], Array]:
    def evaluate(x: Array) -> Array:
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))

    return evaluate


def _selu(x: Array) -> Array:
    return _SELU_SCALE * _elu(_SELU_ALPHA)(x)


def _leaky(slope: float) -> Callable[[Array], Array]:
    def evaluate(x: Array) -> Array:
        return np.where(x > 0, x, slope * x)

    return evaluate


def _hardsigmoid(x: Array) -> Array:
    return np.clip(x + 3.0, 0.0, 6.0) / 6.0


def _hardswish(x: Array) -> Array:
    return x * np.clip(x + 3.0, 0.0, 6.0) / 6.0


# The formula, its errors in ULP of the result and of the argument (`|x f'(x)|`), and a bound of `|f'|` for those that
# are not monotonic: a few roundings, and what the exponentials are off by.
ACTIVATIONS: Final[dict[str, tuple[Any, float, float, float | None]]] = {
    "mish": (_mish, 24.0, 8.0, 1.1),
    "elu": (_elu(1.0), 6.0, 0.0, None),
    "elu_half": (_elu(0.5), 6.0, 0.0, None),
    "selu": (_selu, 8.0, 0.0, None),
    "leaky_relu": (_leaky(0.01), 2.0, 0.0, None),
    "leaky_relu_eighth": (_leaky(0.125), 0.0, 0.0, None),
    "hardsigmoid": (_hardsigmoid, 8.0, 0.0, None),
    "hardswish": (_hardswish, 8.0, 0.0, 1.5),
}
