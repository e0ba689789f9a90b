"""Expressions mean what they mean in Python: random programs are run by CPython, over the same memory, and compared.

They mix what has effects (atomics, helpers that store) with what reads the same elements: operands and arguments from
left to right, `and`, `or`, chains of comparisons and `x if c else y` that leave out what does not decide, parameters
that are values. CPython's side knows nothing of Tessera: an element is an `int` that remembers where it was read.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts

SIZE = 12
HEAD = """import tessera as ts

t = ts.tile
"""


class Element(int):
    """An element of memory: what it was when it was read, and where."""

    place: tuple[list[int], int]


class Part(list[int]):
    """Neighbours in memory: what they were when they were read."""


class Memory:
    """A tensor of one dimension."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __getitem__(self, at: int | slice) -> Element | Part:
        if isinstance(at, slice):
            return Part(self.values[at])
        element = Element(self.values[at])
        element.place = self.values, at
        return element

    def __setitem__(self, at: int, value: int) -> None:
        self.values[at] = int(value)


def _atomic(change: Any) -> Any:
    def update(element: Element, value: int) -> int:
        values, at = element.place
        old = values[at]
        values[at] = int(change(old, value))
        return old

    return update


PYTHON = types.SimpleNamespace(
    grid=lambda *_: (0,),
    range=range,
    atomic_add=_atomic(lambda old, value: old + value),
    atomic_max=_atomic(max),
    atomic_min=_atomic(min),
    atomic_exchange=_atomic(lambda _, value: value),
    sum=lambda part: sum(part),
    minimum=lambda a, b: min(int(a), int(b)),
    maximum=lambda a, b: max(int(a), int(b)),
    where=lambda c, a, b: a if c else b,
)


class Writer:
    """Draws a program."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.helpers: list[tuple[str, int, bool]] = []  # name, values that it takes, whether it takes the tensor

    def source(self) -> str:
        helpers = "".join(self._helper(number) for number in range(self.dice.randint(1, 3)))
        body = "".join(self._statement(("n", "p"), 8, 2) for _ in range(self.dice.randint(2, 5)))
        kernel = f"def kernel(U: ts.Tensor[{SIZE}, ts.i64], n: ts.i64):\n    for p in t.grid((1, 1)):\n{body}"
        return f"{HEAD}\n{helpers}\n@ts.kernel\n{kernel}"

    def _helper(self, number: int) -> str:
        names = [f"a{i}" for i in range(self.dice.randint(1, 2))]
        takes = self.dice.random() < 0.8
        lines = "".join(self._statement((*names,), 4, 1, tensor=takes) for _ in range(self.dice.randint(1, 2)))
        if self.dice.random() < 0.3:
            lines += (
                f"    if {self.condition((*names,), 1, takes)}:\n        return {self.value((*names,), 1, takes)}\n"
            )
        lines += f"    return {self.value((*names,), 2, takes)}\n"
        params = ", ".join([*(["U"] if takes else []), *names])
        text = f"@ts.function\ndef f{number}({params}):\n{lines}\n\n"
        self.helpers.append((f"f{number}", len(names), takes))
        return text

    def _statement(self, names: tuple[str, ...], indent: int, depth: int, tensor: bool = True) -> str:
        pad, kind = " " * indent, self.dice.random()
        if not tensor:
            return f"{pad}{names[0]} = {self.value(names, 1, False)}\n"
        store = f"U[{self._index(names)}] = {self.value(names, 2)}\n"
        if kind < 0.15 and depth:
            inner = self._statement(names, indent + 4, depth - 1)
            return f"{pad}if {self.condition(names, 2)}:\n{inner}"
        if kind < 0.25 and depth and indent == 8:
            inner = self._statement((*names, "j"), indent + 4, depth - 1)
            return f"{pad}for j in t.range({self.dice.randint(1, 3)}):\n{inner}"
        if kind < 0.35 and depth and indent == 8:
            self_ = f"{pad}    w = w + 1\n"
            return (
                f"{pad}w = n - n\n{pad}while w < {self.dice.randint(1, 3)} and {self.condition((*names, 'w'), 1)}:\n"
                + self_
                + self._statement((*names, "w"), indent + 4, 0)
            )
        if kind < 0.45:
            first, second, third = (self.value(names, 1) for _ in range(3))
            return f"{pad}x, y, z = {first}, {second}, {third}\n{pad}U[{self._index(names)}] = x + 2 * y - z\n"
        if kind < 0.55 and indent == 8:
            parts = ", ".join(self.value(names, 1) for _ in range(3))
            return f"{pad}for v in ({parts}):\n{pad}    {store.replace(' = ', ' = v + ', 1)}"
        if kind < 0.7:
            return f"{pad}U[{self._index(names)}] += {self.value(names, 2)}\n"
        return pad + store

    def _index(self, names: tuple[str, ...]) -> str:
        dice = self.dice
        return str(dice.randrange(6)) if dice.random() < 0.7 else f"({dice.choice(names)} + {dice.randrange(6)}) % 6"

    def value(self, names: tuple[str, ...], depth: int, tensor: bool = True) -> str:
        """Return an integer expression."""
        dice, again = self.dice, lambda: self.value(names, depth - 1, tensor)
        if depth <= 0 or dice.random() < 0.15:
            leaves = [
                str(dice.randint(-3, 9)),
                dice.choice(names),
                *([f"U[{self._index(names)}]"] * 3 if tensor else []),
            ]
            return dice.choice(leaves)
        kinds = ["add", "mod", "choice", "and", "or", "min"]
        if tensor:
            kinds += ["atomic", "atomic", "call", "call", "sum"]
        match dice.choice(kinds):
            case "add":
                return f"({again()} {dice.choice('+-')} {again()})"
            case "mod":
                return f"(({again()}) * 3 % {dice.choice((5, 7, 11))})"
            case "choice":
                return f"({again()} if {self.condition(names, depth - 1, tensor)} else {again()})"
            case "and" | "or" as word:
                return f"({again()} {word} {again()})"
            case "min":
                fn = dice.choice(("min", "max", "t.minimum", "t.maximum"))
                return f"{fn}({again()}, {again()})"
            case "sum":
                start = dice.randrange(4)
                return f"(t.sum(U[{start} : {start + 4}]) - {again()})"
            case "atomic":
                fn = dice.choice(("add", "max", "min", "exchange"))
                return f"t.atomic_{fn}(U[{self._index(names)}], {again()})"
            case _:
                if not self.helpers:
                    return again()
                name, count, takes = dice.choice(self.helpers)
                args = [*(["U"] if takes else []), *(again() for _ in range(count))]
                return f"{name}({', '.join(args)})"

    def condition(self, names: tuple[str, ...], depth: int, tensor: bool = True) -> str:
        """Return an expression that is used for its truth."""
        dice = self.dice
        parts = [self.value(names, depth - 1, tensor) for _ in range(3)]
        match dice.randrange(5):
            case 0:
                return f"({parts[0]} < {parts[1]} <= {parts[2]})"
            case 1 if depth > 0:
                word = dice.choice(("and", "or"))
                return f"({self.condition(names, depth - 1, tensor)} {word} {self.condition(names, depth - 1, tensor)})"
            case 2:
                return f"(not {parts[0]})"
            case 3:
                return f"({parts[0]} and {parts[1]})"
            case _:
                return f"({parts[0]} {dice.choice(('<', '>=', '==', '!='))} {parts[1]})"


def by_python(text: str, values: list[int], n: int) -> list[int]:
    """Return what the program leaves in memory when CPython runs it."""
    fake: Any = types.SimpleNamespace(tile=PYTHON, kernel=lambda f: f, function=lambda f: f, Tensor={}, i64=int)
    fake.Tensor = type("T", (), {"__class_getitem__": lambda *_: None})
    space: dict[str, Any] = {"ts": fake, "t": PYTHON}
    exec(compile(text.removeprefix(HEAD), "<program>", "exec"), space)
    memory = Memory(list(values))
    space["kernel"](memory, n)
    return memory.values


@pytest.mark.parametrize("group", range(6))
def test_random_programs(group: int, tmp_path: Path) -> None:
    for seed in range(group * 20, group * 20 + 20):
        text = Writer(seed).source()
        rng = np.random.default_rng(seed)
        values, n = rng.integers(-4, 9, SIZE), int(rng.integers(-2, 4))
        wanted = by_python(text, values.tolist(), n)
        if max(map(abs, wanted)) >= 2**62:
            continue
        path = tmp_path / f"program_{seed}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"python_meaning_{seed}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        got = values.astype(np.int64)
        module.kernel(got, n)
        assert got.tolist() == wanted, text


@ts.function
def stored_where(y: Any, x: Any, c: Any) -> None:
    if c:
        y[:] = ts.tile.sum(x)


@ts.function
def taken(cell: Any, most: Any) -> Any:
    """Return whether a counter was below a number, and count: `cell` is a place."""
    return ts.tile.atomic_add(cell, 1) < most


@ts.function
def steps_to_one(number: Any) -> Any:
    count = 0
    while number != 1:
        number = number // 2
        count += 1
    return count


def test_an_argument_is_read_outside_of_the_conditions_inside() -> None:
    @ts.kernel
    def kernel(u: ts.Tensor[16, ts.i32], y: ts.Tensor[16, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            stored_where(y, u[:], u[:] > 8)

    u, y = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    kernel(u, y)
    assert y.tolist() == [0] * 9 + [120] * 7


def test_a_parameter_of_a_helper_is_a_place_for_atomics() -> None:
    @ts.kernel
    def kernel(u: ts.Tensor[2, ts.i32], y: ts.Tensor[8, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            for i in ts.tile.range(8):
                y[i] = 1 if i > 1 and taken(u[0], 3) else 0

    u, y = np.zeros(2, np.int32), np.zeros(8, np.int32)
    kernel(u, y)
    assert u.tolist() == [6, 0]
    assert y.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_a_loop_that_would_not_end_is_left_out() -> None:
    @ts.kernel
    def kernel(u: ts.Tensor[4, ts.i32], y: ts.Tensor[4, ts.i32]):
        for i in ts.tile.grid((4, 1)):
            y[i] = steps_to_one(u[i]) if u[i] > 0 else -1
            if u[i] <= 0 or steps_to_one(u[i]) > 2:
                y[i] += 10

    u, y = np.array([1, 0, 9, -3], np.int32), np.zeros(4, np.int32)
    kernel(u, y)
    assert y.tolist() == [0, 9, 13, 9]


def test_effects_under_conditions_on_elements_are_refused() -> None:
    @ts.kernel
    def kernel(u: ts.Tensor[16, ts.i32], y: ts.Tensor[16, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            y[:] = ts.tile.atomic_add(u[:], 1) if u[:] > 3 else 0

    with pytest.raises(ts.TesseraError, match="computes both sides") as caught:
        kernel(np.zeros(16, np.int32), np.zeros(16, np.int32))
    assert caught.value.code == "tile-condition"


@ts.function
def doubled_often(x: Any, times: Any) -> Any:
    for _ in ts.tile.range(times):
        x = x * 2
    return x


def test_both_sides_of_a_condition_on_elements_may_loop() -> None:
    @ts.kernel
    def kernel(x: ts.Tensor[8, ts.i32], y: ts.Tensor[8, ts.i32], n: int):
        for _ in ts.tile.grid((1, 1)):
            y[:] = doubled_often(x[:], n) if x[:] > 3 else doubled_often(x[:], 1)

    x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    kernel(x, y, 3)
    assert y.tolist() == [0, 2, 4, 6, 32, 40, 48, 56]


def test_typed_numbers_keep_their_dtype_in_functions_of_python() -> None:
    @ts.kernel
    def kernel(x: ts.Tensor[2, ts.u8], y: ts.Tensor[8, ts.i64]):
        for _ in ts.tile.grid((1, 1)):
            a, b, c = ts.tile.cast(200, ts.u8), ts.tile.cast(100, ts.u8), ts.tile.cast(-128, ts.i8)
            y[0], y[1] = max(a, b) + 100, max(x[0], x[1]) + 100
            y[2], y[3] = min(a, b) * 3, min(x[0], x[1]) * 3
            y[4], y[5] = abs(c), divmod(a, 7)[0] * 20
            y[6], y[7] = max(a, 7) << 1, (a and b) + 200

    y = np.zeros(8, np.int64)
    kernel(np.array([200, 100], np.uint8), y)
    assert y.tolist() == [44, 44, 44, 44, -128, 560 % 256, 400 % 256, 44]


def test_unsigned_places_beyond_the_signed_ones_are_outside() -> None:
    @ts.kernel
    def kernel(x: ts.Tensor[16, ts.i32], d: ts.Tensor[1, ts.u64], y: ts.Tensor[16, ts.i32], z: ts.Tensor[24, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            far, tile = d[0], x[0:16]
            x[far : far + 8] = ts.tile.arange(8) + 100
            z[0:8] = ts.tile.load(x[far : far + 8], fill=-7)
            z[8:16] = tile[far : far + 8]
            z[16:24] = x[far : far - 8 : -1]
            y[:] = ts.tile.roll(tile, far + 2, axis=0)
            for i in ts.tile.range(0, far):
                if i > 3:
                    y[0] = 1000 + i
                    break

    x, y, z = np.arange(1, 17, dtype=np.int32), np.zeros(16, np.int32), np.full(24, 9, np.int32)
    before = x.copy()
    kernel(x, np.array([2**64 - 3], np.uint64), y, z)
    assert (x == before).all()
    assert z.tolist() == [-7] * 8 + [0] * 16
    assert y.tolist() == [1004, *np.roll(before, (2**64 - 1) % 16)[1:]]


ONES, NUMBERS, PAIR = [1.0], {"w": {"b": 3.0}, "y": [[1.0], 2.0]}, (1.0,)


def test_lists_in_comparisons_are_lists() -> None:
    @ts.kernel
    def kernel(y: ts.Tensor[8, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            y[0] = 1 if ONES == [1.0] else 0
            y[1] = 1 if ONES != [1.0] else 0
            y[2] = 1 if PAIR == [1.0] else 0
            y[3] = 1 if [1, 2] < [1, 3] else 0
            y[4] = 1 if 2 in [1, 2] else 0
            y[5] = 1 if (1, 2) == [1, 2] else 0
            y[6] = 1 if NUMBERS["y"] == [[1.0], 2.0] else 0
            y[7] = 1 if [ONES, 1.0] == [[1.0], 1.0] else 0

    y = np.zeros(8, np.int32)
    kernel(y)
    assert y.tolist() == [1, 0, 0, 1, 1, 0, 1, 1]


class Shaped(list[int]):
    """A tensor of one dimension, as Python's numbers."""

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)


def _sequences(rng: random.Random, depth: int) -> str:
    """Return the text of a sequence of elements of x, numbers and other sequences, the same ones again and again."""
    items = [
        _sequences(rng, depth - 1) if depth and rng.random() < 0.3 else rng.choice(["x[0]", "x[1]", "0", "1"])
        for _ in range(rng.randint(1, 2))
    ]
    return f"({', '.join(items)},)" if rng.random() < 0.8 else f"[{', '.join(items)}]"


@pytest.mark.parametrize("seed", range(4))
def test_sequences_with_elements_of_memory_compare_as_in_python(seed: int, tmp_path: Path) -> None:
    """By their elements, shapes and kinds; what would need the truth of a tile, or an order, is refused."""
    rng = random.Random(seed)
    pairs = [(rng.choice(["==", "!="]), _sequences(rng, 1), _sequences(rng, 1)) for _ in range(40)]
    pairs += [(sign, one, one) for sign, one in zip(("==", "!="), (pairs[0][1], pairs[1][1]), strict=True)]
    pairs += [("==", "x.shape", "(2,)"), ("!=", "x.shape", "(3,)"), ("==", "x.shape", "y.shape")]
    lines = [f"        y[{at}] = 1 if {left} {sign} {right} else 0" for at, (sign, left, right) in enumerate(pairs)]
    head = f"def kernel(x: ts.Tensor['n', ts.i32], y: ts.Tensor[{len(pairs)}, ts.i32]):\n    for _ in t.grid((1, 1)):\n"
    path = tmp_path / "compared.py"
    path.write_text(HEAD + "@ts.kernel\n" + head + "\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(f"compared_{seed}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        for values in ((0, 1), (1, 1), (0, 0)):
            x, y = np.array(values, np.int32), np.full(len(pairs), 9, np.int32)
            module.kernel(x, y)
            python = {"x": Shaped(values), "y": Shaped(y.tolist())}
            assert y.tolist() == [int(eval(f"{left} {sign} {right}", python)) for sign, left, right in pairs]
    finally:
        sys.modules.pop(f"compared_{seed}", None)


@pytest.mark.parametrize(
    "condition", ["(x[0], 1) < (1, 2)", "x[0] in (0, x[1])", "(x[0:2],) == (1,)", "x[0] is 1", "(x[0], 1) in ((0, 1),)"]
)
@pytest.mark.filterwarnings("ignore:.*with a literal:SyntaxWarning")
def test_what_sequences_and_identity_cannot_tell_is_refused(condition: str, tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    head = "def kernel(x: ts.Tensor['n', ts.i32], y: ts.Tensor[1, ts.i32]):\n    for _ in t.grid((1, 1)):\n"
    path.write_text(f"{HEAD}@ts.kernel\n{head}        y[0] = 1 if {condition} else 0\n")
    spec = importlib.util.spec_from_file_location("refused", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ts.TesseraError) as caught:
        module.kernel(np.zeros(2, np.int32), np.zeros(1, np.int32))
    assert caught.value.code == "unsupported-operator"
    assert caught.value.help
