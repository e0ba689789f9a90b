"""Random kernels that read and write a few tensors again and again, each with its meaning in NumPy.

A program is written as source and, statement by statement, as functions on a dictionary of NumPy arrays, so that
what is expected owes nothing to Tessera. Numbers stay below `PRIME`, so that every dtype and product holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any

import numpy as np

PRIME = 97
SIDES = ((7, 9), (3, 5), (17, 16), (16, 17), (5, 33), (20, 24), (16, 32), (31, 31), (1, 19), (33, 2))
DTYPES = ("i32", "i32", "i16", "i8", "i64", "f32")

Env = dict[str, Any]
Step = Callable[[Env], None]
Shape = tuple[int, ...]


@dataclass
class OrderedProgram:
    """A kernel and what it does to `X` (flat rows), `M` (matrices) and `O` (all tiles at the end).

    Args:
        source: the module's text; the kernel is `k(X, M, O, p, q)`.
        rows: size of the rows of `X`.
        sides: sizes of the matrices of `M`.
        outputs: size of the rows of `O`.
        dtype: dtype of `X` and `M`.
        steps: what one program does.
    """

    source: str
    rows: int
    sides: tuple[int, int]
    outputs: int
    dtype: str
    steps: list[Step]

    def expected(self, x: np.ndarray, m: np.ndarray, o: np.ndarray, p: int, q: int) -> None:
        """Do in NumPy, to the arguments, what the kernel does."""
        for b in range(len(x)):
            run(self.steps, {"X": x[b], "M": m[b], "O": o[b], "p": p, "q": q})


def run(steps: list[Step], env: Env) -> None:
    """Run statements in order."""
    for step in steps:
        step(env)


def _window(array: np.ndarray, starts: Shape, sizes: Shape) -> tuple[Any, Any]:
    """Return which part of a tile, and of an array, a bounded slice is."""
    inner, outer = [], []
    for start, size, bound in zip(starts, sizes, array.shape, strict=True):
        low, high = max(start, 0), max(min(start + size, bound), max(start, 0))
        inner.append(slice(low - start, high - start))
        outer.append(slice(low, high))
    return tuple(inner), tuple(outer)


def _read(array: np.ndarray, starts: Shape, sizes: Shape) -> np.ndarray:
    tile = np.zeros(sizes, np.int64)
    inner, outer = _window(array, starts, sizes)
    tile[inner] = array[outer]
    return tile


def _write(array: np.ndarray, starts: Shape, tile: np.ndarray, mask: np.ndarray | bool = True) -> None:
    inner, outer = _window(array, starts, tile.shape)
    kept = np.broadcast_to(mask, tile.shape)[inner]
    array[outer] = np.where(kept, tile[inner], array[outer])


@dataclass
class OrderedPrograms:
    """Writes one program.

    Args:
        rng: decides everything.
    """

    rng: np.random.Generator
    lines: list[str] = field(default_factory=list[str])
    steps: list[Step] = field(default_factory=list[Step])
    tiles: dict[str, Shape] = field(default_factory=dict[str, Shape])
    starts: list[str] = field(default_factory=lambda: ["p", "q"])
    buffers: dict[str, Shape] = field(default_factory=dict[str, Shape])
    depth: int = 2
    count: int = 0

    def __post_init__(self) -> None:
        self.r, self.c = SIDES[self.rng.integers(len(SIDES))]
        self.n = self.r * self.c
        self.dtype = DTYPES[self.rng.integers(len(DTYPES))]
        square = (self.r, self.r)
        self.shapes: list[Shape] = [
            (self.n,),
            (self.r, self.c),
            (self.c, self.r),
            (self.r,),
            (self.c,),
            square,
        ]

    # Small choices

    def pick(self, values: Any) -> Any:
        """Return one of some values."""
        values = list(values)
        return values[self.rng.integers(len(values))]

    def chance(self, percent: int) -> bool:
        """Return true so often."""
        return bool(self.rng.integers(100) < percent)

    def fresh(self, letter: str = "v") -> str:
        """Return an unused name."""
        self.count += 1
        return f"{letter}{self.count}"

    def tile(self, shape: Shape | None = None) -> str:
        """Return a tile at hand, of a shape; made if there is none."""
        shape = shape or self.pick(self.shapes)
        found = [name for name, its in self.tiles.items() if its == shape]
        return self.pick(found[-5:]) if found and not self.chance(15) else self.load(shape)

    # Writing statements

    def say(self, text: str, step: Step) -> None:
        """Add a statement and its meaning."""
        self.lines.append("    " * (4 - self.depth) + text)
        self.steps.append(step)

    def bind(self, shape: Shape, text: str, value: Callable[[Env], Any]) -> str:
        """Bind a name, often one that has been bound, to a tile."""
        known = [name for name, its in self.tiles.items() if its == shape]
        name = self.pick(known) if known and self.chance(40) else self.fresh()
        self.tiles[name] = shape

        def step(env: Env) -> None:
            env[name] = np.array(value(env), np.int64)

        self.say(f"{name} = {text}", step)
        return name

    @contextmanager
    def block(self, header: str) -> Iterator[list[Step]]:
        """Collect the statements of a block; what is first bound in it is forgotten after."""
        self.lines.append("    " * (4 - self.depth) + header)
        outside, tiles, starts = self.steps, dict(self.tiles), list(self.starts)
        inside: list[Step] = []
        self.steps, self.depth = inside, self.depth - 1
        yield inside
        self.steps, self.tiles, self.starts, self.depth = outside, tiles, starts, self.depth + 1

    # Statements

    def place(self, tensor: str, shape: Shape | None = None) -> tuple[str, Callable[[Env], Shape], Shape]:
        """Return a bounded slice: its text, where it starts, and its shape."""
        whole = (self.n,) if tensor == "X" else (self.r, self.c)
        sizes = shape or (self.pick([s for s in self.shapes if len(s) == 1]) if tensor == "X" else whole)
        texts, parts = list[str](), list[tuple[str, int]]()
        for size, bound in zip(sizes, whole, strict=True):
            name = self.pick([*self.starts, ""])
            number = int(self.rng.integers(-2, 4)) if self.chance(50) else 0
            if not name and self.chance(30):
                number = bound - size + int(self.rng.integers(-1, 3))
            number = number if name else max(number, 0)
            text = f"{name} + {number}" if name else f"{number}"
            parts.append((name, number))
            texts.append(f"{text}:{text} + {size}")

        def starts(env: Env) -> Shape:
            return tuple((env[name] if name else 0) + number for name, number in parts)

        return f"{tensor}[b, {', '.join(texts)}]", starts, sizes

    def load(self, shape: Shape | None = None) -> str:
        """Read a slice."""
        if shape == (self.r, self.r) != (self.r, self.c):
            a, b = self.tile((self.r,)), self.tile((self.r,))
            return self.bind(
                shape,
                f"({a}[None, :] * 3 + {b}[:, None]) % {PRIME}",
                lambda env: (env[a][None, :] * 3 + env[b][:, None]) % PRIME,
            )
        if shape == (self.c, self.r) != (self.r, self.c):
            return self.transpose(self.tile((self.r, self.c)))
        tensor = self.pick("XM") if shape is None else "X" if len(shape) == 1 else "M"
        text, starts, sizes = self.place(tensor, shape)
        return self.bind(sizes, f"{text}.to(ts.i32)", lambda env: _read(env[tensor], starts(env), sizes))

    def store(self) -> None:
        """Write a slice, at times where a tile of conditions is true."""
        tensor = self.pick("XM")
        text, starts, shape = self.place(tensor)
        value = self.tile(shape)
        value_text = f"{value}.to(ts.{self.dtype})"
        if self.depth == 0 or self.chance(75):
            self.say(f"{text} = {value_text}", lambda env: _write(env[tensor], starts(env), env[value]))
            return
        flag, level = self.tile(shape), int(self.rng.integers(PRIME))
        with self.block(f"if {flag} > {level}:") as inside:
            self.say(
                f"{text} = {value_text}",
                lambda env: _write(env[tensor], starts(env), env[value], env[flag] > level),
            )
        self.steps += inside

    def arithmetic(self) -> None:
        """Combine tiles of one shape, or of shapes that broadcast."""
        shape = self.pick(self.shapes)
        a, b, factor = self.tile(shape), self.tile(shape), int(self.rng.integers(1, 9))
        if len(shape) == 2 and self.chance(30):
            row, column = self.tile((shape[1],)), self.tile((shape[0],))
            self.bind(
                shape,
                f"({row}[None, :] * {factor} + {column}[:, None] + {b}) % {PRIME}",
                lambda env: (env[row][None, :] * factor + env[column][:, None] + env[b]) % PRIME,
            )
        elif self.chance(20):
            self.bind(
                shape,
                f"ts.tile.where({a} > {b}, {a}, {factor})",
                lambda env: np.where(env[a] > env[b], env[a], factor),
            )
        else:
            self.bind(shape, f"({a} * {factor} + {b}) % {PRIME}", lambda env: (env[a] * factor + env[b]) % PRIME)

    def transpose(self, name: str | None = None) -> str:
        """Exchange the axes of a matrix."""
        name = name or self.tile(self.pick([(self.r, self.c), (self.c, self.r)]))
        return self.bind(self.tiles[name][::-1], f"{name}.T", lambda env: env[name].T)

    def reshape(self) -> None:
        """Number the elements anew, perhaps after exchanging axes."""
        name = self.tile(self.pick(self.shapes[:3]))
        shape = self.pick([s for s in self.shapes[:3] if s != self.tiles[name]] or [(self.n,)])
        turned = len(self.tiles[name]) == 2 and self.chance(50)
        text = f"{name}.T" if turned else name
        self.bind(
            shape,
            f"ts.tile.reshape({text}, {shape})",
            lambda env: (env[name].T if turned else env[name]).reshape(shape),
        )

    def reduction(self) -> None:
        """Sum along an axis, or keep the running sums."""
        name = self.tile(self.pick(self.shapes))
        shape = self.tiles[name]
        axis = int(self.rng.integers(len(shape)))
        if len(shape) == 2 and self.chance(60):
            self.bind(
                (shape[1 - axis],),
                f"ts.tile.sum({name}, {axis}) % {PRIME}",
                lambda env: env[name].sum(axis) % PRIME,
            )
        else:
            self.bind(shape, f"ts.tile.cumsum({name}, {axis}) % {PRIME}", lambda env: env[name].cumsum(axis) % PRIME)

    def gather(self) -> None:
        """Read elements of `X` at computed places."""
        name, factor, first = self.tile(), int(self.rng.integers(1, 9)), int(self.rng.integers(self.n))
        self.bind(
            self.tiles[name],
            f"X[b, ({name} * {factor} + {first}) % {self.n}].to(ts.i32)",
            lambda env: env["X"][(env[name] * factor + first) % self.n],
        )

    def scatter(self) -> None:
        """Write elements of `X` at computed places, all different."""
        name = self.tile(self.pick([s for s in self.shapes if len(s) == 1]))
        (size,) = self.tiles[name]
        factor = self.pick([f for f in range(1, 12) if gcd(f, self.n) == 1])
        first = int(self.rng.integers(self.n))
        places = (np.arange(size) * factor + first) % self.n

        def step(env: Env) -> None:
            env["X"][places] = env[name]

        index = f"(ts.tile.arange({size}) * {factor} + {first}) % {self.n}"
        self.say(f"X[b, {index}] = {name}.to(ts.{self.dtype})", step)

    def atomic(self) -> None:
        """Take the maximum of elements of `X` and numbers; places may be equal."""
        if self.dtype != "i32":
            return
        name, factor, first = self.tile(), int(self.rng.integers(1, 9)), int(self.rng.integers(self.n))
        value = self.tile(self.tiles[name])

        def step(env: Env) -> None:
            np.maximum.at(env["X"], (env[name] * factor + first) % self.n, env[value].astype(np.int32))

        self.say(f"ts.tile.atomic_max(X[b, ({name} * {factor} + {first}) % {self.n}], {value})", step)

    def product(self) -> None:
        """Multiply matrices, in a loop that carries the sums."""
        a, b = self.tile((self.r, self.c)), self.tile((self.c, self.r))
        total, times = self.fresh("f"), int(self.rng.integers(0, 3))
        pad = "    " * (4 - self.depth)
        self.lines += [
            f"{pad}{total} = ts.tile.zeros(({self.r}, {self.r}), ts.f32)",
            f"{pad}for _ in ts.tile.range({times}):",
            f"{pad}    {total} = ts.tile.mma({a}.to(ts.f32), {b}.to(ts.f32), {total})",
        ]
        self.bind((self.r, self.r), f"{total}.to(ts.i32) % {PRIME}", lambda env: env[a] @ env[b] * times % PRIME)

    def power(self) -> None:
        """Multiply a square matrix by itself, and add it, again and again."""
        source, times = self.tile((self.r, self.r)), int(self.rng.integers(0, 3))
        total, pad = self.fresh("f"), "    " * (4 - self.depth)
        self.lines += [
            f"{pad}{total} = {source}.to(ts.f32)",
            f"{pad}for _ in ts.tile.range({times}):",
            f"{pad}    {total} = (ts.tile.mma({total}, {total}, {total}).to(ts.i32) % {PRIME}).to(ts.f32)",
        ]

        def value(env: Env) -> np.ndarray:
            got = env[source]
            for _ in range(times):
                got = (got @ got + got) % PRIME
            return got

        self.bind((self.r, self.r), f"{total}.to(ts.i32)", value)

    def share(self) -> None:
        """Write a tile to a shared buffer, or read one."""
        name = self.pick(self.buffers)
        shape, stage, by = self.buffers[name], int(self.rng.integers(2)), self.pick(["", *self.starts])
        text = f"{name}[({by} + {stage}) % 2]" if by else f"{name}[{stage}]"

        def at(env: Env) -> int:
            return (env[by] + stage) % 2 if by else stage

        if self.chance(50):
            value = self.tile(shape)

            def step(env: Env) -> None:
                env[name][at(env)] = env[value]

            self.say("ts.tile.barrier()", lambda env: None)
            self.say(f"{text} = {value}", step)
            self.say("ts.tile.barrier()", lambda env: None)
        else:
            self.bind(shape, f"{text} % {PRIME}", lambda env: env[name][at(env)])

    def exchange(self) -> None:
        """Exchange the tiles of two or three names."""
        shape = self.pick(self.tiles.values()) if self.tiles else (self.n,)
        names = [name for name, its in self.tiles.items() if its == shape][-3:]
        if len(names) < 2:
            return
        turned = names[1:] + names[:1]

        def step(env: Env) -> None:
            values = [env[name] for name in turned]
            env.update(zip(names, values, strict=True))

        self.say(f"{', '.join(names)} = {', '.join(turned)}", step)

    def loop(self) -> None:
        """Repeat statements, by number or while a scalar says so."""
        if not self.depth:
            return
        counter, times = self.fresh("t"), int(self.rng.integers(0, 4))
        if self.chance(70):
            with self.block(f"for {counter} in ts.tile.range({self.pick([str(times), f'p + {times}'])}):") as inside:
                text = self.lines[-1]
                self.starts.append(counter)
                self.statements(4)
            number: Callable[[Env], int] = (lambda env: env["p"] + times) if "p +" in text else lambda env: times

            def step(env: Env) -> None:
                for at in range(number(env)):
                    env[counter] = at
                    run(inside, env)

        else:
            self.say(f"{counter} = 0", lambda env: env.update({counter: 0}))
            with self.block(f"while {counter} < {times}:") as inside:
                self.statements(4)
                self.say(f"{counter} = {counter} + 1", lambda env: env.update({counter: env[counter] + 1}))

            def step(env: Env) -> None:
                while env[counter] < times:
                    run(inside, env)

        self.steps.append(step)

    def branch(self) -> None:
        """Run one of two blocks."""
        if not self.depth:
            return
        level = int(self.rng.integers(0, 3))
        with self.block(f"if {self.pick(['p', 'q'])} > {level}:") as then:
            name = self.lines[-1].split()[1]
            self.statements(3)
        otherwise: list[Step] = []
        if self.chance(60):
            with self.block("else:") as otherwise:
                self.statements(3)
        self.steps.append(lambda env: run(then if env[name] > level else otherwise, env))

    def statements(self, most: int) -> None:
        """Write a few statements."""
        self.say("pass", lambda env: None)
        kinds = (
            self.load,
            self.load,
            self.store,
            self.store,
            self.store,
            self.arithmetic,
            self.arithmetic,
            self.transpose,
            self.reshape,
            self.reshape,
            self.reduction,
            self.gather,
            self.scatter,
            self.atomic,
            self.product,
            self.power,
            self.share,
            self.share,
            self.exchange,
            self.loop,
            self.loop,
            self.branch,
        )
        for _ in range(int(self.rng.integers(2, most + 1))):
            self.pick(kinds)()

    def write(self) -> OrderedProgram:
        """Write the whole program."""
        for _ in range(2):
            shape, name = self.pick(self.shapes), self.fresh("s")
            self.buffers[name] = shape
            sizes = ", ".join(map(str, (2, *shape)))
            self.say(
                f"{name} = ts.tile.alloc_shared(({sizes}), ts.i32)",
                lambda env, name=name, shape=shape: env.update({name: np.zeros((2, *shape), np.int64)}),
            )
            self.say(f"{name}[0] = ts.tile.zeros({shape}, ts.i32)", lambda env: None)
            self.say(f"{name}[1] = ts.tile.zeros({shape}, ts.i32)", lambda env: None)
        self.say("ts.tile.barrier()", lambda env: None)
        self.statements(12)
        total = 0
        for name, shape in self.tiles.items():
            size, at = prod(shape), total

            def step(env: Env, name: str = name, at: int = at, size: int = size) -> None:
                env["O"][at : at + size] = env[name].reshape(-1)

            text = name if len(shape) == 1 else f"ts.tile.reshape({name}, ({size},))"
            self.say(f"O[b, {at}:{at + size}] = {text}", step)
            total += size
        total = max(total, 1)
        head = [
            "import tessera as ts",
            "",
            "",
            "@ts.kernel",
            "def k(",
            f"    X: ts.Tensor['B', {self.n}, ts.{self.dtype}],",
            f"    M: ts.Tensor['B', {self.r}, {self.c}, ts.{self.dtype}],",
            f"    O: ts.Tensor['B', {total}, ts.i32],",
            "    p: int,",
            "    q: int,",
            "):",
            "    for b in ts.tile.grid((B, 1)):",
        ]
        source = "\n".join([*head, *self.lines, ""])
        return OrderedProgram(source, self.n, (self.r, self.c), total, self.dtype, self.steps)


def ordered_program(seed: int) -> OrderedProgram:
    """Return the program of a seed."""
    return OrderedPrograms(np.random.default_rng(seed)).write()
