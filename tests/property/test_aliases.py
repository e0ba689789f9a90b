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

import tessera as ts
from tessera.jit.settings import settings
from tessera.runtime.views import ArrayView, view_of

SIZE = 128
COUNT = 32
"""Elements of an array, and of every tile."""
SHAPES = {"matrix": (8, 16), "turned": (8, 16), "unsigned": (8, 16), "flat": (128,), "short": (4, 16)}
ANNOTATIONS = {
    "matrix": '"m", "n", ts.i32', "turned": '"m", "n", ts.i32', "unsigned": '"m", "n", ts.u32', "flat": '"p", ts.i32',
    "short": '"h", "n", ts.i32',
}  # fmt: skip
PATTERNS = ((0, 1, 2), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 0, 0))
"""The buffer of each of three arguments."""


def view(buffer: np.ndarray, kind: str) -> np.ndarray:
    """Return an argument of a kind that starts where a buffer does."""
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

    def place(self, argument: int, counter: str) -> tuple[str, tuple[int, ...]]:
        """Return the text and the shape of a box in an argument, moved by a loop's counter of at most 2."""
        rng, shape, room = self.rng, SHAPES[self.kinds[argument]], 2 if counter else 0
        if len(shape) == 1:
            start = rng.randrange(shape[0] - COUNT - room + 1)
            at = f"{start} + {counter}" if counter else f"{start}"
            if rng.random() < 0.3:
                return f"p{argument}[(i * {rng.choice([1, 5, 31])} + {rng.randrange(9)}) % 32 + {at}]", (
                    COUNT,
                )
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
        arange=np.arange, reshape=np.reshape, transpose=np.transpose, range=range,
        sum=lambda t: t.sum(dtype=np.int32), cast=lambda t, dtype: t.astype(dtype),
    )  # fmt: skip
    names: dict[str, Any] = {"ts": SimpleNamespace(tile=tile, i32=np.int32, u32=np.uint32)}
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


def buffers(seed: int) -> list[np.ndarray]:
    """Return three buffers of small numbers, on 64-byte boundaries as tile kernels like them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 100, SIZE).astype(np.int32) for _ in range(3)]


def check(
    seed: int, folder: Path, repeats: int, place: Callable[[list[np.ndarray]], Callable[[int, str], Any]]
) -> None:
    """Call a kernel with every pattern of sharing.

    Args:
        seed: of the kernel.
        folder: for its source.
        repeats: rounds of calls; the later ones are served by records of the entry.
        place: puts buffers where they are used; gives the argument of a buffer's number and a kind.
    """
    writer = Writer(random.Random(seed))
    source = writer.source()
    meaning, kernel = numpy_meaning(source), kernel_of(source, folder)
    for turn in range(repeats):
        for pattern in PATTERNS:
            expected, got = buffers(seed + turn), buffers(seed + turn)
            meaning(*(view(expected[b], kind) for b, kind in zip(pattern, writer.kinds, strict=True)))
            argument = place(got)
            kernel(*(argument(b, kind) for b, kind in zip(pattern, writer.kinds, strict=True)))
            argument(-1, "")
            for ours, theirs in zip(got, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs, f"{pattern} of {writer.kinds}\n{source}")


def on_host(arrays: list[np.ndarray]) -> Callable[[int, str], Any]:
    """Pass NumPy arrays."""
    return lambda number, kind: None if number < 0 else view(arrays[number], kind)


@pytest.mark.parametrize("seed", range(16))
def test_the_cpu_keeps_program_order(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, 5, on_host)


@pytest.mark.parametrize("seed", range(16))
def test_the_interpreter_keeps_program_order(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings(), "interpret", True)
    check(seed, tmp_path, 1, on_host)


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
@pytest.mark.parametrize("seed", range(48))
def test_the_gpu_keeps_program_order(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, 3, on_gpu)
