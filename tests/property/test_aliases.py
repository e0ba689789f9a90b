"""Random kernels whose arguments share memory: accesses happen in program order, as in NumPy.

The source of a kernel has a meaning of its own: run as Python, with NumPy in the place of `ts`, on arrays whose loads
copy. Each kernel is called with several patterns of sharing: which arguments are one array, or a reshaped, shortened,
transposed or retyped view that starts where another does.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.driver.binding import canonical_strides, tensor_facts, with_aliases
from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.driver.settings import settings
from tessera.frontend.build import build_kernel
from tessera.frontend.signature import Signature
from tessera.frontend.specialize import Specialization
from tessera.interp import interpret
from tessera.ir.passes import PassRunner
from tessera.runtime.readers import view_of
from tessera.runtime.views import ArrayView
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named

SIZE = 128
COUNT = 32
"""Elements of an array, and of every tile."""
SHAPES = {"matrix": (8, 16), "turned": (8, 16), "unsigned": (8, 16), "flat": (128,), "short": (4, 16)}
ANNOTATIONS = {
    "matrix": '"m", "n", ts.i32',
    "turned": '"m", "n", ts.i32',
    "unsigned": '"m", "n", ts.u32',
    "flat": '"p", ts.i32',
    "short": '"h", "n", ts.i32',
}
PATTERNS = ((0, 1, 2), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 0, 0))
"""The buffer of each of three arguments."""


def view(buffer: np.ndarray, kind: str) -> np.ndarray:
    """Return an argument of a kind that starts where a buffer does."""
    if kind == "square":
        return buffer
    if kind == "turned":
        return buffer.reshape(16, 8).T
    typed = buffer.view(np.uint32) if kind == "unsigned" else buffer
    return typed[: int(np.prod(SHAPES[kind]))].reshape(SHAPES[kind])


class Writer:
    """Writes the body of a random kernel."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = [rng.choice([*SHAPES, "matrix", "flat"]) for _ in range(3)]
        self.lines: list[str] = []
        self.tiles: list[str] = []

    @staticmethod
    def buffer(seed: int) -> np.ndarray:
        """Return an array of small numbers."""
        return np.random.default_rng(seed).integers(0, 100, SIZE).astype(np.int32)

    def place(self, argument: int, counter: str) -> tuple[str, tuple[int, ...]]:
        """Return the text and the shape of a box in an argument, moved by a loop's counter of at most 2."""
        rng, shape, room = self.rng, SHAPES[self.kinds[argument]], 2 if counter else 0
        if len(shape) == 1:
            start = rng.randrange(shape[0] - COUNT - room + 1)
            at = f"{start} + {counter}" if counter else f"{start}"
            if rng.random() < 0.3:
                return f"p{argument}[(i * {rng.choice([1, 5, 31])} + {rng.randrange(9)}) % 32 + {at}]", (COUNT,)
            return f"p{argument}[{at}:{at} + {COUNT}]", (COUNT,)
        rows, columns = rng.choice([box for box in ((2, 16), (4, 8), (8, 4)) if box[0] <= shape[0]])
        row = rng.randrange(shape[0] - rows + 1)
        column = rng.randrange(max(shape[1] - columns - room, 0) + 1)
        at = f"{column} + {counter}" if counter and column + columns + room <= shape[1] else f"{column}"
        return f"p{argument}[{row}:{row} + {rows}, {at}:{at} + {columns}]", (rows, columns)

    def load(self, pad: str, counter: str) -> None:
        """Load a tile; all tiles are i32 vectors."""
        argument, name = self.rng.randrange(3), f"t{len(self.lines)}"
        box, shape = self.place(argument, counter)
        if len(shape) == 2 and self.rng.random() < 0.5:
            box = f"ts.tile.transpose({box})"
        self.lines.append(f"{pad}{name} = ts.tile.reshape(ts.tile.cast({box}, ts.i32), ({COUNT},))")
        self.tiles.append(name)

    def store(self, pad: str, counter: str) -> None:
        """Store what is computed from one or two tiles, and perhaps from a sum or an element."""
        rng = self.rng
        first, second = rng.choice(self.tiles[-3:]), rng.choice(self.tiles[-3:])
        value = rng.choice([first, f"{first} + 1", f"({first} * 3 + {second}) & 1023", f"{first} ^ {second}"])
        if rng.random() < 0.2:
            value = f"({value}) + (ts.tile.sum({second}) & 7)"
        argument = rng.randrange(3)
        box, shape = self.place(argument, counter)
        if rng.random() < 0.2:
            other = rng.randrange(3)
            at = ", ".join(str(rng.randrange(size)) for size in SHAPES[self.kinds[other]])
            value = f"({value}) + ts.tile.cast(p{other}[{at}], ts.i32)"
        dtype = "ts.u32" if self.kinds[argument] == "unsigned" else "ts.i32"
        text = f"ts.tile.cast(ts.tile.reshape({value}, {shape}), {dtype})"
        self.lines.append(f"{pad}{box} = {text}")

    def statements(self, count: int, pad: str, counter: str) -> None:
        """Write some loads and stores."""
        self.load(pad, counter)
        for _ in range(count):
            self.rng.choice([self.load, self.store, self.store])(pad, counter)

    def source(self) -> str:
        """Return the kernel's source."""
        self.statements(4, "    ", "")
        if self.rng.random() < 0.6:
            self.lines.append("    for k in ts.tile.range(0, 3):")
            before = list(self.tiles)
            self.statements(4, "        ", "k")
            self.tiles = before
        self.statements(2, "    ", "")
        self.store("    ", "")
        params = ", ".join(f"p{i}: ts.Tensor[{ANNOTATIONS[kind]}]" for i, kind in enumerate(self.kinds))
        body = "\n".join([f"    i = ts.tile.arange({COUNT})", *self.lines])
        return f"import tessera as ts\n\n\ndef kernel({params}):\n{body}\n"


class Products:
    """Writes a kernel of products of square matrices, whose results are whole numbers below 8."""

    kinds = ("square",) * 3

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dtype = rng.choice(["f32", "bf16"])

    def buffer(self, seed: int) -> np.ndarray:
        """Return a matrix of numbers below 8."""
        numbers = np.random.default_rng(seed).integers(0, 8, (32, 32))
        return numbers.astype(ts.bf16.numpy() if self.dtype == "bf16" else np.float32)

    def source(self) -> str:
        """Return the kernel's source."""
        rng, lines = self.rng, list[str]()
        step, rows = rng.choice([8, 16, 32]), rng.choice([16, 32])
        pad = "    "
        if rng.random() < 0.5:
            lines.append("    for r in ts.tile.range(0, 2):")
            pad = "        "
        for number in range(rng.randrange(1, 4)):
            a, b, out = (rng.randrange(3) for _ in range(3))
            row, at, column = (rng.choice([0, 32 - rows]) for _ in range(3))
            lines.append(f"{pad}kept = p{rng.randrange(3)}[{at}:{at} + {rows}, 0:32]")
            lines.append(f"{pad}sums{number} = ts.tile.zeros(({rows}, 32), ts.f32)")
            lines.append(f"{pad}for k in ts.tile.range(0, 32, {step}):")
            left = f"p{a}[{row}:{row} + {rows}, k:k + {step}]"
            right = f"p{b}[k:k + {step}, 0:32]"
            if rng.random() < 0.3:
                right = f"ts.tile.transpose(p{b}[0:32, k:k + {step}])"
            lines.append(f"{pad}    sums{number} = ts.tile.mma({left}, {right}, sums{number})")
            if rng.random() < 0.4:  # the same loop stores what later products may read
                lines.append(f"{pad}    p{rng.randrange(3)}[{column}:{column} + {rows}, 0:32] = kept")
            whole = f"ts.tile.cast(sums{number}, ts.i32) & 7"
            lines.append(f"{pad}p{out}[{column}:{column} + {rows}, 0:32] = ts.tile.cast({whole}, ts.{self.dtype})")
        params = ", ".join(f'p{i}: ts.Tensor["m", "n", ts.{self.dtype}]' for i in range(3))
        return f"import tessera as ts\n\n\ndef kernel({params}):\n" + "\n".join(lines) + "\n"


class Copied:
    """An array whose loads copy: a tile is a value."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, place: Any) -> Any:
        return self.array[place].copy()

    def __setitem__(self, place: Any, value: Any) -> None:
        self.array[place] = value


def numpy_meaning(source: str) -> Callable[..., Any]:
    """Return the kernel as a function on NumPy arrays."""
    tile = SimpleNamespace(
        arange=np.arange,
        reshape=np.reshape,
        transpose=np.transpose,
        range=range,
        sum=lambda t: t.sum(dtype=np.int32),
        cast=lambda t, dtype: t.astype(dtype),
        zeros=np.zeros,
        mma=lambda a, b, sums: sums + a.astype(np.float32) @ b.astype(np.float32),
    )
    dtypes = {"i32": np.int32, "u32": np.uint32, "f32": np.float32, "bf16": ts.bf16.numpy()}
    names: dict[str, Any] = {"ts": SimpleNamespace(tile=tile, **dtypes)}
    body = source.split("\n\n\n", 1)[1]
    head, rest = body.split("):\n", 1)
    exec(f"def kernel(p0, p1, p2):\n{rest}", names)  # the signature's annotations are Tessera's
    assert head.startswith("def kernel(")
    return lambda *arrays: names["kernel"](*map(Copied, arrays))


def kernel_of(source: str, folder: Path) -> Any:
    """Return the kernel; its source is read from a file."""
    path = folder / f"aliased_{abs(hash(source))}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return ts.kernel(module.kernel)


def check(
    writer: Writer | Products,
    folder: Path,
    repeats: int,
    place: Callable[[list[np.ndarray]], Callable[[int, str], Any]],
) -> None:
    """Call a kernel with every pattern of sharing.

    Args:
        writer: writes the kernel.
        folder: for its source.
        repeats: rounds of calls; the later ones are served by records of the entry.
        place: puts buffers where they are used; gives the argument of a buffer's number and a kind.
    """
    source = writer.source()
    meaning, kernel = numpy_meaning(source), kernel_of(source, folder)
    for turn in range(repeats):
        for pattern in PATTERNS:
            expected = [writer.buffer(3 * turn + number) for number in range(3)]
            got = [buffer.copy() for buffer in expected]
            meaning(*(view(expected[b], kind) for b, kind in zip(pattern, writer.kinds, strict=True)))
            argument = place(got)
            kernel(*(argument(b, kind) for b, kind in zip(pattern, writer.kinds, strict=True)))
            argument(-1, "")
            for ours, theirs in zip(got, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs, f"{pattern} of {writer.kinds}\n{source}")


def on_host(arrays: list[np.ndarray]) -> Callable[[int, str], Any]:
    """Pass NumPy arrays."""
    return lambda number, kind: None if number < 0 else view(arrays[number], kind)


def kernels(count: int, products: int) -> list[Any]:
    """Return the writers of some kernels, and of some of products."""
    found: list[Any] = [pytest.param(Writer(random.Random(seed)), id=f"{seed}") for seed in range(count)]
    more = (Products(random.Random(seed)) for seed in range(products))
    return found + [pytest.param(writer, id=f"products-{seed}") for seed, writer in enumerate(more)]


@pytest.mark.parametrize("writer", kernels(10, 4))
def test_the_cpu_keeps_program_order(writer: Writer | Products, tmp_path: Path) -> None:
    check(writer, tmp_path, 4, on_host)


@pytest.mark.parametrize("writer", kernels(8, 4))
def test_the_interpreter_keeps_program_order(
    writer: Writer | Products, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings(), "interpret", True)
    check(writer, tmp_path, 1, on_host)


def scheduled(function: Callable[..., Any], arrays: list[np.ndarray], target: str) -> ModuleOp:
    """Return what a call compiles to for a GPU, before it is lowered."""
    signature = Signature.of(function)
    pointers, views, _ = zip(*map(view_of, arrays), strict=True)
    strides = [canonical_strides(view) for view in views]
    facts = [
        tensor_facts(param.name, pointer, view, steps)
        for param, pointer, view, steps in zip(signature.tensors, pointers, views, strides, strict=True)
    ]
    module = build_kernel(signature, Specialization(with_aliases(facts, pointers, views, strides))).module
    runner = PassRunner(verify="pass")
    runner.run(module, "canonicalize", CANONICALIZE)
    runner.run(module, "schedule", schedule_passes(target_named(target), Knobs.from_config({})))
    return module


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("writer", kernels(2, 5))
def test_gpu_schedules_keep_program_order(writer: Writer | Products, target: str, tmp_path: Path) -> None:
    def call(*arrays: np.ndarray) -> None:
        interpret(scheduled(kernel.__wrapped__, list(arrays), target), arrays, order_seed=0)

    source = writer.source()
    meaning, kernel = numpy_meaning(source), kernel_of(source, tmp_path)
    for pattern in PATTERNS:
        expected = [writer.buffer(number) for number in range(3)]
        got = [buffer.copy() for buffer in expected]
        for run, arrays in ((meaning, expected), (call, got)):
            run(*(view(arrays[b], kind) for b, kind in zip(pattern, writer.kinds, strict=True)))
        np.testing.assert_array_equal(got, expected, f"{pattern} of {writer.kinds}\n{source}")


def on_gpu(arrays: list[np.ndarray]) -> Callable[[int, str], Any]:
    """Pass views of arrays on the GPU, which are copied back in the end."""
    from tessera.runtime.cuda_array import DeviceArray

    there = [ts.asarray(array, device="cuda") for array in arrays]

    def argument(number: int, kind: str) -> Any:
        if number < 0:
            for array, held in zip(arrays, there, strict=True):
                array[:] = held.numpy()
            return None
        _, facts, _ = view_of(view(arrays[number], kind))
        seen = ArrayView(facts.shape, facts.strides, facts.dtype, there[number].device, False)
        return DeviceArray.borrow(there[number].pointer, seen, there[number])

    return argument


@pytest.mark.device
@pytest.mark.parametrize("writer", kernels(24, 12))
def test_the_gpu_keeps_program_order(writer: Writer | Products, tmp_path: Path) -> None:
    check(writer, tmp_path, 3, on_gpu)
