"""What an elementwise function needs beside its line in the table, and that nothing else is needed."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.interp.elementwise import apply
from tessera.numerics import dtypes
from tessera.numerics.elementary import GENERATORS
from tessera.numerics.functions import FUNCTIONS, INTERNAL, Function
from tessera.numerics.tolerances import of_function

OPERATORS = {
    "add",
    "sub",
    "mul",
    "div",
    "floordiv",
    "mod",
    "neg",
    "select",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "and",
    "or",
    "xor",
    "not",
    "shl",
    "shr",
}  # written as Python's operators, and `ts.tile.where`
ELSEWHERE = {"rsqrt"}  # computed from a square root, or by an instruction


def missing(function: Function) -> set[str]:
    """Return the files that lack something of a function."""
    found = set[str]()
    if function.name not in OPERATORS | INTERNAL and not hasattr(ts.tile, function.name):
        found.add("frontend/tile/math.py")
    if function.ulp is not None and function.name not in ELSEWHERE | GENERATORS.keys():
        found.add("numerics/elementary")
    kind = {"int": dtypes.i32, "bool": dtypes.boolean, "int_or_bool": dtypes.i32}.get(function.domain, dtypes.f32)
    one = np.ones(3, kind.numpy())
    try:
        apply(function.name, (one > 0, one, one) if function.name == "select" else (one,) * function.arity, kind)
    except KeyError:
        found.add("interp/elementwise.py")
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_complete(name: str) -> None:
    assert missing(FUNCTIONS[name]) == set()


def test_a_new_function_takes_two_places_beside_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    sinh = Function("sinh", 1, "float", cost=16, special=True, ulp=(3.0, 0.0))
    monkeypatch.setitem(FUNCTIONS, "sinh", sinh)
    monkeypatch.setitem(apply.__globals__["_FORMULAS"], "sinh", np.sinh)  # as at import, by its name in NumPy
    assert missing(sinh) == {"frontend/tile/math.py", "numerics/elementary"}
    assert of_function("sinh", dtypes.f32) == of_function("tanh", dtypes.f32)


@pytest.mark.parametrize(
    ("a", "b", "blocks"), [(0, 4, 0), (1, 4, 1), (8, 4, 2), (9, 4, 3), (-7, 2, -3), (2**70, 3, -(-(2**70) // 3))]
)
def test_blocks_that_cover(a: int, b: int, blocks: int) -> None:
    assert ts.cdiv(a, b) == blocks
    assert (blocks - 1) * b < a <= blocks * b
