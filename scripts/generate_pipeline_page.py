"""Writes docs/how-a-kernel-is-compiled.md: one GEMM through every stage, with the dumps the compiler makes today.

python scripts/generate_pipeline_page.py          # writes the page
python scripts/generate_pipeline_page.py --check  # fails when the page is not what would be written
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-a-kernel-is-compiled.md"
TEMPLATE = Path(__file__).with_name("how-a-kernel-is-compiled.template.md")
TARGET, CPU_TARGET = "sm_80", "x86-64-v3"
WIDTH = 150


# fmt: off
@ts.kernel.autotune(space=dict(BM=[64], BN=[64], BK=[32], stages=[2], num_warps=[4]))
def gemm(A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.f32]):  # noqa: D103, F821, UP037
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):  # noqa: F821
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):  # noqa: F821
            acc = ts.tile.mma(A[m:m+ctx.BM, k:k+ctx.BK], B[k:k+ctx.BK, n:n+ctx.BN], acc)
        C[m:m+ctx.BM, n:n+ctx.BN] = acc
    return C
# fmt: on


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    text = render()
    if parser.parse_args().check:
        same = PAGE.read_text(encoding="utf-8") == text
        print("up to date" if same else f"{PAGE} is out of date: run {sys.argv[0]}")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    """Return the page."""
    canonical, dumps, facts = _compile()
    cpu = ts.compile(gemm, target=CPU_TARGET, dump=["tirt", "asm"], dims={"M": 4096, "N": 4096, "K": 4096})
    source = re.sub(r"  # noqa:.*", "", textwrap.dedent(inspect.getsource(gemm.__wrapped__)))
    passes = (*CANONICALIZE, *schedule_passes(target_named(TARGET), Knobs()))
    loop = dumps["ptx"][dumps["ptx"].index("bar.sync") :]
    return TEMPLATE.read_text(encoding="utf-8").format(
        source=source.strip(),
        passes="\n".join(
            f"| `{one.name}` | {(type(one).__doc__ or '').strip().splitlines()[0]} |" for one in dict.fromkeys(passes)
        ),
        canonical=_cut(canonical),
        scheduled=_cut(_from(dumps["tirh"], r"scf\.for", 14)),
        lowered=_cut(_short_layouts(_from(dumps["tirt"], r"scf\.for", 20))),
        layout=_layout_of_accumulator(dumps["tirt"]),
        llvm=_cut("\n".join(_lines(dumps["ll"], r"ldmatrix|mma\.sync")[:6])),
        ptx=_cut("\n".join(_lines(loop, r"cp\.async|ldmatrix|mma\.sync|bar\.sync")[:14])),
        threads=facts["kernels"]["gemm"]["threads"],
        shared=facts["kernels"]["gemm"]["shared_bytes"],
        products=facts["instructions"]["mma"],
        cpu_lowered=_cut(_short_layouts("\n".join(_lines(cpu.dumps["tirt"], r"tensor_core|mma|microkernel")[:3]))),
        asm=_cut("\n".join(_lines(cpu.dumps["asm"], r"vfmadd231ps")[:6])),
    )


def _compile() -> tuple[str, dict[str, str], dict[str, Any]]:
    """Compile with the dump of each pass; returns the canonical TIR-H, the stages' dumps and the reflection."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TESSERA_DUMP_DIR"] = folder
        try:
            artifact = ts.compile(
                gemm,
                target=TARGET,
                dump=["tirh", "tirt", "ll", "ptx"],
                dims={"M": 4096, "N": 4096, "K": 4096},
            )
        finally:
            del os.environ["TESSERA_DUMP_DIR"]
        last = sorted(Path(folder).glob("*-canonicalize-*.mlir"))[-1].read_text(encoding="utf-8")
    return last.split("\n", 1)[1], {k: str(v) for k, v in artifact.dumps.items()}, artifact.reflection


def _from(text: str, pattern: str, count: int) -> str:
    """Return `count` lines from the first that matches."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if re.search(pattern, line))
    return "\n".join(lines[start : start + count])


def _lines(text: str | bytes, pattern: str) -> list[str]:
    return [line.strip() for line in str(text).splitlines() if re.search(pattern, line)]


def _cut(text: str) -> str:
    """Return text without its common indentation, over-long lines cut where "…" stands."""
    lines = textwrap.dedent(text.expandtabs(4)).strip("\n").splitlines()
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines)


_LAYOUT = re.compile(r"#tessera_target\.layout<.*?>")


def _short_layouts(text: str) -> str:
    return _LAYOUT.sub("layout", text)


def _layout_of_accumulator(text: str) -> str:
    found = re.search(r"scf\.for.*?fragment<64x64xf32, (#tessera_target\.layout<.*?>)", text)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    raise SystemExit(main())
