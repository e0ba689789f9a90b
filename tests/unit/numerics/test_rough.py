"""The rough forms of functions, computed by units whose results have the errors that the PTX ISA allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.interp.elementary import Arrays
from tessera.interp.gamma import lgamma
from tessera.numerics.elementary import GENERATORS, Options
from tessera.numerics.elementary.writer import UNIT, Value
from tessera.numerics.functions import FUNCTIONS, ROUGH, ROUGH_ERROR, rough

EXACT: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("exp", "expm1", "hypot", "log", "log2", "log10", "log1p", "sqrt", "tanh")},
    **{name: getattr(np, name) for name in ("cos", "sin", "tan")},
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "erfc": np.vectorize(math.erfc),
    "lgamma": lgamma,
    "pow": np.power,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
NEAR_ZEROS = 2.0**-20
LEAST = 2.0**-126
"""The smallest normal number: smaller results may be 0."""
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.8, -88.0, 1e-45, 2.0**-7, -(2.0**-7), 3e38, -3e38)


class Units(Arrays):
    """Computes with units that err as much as they may: 2^-22 of a result, and of 1 for logarithms near 1."""

    rng = np.random.default_rng(7)

    def unit(self, instruction: str, *xs: Value) -> Value:
        given, *others = (np.asarray(x.held, np.float64) for x in xs)
        name = instruction.split(".")[0]
        functions = {"ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "sqrt": np.sqrt, "div": np.divide}
        exact = functions[name](given, *others)
        sign = self.rng.choice((-1.0, 1.0), given.shape)
        found = exact * (1 + 2.0**-22 * sign)
        if name == "lg2":
            found = np.where((given > 0.5) & (given < 2), exact + 2.0**-22 * sign, found)
        result = found.astype(np.float32)
        if ".ftz" in instruction:
            result = np.where(np.abs(result) < np.float32(LEAST), np.copysign(np.float32(0), result), result)
        return Value(self, xs[0].kind, result)


def arguments(name: str, rng: np.random.Generator) -> list[Any]:
    """Return arguments of all sizes, near 0 and 1, and special ones."""
    bits = rng.integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    near = (rng.standard_normal(50_000) * 2.0 ** rng.integers(-20, 2, 50_000)).astype(np.float32)
    one = np.concatenate([bits, near, 1 + near, np.float32(_SPECIAL)])
    if FUNCTIONS[name].arity == 1:
        return [one]
    if name != "pow":
        with np.errstate(all="ignore"):
            near = one * np.float32(2) ** rng.integers(-3, 3, one.size).astype(np.float32)
        return [one, np.where(rng.random(one.size) < 0.5, rng.permutation(one), near)]
    whole, some = rng.integers(-20, 20, one.size), rng.standard_normal(one.size) * 5
    return [one, np.where(rng.random(one.size) < 0.5, whole, some).astype(np.float32)]


@pytest.mark.parametrize("name", sorted(ROUGH))
def test_rough_forms_keep_what_16_bits_hold(name: str) -> None:
    given = arguments(name, np.random.default_rng(3))
    with np.errstate(all="ignore"):
        exact = EXACT[name](*(one.astype(np.float64) for one in given))
        rounded = exact.astype(np.float32)
        writer = Units()
        values = tuple(Value(writer, "f32", one) for one in given)
        found = np.asarray(GENERATORS[rough(name)](writer, values, Options(True, frozenset({UNIT}))).held)
    assert np.array_equal(np.isnan(found), np.isnan(rounded))
    infinite = np.isinf(rounded)
    assert np.array_equal(found[infinite], rounded[infinite])
    normal = np.isfinite(rounded) & (np.abs(exact) >= LEAST)
    most = 1.1 * ROUGH_ERROR * np.abs(exact)
    if name == "lgamma":  # its zeros at negative numbers are those of no part of it
        most = np.where(given[0] < 0, np.maximum(most, NEAR_ZEROS), most)
    assert np.all(np.abs(found[normal] - exact[normal]) <= most[normal])
    small = np.isfinite(rounded) & ~normal
    assert np.all(np.abs(found[small]) <= 2 * LEAST)


@pytest.mark.parametrize("name", sorted(ROUGH))
def test_rough_forms_are_the_functions_themselves_without_such_units(name: str) -> None:
    given = arguments(name, np.random.default_rng(4))
    results = []
    for each in (name, rough(name)):
        writer = Arrays()
        values = tuple(Value(writer, "f32", one) for one in given)
        with np.errstate(all="ignore"):
            generate = GENERATORS.get(each, lambda w, xs, _: w.intrinsic(name, *xs))  # a square root is an instruction
            found = generate(writer, values, Options(False, frozenset())).held
        results.append(np.asarray(found).view(np.int32))
    assert np.array_equal(*results)
    assert FUNCTIONS[rough(name)].cost < FUNCTIONS[name].cost
