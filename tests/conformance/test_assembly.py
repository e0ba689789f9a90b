"""Inline assembly: elementwise, of every width, in tiles of odd sizes, under masks, in loops, with several operands."""

from collections.abc import Callable
from platform import machine

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT
from tessera.tools.fuzz.assembly import KINDS, text_for
from tests.conformance.harness import BACKENDS, Case, Output, check, conformance, dtype

EMULATED = tuple(one for one in BACKENDS if not one.startswith("threads"))  # NumPy runs no assembly
ALL = (*EMULATED, "ptx-sm_80", "ptx-sm_90a")

NATIVE = ("cpu",) if machine() == "x86_64" else ()
"""CPUs that the texts are for."""

FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@ts.function
def _wrong(x, y):
    """Stands for the meaning: results show whether the instructions ran."""
    return x - x - y


def _applied(of: ts.DType, fn: str, width: int) -> Callable[..., None]:
    texts = text_for(fn, of.name)
    ptx, x86_64 = texts["ptx"], texts["x86_64"]

    def kernel(x: ts.Tensor["M", "N", of], y: ts.Tensor["N", of], z: ts.Tensor["M", "N", of]):
        for i, j in ts.tile.grid((M, 3), (N, width)):
            row = y[j : j + width]
            z[i : i + 3, j : j + width] = ts.tile.inline_asm(
                x[i : i + 3, j : j + width], row, meaning=_wrong, ptx=ptx, x86_64=x86_64
            )

    return kernel


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], of: ts.DType) -> np.ndarray:
    if of.is_float:
        return rng.integers(-99, 99, shape).astype(of.numpy())
    return (
        rng.integers(0, 1 << of.bits, shape, np.uint64, endpoint=False).astype(of.numpy())
        if of.bits < 64
        else (rng.integers(0, 1 << 63, shape, np.uint64).astype(of.numpy()))
    )


def _reference(fn: str) -> Callable[..., np.ndarray]:
    def apply(x: np.ndarray, y: np.ndarray, _z: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return FUNCTIONS[fn](x, y)

    return apply


@conformance(
    [
        Case(
            f"{fn}-{of}-{width}",
            _applied(dtype(of), fn, width),
            lambda rng, of=of, width=width: [
                _numbers(rng, (7, 2 * width + 1), dtype(of)),
                _numbers(rng, (2 * width + 1,), dtype(of)),
                Output((7, 2 * width + 1), dtype(of)),
            ],
            _reference(fn),
            EXACT,
            backends=(*NATIVE, "cuda", "ptx-sm_80", "ptx-sm_90a"),
        )
        for of in KINDS
        for fn, width in (("add", 37), ("mul", 16), ("xor", 5))
        if text_for(fn, of) is not None
    ]
)
def test_instructions_run_for_each_element(case, backend):
    check(case, backend)


@ts.function
def _between(x, low, count):
    return ts.tile.cast(ts.tile.where(x > low, x * x, -x), ts.i64) + count


def _mixed(x: ts.Tensor["N", ts.i32], y: ts.Tensor["N", ts.i64], low: ts.i32):
    for i in ts.tile.grid((N, 40)):
        total = ts.tile.zeros((40,), ts.i64)
        for k in ts.tile.range(3):
            tile = x[i + k : i + k + 40]
            if tile != 5:
                found = ts.tile.inline_asm(
                    tile,
                    low,
                    total,
                    meaning=_between,
                    ptx="{ .reg .pred %up; .reg .b32 %a, %b; setp.gt.s32 %up, $1, $2; mul.lo.s32 %a, $1, $1; "
                    "neg.s32 %b, $1; selp.b32 %a, %a, %b, %up; cvt.s64.s32 $0, %a; add.s64 $0, $0, $3; }",
                    x86_64="movl $1, ${0:k}; imull $1, ${0:k}; cmpl $2, $1; jg 1f; movl $1, ${0:k}; negl ${0:k}; "
                    "1: movslq ${0:k}, $0; addq $3, $0",
                )
                total = found
        y[i : i + 40] = total


def _summed(x: np.ndarray, _y: np.ndarray, low: int) -> np.ndarray:
    total = np.zeros(len(x), np.int64)
    for k in range(3):
        tile = np.zeros_like(x)
        tile[: len(x) - k] = x[k:]
        found = np.where(tile > low, tile * tile, -tile).astype(np.int64) + total
        total = np.where(tile != 5, found, total)
    return total


@conformance(
    [
        Case(
            f"mixed-{size}",
            _mixed,
            lambda rng, size=size: [rng.integers(-9, 10, size, np.int32), Output((size,), ts.i64), 2],
            _summed,
            EXACT,
            backends=ALL,
        )
        for size in (40, 97)
    ]
)
def test_operands_of_several_dtypes_under_masks_in_loops(case, backend):
    check(case, backend)


def _acting(x: ts.Tensor["N", ts.f32], y: ts.Tensor["N", ts.f32], k: int):
    for i in ts.tile.grid((N, 64)):
        y[i : i + 64] = x[i : i + 64] + 1.0
        ts.tile.inline_asm(
            k,
            3,
            ptx="{ .reg .b32 %t; add.s32 %t, $2, 1; membar.gl; }",
            x86_64="mfence",
            aarch64="dmb ish",
            effects="io",
        )
        if k > 2:
            ts.tile.inline_asm(ptx="membar.cta;", effects="io")
        y[i : i + 64] = y[i : i + 64] * 2.0


@conformance(
    [
        Case(
            f"acting-{k}",
            _acting,
            lambda rng, k=k: [rng.standard_normal(150).astype(np.float32), Output((150,), ts.f32), k],
            lambda x, _y, _k: (x + np.float32(1)) * np.float32(2),
            EXACT,
            backends=ALL,
        )
        for k in (1, 3)
    ]
)
def test_what_acts_leaves_results_alone(case, backend):
    check(case, backend)
