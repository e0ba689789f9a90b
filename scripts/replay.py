"""Compiles many kernels for many targets and keeps what was generated, so that two trees can be compared.

Usage: a change that is to alter no code shows no difference:

    python scripts/replay.py before          # in the tree before
    python scripts/replay.py after           # in the tree after
    python scripts/replay.py after --against before

A folder gets one file for each kernel and target: PTX or assembly, or the error where the target has no code. The
kernels are the examples, plans of `ops.linalg` and generated programs. The exit status of a comparison is 1 when a
file differs.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import itertools
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = 60
"""Generated programs: those of the seeds below it."""

TARGETS = (
    "x86-64",
    "x86-64-v3",
    "x86-64-v4",
    "sapphirerapids",
    "graniterapids",
    "aarch64",
    "sm_70",
    "sm_75",
    "sm_80",
    "sm_86",
    "sm_89",
    "sm_90",
    "sm_90a",
    "sm_100a",
    "sm_120a",
)
PROGRAM_TARGETS = ("x86-64", "x86-64-v4", "sapphirerapids", "aarch64", "sm_75", "sm_80", "sm_90a")

Item = tuple[str, str, str]
"""A kind of kernel, its name, a target."""

PRODUCTS: tuple[tuple[str, tuple[int, int, int], str, dict[str, Any]], ...] = (
    ("square", (4096, 4096, 4096), "bf16", {}),
    ("square-f16", (2048, 2048, 2048), "f16", {}),
    ("square-f32", (1024, 1024, 1024), "f32", {}),
    ("tf32", (4096, 4096, 4096), "f32", {"compute": "tf32"}),
    ("f64", (512, 512, 512), "f64", {}),
    ("int8", (2048, 2048, 2048), "i8", {}),
    ("fp8", (4096, 4096, 4096), "fp8_e4m3", {"trans_b": True}),
    ("odd", (1000, 777, 333), "bf16", {}),
    ("odd-tn", (1000, 777, 333), "f16", {"trans_a": True}),
    ("nt", (4096, 4096, 4096), "bf16", {"trans_b": True}),
    ("few-rows", (16, 4096, 4096), "bf16", {}),
    ("deep", (256, 256, 65536), "bf16", {}),
    ("wide", (8192, 1024, 512), "bf16", {"out_dtype": "f32"}),
    ("triangle", (2048, 2048, 2048), "bf16", {"triangular_only": "lower"}),
    ("stream", (3000, 3000, 3000), "bf16", {"stream_k": 1}),
    ("split", (512, 512, 16384), "bf16", {"split_k": 4}),
)


_DTYPES = ("out_dtype", "compute")


def _examples() -> dict[str, tuple[Callable[[], Any], dict[str, int], dict[str, Any]]]:
    from tests.examples.test_examples import COMPILED

    return COMPILED


def items() -> Iterator[Item]:
    """Yield all kernels with all their targets."""
    targets = TARGETS
    yield from (("example", name, target) for name, target in itertools.product(_examples(), targets))
    yield from (("product", name, target) for (name, *_), target in itertools.product(PRODUCTS, targets))
    names = (str(seed) for seed in range(PROGRAMS))
    yield from (("program", name, target) for name, target in itertools.product(names, PROGRAM_TARGETS))


def _compile(item: Item, folder: Path) -> Any:
    import tessera as ts

    kind, name, target = item
    dump = ("ptx",) if target.startswith("sm_") else ("asm",)
    if kind == "example":
        kernel, dims, constexprs = _examples()[name]
        return ts.compile(kernel(), target=target, dims=dims, dump=dump, **constexprs).dumps
    if kind == "product":
        _, sizes, dtype, options = next(product for product in PRODUCTS if product[0] == name)
        given = {key: getattr(ts, value) if key in _DTYPES else value for key, value in options.items()}
        return ts.ops.linalg.gemm.compile(*sizes, getattr(ts, dtype), target=target, dump=dump, **given).dumps
    from tessera.tools.fuzz.generate import generate
    from tessera.tools.fuzz.generate_scope import Options
    from tessera.tools.fuzz.run import load_kernel

    program = generate(int(name), Options())
    return ts.compile(load_kernel(program, folder), target=target, dims=program.dims, dump=dump).dumps


@functools.cache
def _without_assembler() -> None:
    """PTX is what the compiler decides; assembling it takes most of the time."""
    from tessera.backends import nvidia

    nvidia.can_assemble = lambda _: False  # pyright: ignore[reportAttributeAccessIssue, reportUnknownLambdaType]


def made(item: Item) -> tuple[Item, str]:
    """Return the text generated for a kernel, or its error."""
    from tessera.errors import TesseraError

    _without_assembler()
    with tempfile.TemporaryDirectory() as folder:
        try:
            (text,) = _compile(item, Path(folder)).values()
        except TesseraError as error:
            return item, f"error {error.code}: {error.message}\n"
    # Facts about the kernel, which other trees may record otherwise.
    code = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("// tessera."))
    # LLVM numbers the calls of all that a process compiles.
    return item, re.sub(r"// callseq \d+", "// callseq", code.replace(folder, ""))


def write(folder: Path, jobs: int) -> None:
    """Compile all kernels."""
    folder.mkdir(parents=True)
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=60) as pool:
        for (kind, name, target), text in pool.imap_unordered(made, items(), chunksize=4):
            (folder / f"{kind}-{name}.{target}").write_text(text, encoding="utf-8")


def differences(folder: Path, other: Path) -> list[str]:
    """Return one line, and the first lines that differ, for each file that is not the same in both folders."""
    names = sorted({path.name for place in (folder, other) for path in place.iterdir()})
    found: list[str] = []
    for name in names:
        texts = [
            (place / name).read_text(encoding="utf-8").splitlines() if (place / name).exists() else ["missing"]
            for place in (other, folder)
        ]
        if texts[0] != texts[1]:
            lines = itertools.islice(difflib.unified_diff(*texts, lineterm="", n=0), 2, 8)
            found.append("\n  ".join([name, *lines]))
    return found


def main() -> int:
    """Write a folder, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, help="compare with this folder; compile only what is not there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if not options.folder.exists():
        write(options.folder, options.jobs)
    if options.against is None:
        return 0
    found = differences(options.folder, options.against)
    count = len(list(options.folder.iterdir()))
    print("\n".join([*found, f"{len(found)} of {count} files differ"]))
    return bool(found)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "examples"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    raise SystemExit(main())
