"""Compile-time values that Python calls equal never share code: constants, branches, structures, the entry's guards."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera.frontend.exact import exact, same
from tessera.frontend.function import DeviceFunction
from tessera.frontend.structure import ConstantField, Layout


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Config:
    scale: Any


class Always:
    """Says that it is equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


NUMBERS = [1, 1.0, True, np.float32(1), np.int32(1), np.int64(1), np.bool_(True), 1 + 0j, "1", b"1"]
ZEROS = [0, 0.0, -0.0, False, np.float32(-0.0), None]
OTHERS = [math.nan, ts.f32, ts.f16, ts.f16 @ ts.accum(ts.f32), ts.f16 @ ts.accum(ts.f16), Always(), Always()]
PLAIN = [*NUMBERS, *ZEROS, *OTHERS]
NESTED = [
    *((value,) for value in PLAIN),
    *((2, (value, 3)) for value in PLAIN),
    *(Pair(value, 0) for value in PLAIN),
    *(Config(value) for value in PLAIN),
    *(Config((value,)) for value in PLAIN),
    *(frozenset((value,)) for value in PLAIN),
    (),
]


def test_only_the_same_value_of_the_same_type_is_the_same():
    for left, right in itertools.product([*PLAIN, *NESTED], repeat=2):
        assert same(left, right) == (left is right), (left, right)


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"),
        lambda: -1.5,
        lambda: (10**9, (2.5, "ab" * 3)),
        lambda: Config((1, -0.0)),
        lambda: Pair(10**9, 2.5),
        lambda: np.float32(0.1),
        lambda: ts.f16 @ ts.accum(ts.f32),
    ],
)
def test_another_object_of_the_same_value_is_the_same(make):
    assert same(make(), make())
    assert hash(exact(make())) == hash(exact(make()))


VALUES = [
    1,
    1.0,
    True,
    0,
    0.0,
    -0.0,
    False,
    math.nan,
    (1, 0.0),
    (1.0, 0.0),
    (True, -0.0),
    np.float32(1.5),
    1.5,
]
CODES = {str(value): float(number) for number, value in enumerate(VALUES)}


@ts.kernel
def code_of(y: ts.Tensor["n", ts.f64], value: ts.constexpr):
    y[0:4] = CODES[str(value)]


def test_calls_with_equal_constants_in_any_order_get_their_own_code():
    """Each many times, so that the compiled entry serves some and the Python path others."""
    CODES["1.5"] = 7.0  # the kernel sees a NumPy number as Python's
    y = np.zeros(4)
    source = random.Random(1)
    for _ in range(150):
        value = source.choice(VALUES)
        code_of(y, value)
        assert y[0] == CODES[str(value)], value
        code_of(y, value=value)
        assert y[0] == CODES[str(value)], value


@ts.kernel
def by_branch(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], which: ts.i32):
    for i in ts.tile.grid((n, 4)):
        if which > 0:
            c = 0.0
        else:
            c = -0.0
        y[i : i + 4] = x[i : i + 4] * c


@ts.kernel
def by_tile(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 4)):
        tile = x[i : i + 4]
        if tile > 1.5:
            c = 0.0
        else:
            c = -0.0
        y[i : i + 4] = tile * c


def test_branches_keep_equal_constants_apart():
    x, y = np.array([1, 2, 1, 2], np.float32), np.ones(4, np.float32)
    for which in (0, 1):
        by_branch(x, y, which)
        np.testing.assert_array_equal(np.signbit(y), np.full(4, which == 0))
    by_tile(x, y)
    np.testing.assert_array_equal(np.signbit(y), x <= 1.5)


def test_structures_with_equal_constants_have_layouts_of_their_own():
    def entry(self, x):
        return x

    helper = DeviceFunction(entry)
    made = [Layout.of("s", helper, ("m",), (("value", ConstantField(value)),)) for value in (1, 1.0, True, 0.0, -0.0)]
    assert len(set(made)) == 5
    assert Layout.of("s", helper, ("m",), (("value", ConstantField(-0.0)),)) is made[-1]


class Slotted:
    __slots__ = ("__hidden", "a")


@dataclass(frozen=True)
class Above(Slotted):
    n: int = 1


@dataclass(frozen=True, slots=True)
class AllSlots(Slotted):
    n: int = 1


class Below(Above):
    __slots__ = ("a",)


@dataclass(frozen=True)
class WithDict:
    n: int = 1


class PairBelow(Pair):
    pass


class SetBelow(frozenset[int]):
    __slots__ = ("other",)


@dataclass(frozen=True)
class NumberBelow(int):
    n: int = 1


@dataclass(frozen=True)
class TextBelow(str):
    n: int = 1


def slotted(kind: type, place: Any, content: Any) -> Any:
    made = kind() if is_dataclass(kind) else kind(()) if kind is SetBelow else kind(1, 2)
    if isinstance(place, str):
        object.__setattr__(made, place, content)
    else:
        place.__set__(made, content)
    return made


PLACES = [
    *((kind, place) for kind in (Above, AllSlots, Below) for place in ("a", vars(Slotted)["a"], "_Slotted__hidden")),
    *((kind, "other") for kind in (WithDict, PairBelow, SetBelow)),
]


@pytest.mark.parametrize(("kind", "place"), PLACES)
def test_all_that_an_object_holds_tells_it_apart(kind, place):
    first, again, other = (slotted(kind, place, content) for content in (1.0, 1.0, 2.0))
    assert same(first, again)
    assert not same(first, other)
    assert hash(exact(first)) == hash(exact(again))


@pytest.mark.parametrize("kind", [NumberBelow, TextBelow])
def test_what_a_dataclass_has_of_a_class_of_pythons_own_tells_it_apart(kind):
    first, other = kind.__new__(kind, 1), kind.__new__(kind, 2)
    object.__setattr__(first, "n", 1)
    object.__setattr__(other, "n", 1)
    assert not same(first, other)


def test_members_that_a_class_hides_tell_it_apart():
    class Hiding(tuple[int, ...]):
        __slots__ = ()

        def __iter__(self):
            return iter(())

    assert not same(Hiding((1,)), Hiding((2,)))
    assert same(Hiding((1,)), Hiding((1,)))


@ts.kernel
def by_slot(x: ts.Tensor["n", ts.f32], c: ts.constexpr):
    x[0:4] = c.a


def test_a_slot_that_is_no_field_gets_its_own_code():
    x = np.zeros(4, np.float32)
    for content in (1.0, 2.0, 1.0, 3.0):
        by_slot(x, slotted(Above, "a", content))
        assert x[0] == content
