"""States what compiling takes against the size of a program: more statements, stores, loads, loop levels, registers.

    python benchmarks/compile_time.py [--target cpu sm_90a] [--shapes statements stores] [--most 10000]

Processor seconds of the whole process, LLVM and the assembler included. The growth is the exponent between two sizes:
1 where twice the program takes twice the time.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

import tessera as ts

HEAD = """import tessera as ts
V = ts.Tensor["n", ts.f32]


@ts.kernel
def kernel(a: V, b: V):
    for i in ts.tile.grid((n, {block})):
        x = a[i : i + {block}]
"""
TAIL = "        b[i : i + {block}] = x\n"


def statements(size: int) -> str:
    """A chain of multiplications and additions, five ops a line."""
    lines = [f"        x = x * {1 + number / 4096} + {number}.0\n" for number in range(size // 5)]
    return HEAD.format(block=128) + "".join(lines) + TAIL.format(block=128)


def stores(size: int) -> str:
    """Stores to one array, in the program's order."""
    lines = [f"        b[i : i + 128] = x + {number}.0\n" for number in range(size)]
    return HEAD.format(block=128) + "".join(lines)


def loads(size: int) -> str:
    """A sum of slices, none of which is another."""
    terms = " + ".join(f"a[i + {number} : i + {number + 128}]" for number in range(size))
    return HEAD.format(block=128) + f"        x = {terms}\n" + TAIL.format(block=128)


def levels(size: int) -> str:
    """Loops in loops."""
    lines: list[str] = []
    for level in range(size):
        indent = "    " * (level + 2)
        lines += [f"{indent}for k{level} in ts.tile.range(0, n, {level + 1}):\n", f"{indent}    x = x * 0.5 + 1.0\n"]
    return HEAD.format(block=128) + "".join(lines) + TAIL.format(block=128)


def registers(size: int) -> str:
    """Exponentials of a tile of which each of 128 threads holds `size` elements."""
    block = 128 * size
    text = HEAD.format(block=block) + "        x = ts.tile.exp(x)\n" + TAIL.format(block=block)
    return text.replace("@ts.kernel\n", "@ts.kernel.autotune(space={'num_warps': [4]})\n")


SHAPES: dict[str, tuple[Callable[[int], str], tuple[int, ...]]] = {
    "statements": (statements, (625, 2500, 10000)),
    "stores": (stores, (64, 256, 512)),
    "loads": (loads, (64, 256, 512)),
    "levels": (levels, (4, 8, 16)),
    "registers": (registers, (64, 256, 512)),
}
"""How programs grow, and the sizes that are measured."""


def module_of(text: str) -> ModuleType:
    """Return a module of this source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("program", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def seconds(shape: str, size: int, target: str) -> float:
    """Return the processor seconds that a program takes to compile."""
    kernel: Any = module_of(SHAPES[shape][0](size)).kernel
    start = time.process_time()
    ts.compile(kernel, target=target)
    return time.process_time() - start


def growth(first: tuple[int, float], second: tuple[int, float]) -> float:
    """Return the exponent of the time between two sizes, each with its seconds."""
    return math.log(second[1] / first[1]) / math.log(second[0] / first[0])


def main() -> int:
    """Print the table; returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--target", nargs="+", default=["cpu", "sm_90a"])
    options.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    options.add_argument("--most", type=int, default=10000)
    given = options.parse_args()
    table = Table("target", "program", "s by size", "growth", title="processor seconds to compile")
    for target, shape in itertools.product(given.target, given.shapes):
        seconds(shape, 2, target)  # imports
        sizes = [size for size in SHAPES[shape][1] if size <= given.most]
        found = [(size, seconds(shape, size, target)) for size in sizes]
        grows = ", ".join(f"{growth(*pair):.2f}" for pair in itertools.pairwise(found))
        table.add_row(target, shape, ", ".join(f"{size}: {took:.2f}" for size, took in found), grows)
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
