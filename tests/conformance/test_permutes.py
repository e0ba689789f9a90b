"""Copies with their dimensions in another order: any sizes, any blocks, any order of memory on either side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import of_rounding
from tessera.schedule.gpu import pack_permutes
from tests.conformance.data import integers, normal
from tests.conformance.harness import BACKENDS, Case, Output, check, conformance, dtype


def _kernel(rank: int, dt: DType, block: Sequence[int]) -> Any:
    """Return a copy of tensors of a rank in blocks."""
    if rank == 2:
        first, second = block

        def copy(x: ts.Tensor["A", "B", dt], y: ts.Tensor["A", "B", dt]):
            for i, j in ts.tile.grid((A, first), (B, second)):
                y[i : i + first, j : j + second] = x[i : i + first, j : j + second]

        return copy
    if rank == 3:
        first, second, third = block

        def copy(x: ts.Tensor["A", "B", "C", dt], y: ts.Tensor["A", "B", "C", dt]):
            for i, j, k in ts.tile.grid((A, first), (B, second), (C, third)):
                y[i : i + first, j : j + second, k : k + third] = x[i : i + first, j : j + second, k : k + third]

        return copy
    first, second, third, fourth = block

    def copy(x: ts.Tensor["A", "B", "C", "D", dt], y: ts.Tensor["A", "B", "C", "D", dt]):
        for i, j, k, h in ts.tile.grid((A, first), (B, second), (C, third), (D, fourth)):
            part = x[i : i + first, j : j + second, k : k + third, h : h + fourth]
            y[i : i + first, j : j + second, k : k + third, h : h + fourth] = part

    return copy


def case_of(name: str, shape: Sequence[int], order: Sequence[int], block: Sequence[int], before: int = 0) -> Case:
    """Return a permute.

    Args:
        name: dtype.
        shape: of the tensor as it lies in memory.
        order: of its dimensions in the result.
        block: of a program, in the result's order.
        before: elements between an aligned address and the tensor.
    """
    dt = dtype(name)

    def make(rng: np.random.Generator) -> list[Any]:
        flat = (before + int(np.prod(shape)),)
        whole = integers(rng, flat, dt) if dt.is_int else normal(rng, flat, dt.storage)
        turned = whole[before:].reshape(shape).transpose(order)
        return [turned, Output(turned.shape, dt)]

    words = "-".join("x".join(map(str, part)) for part in (shape, order, block))
    return Case(
        f"{name}-{words}-{before}",
        _kernel(len(shape), dt, block),
        make,
        lambda x, y: x,
        backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"),
    )


@conformance(
    [
        case_of("f16", (3, 21, 4, 39), (3, 2, 1, 0), (32, 1, 4, 16)),
        case_of("bf16", (3, 6, 3, 66), (3, 1, 0, 2), (32, 4, 2, 4), 1),
        case_of("bf16", (70, 3, 20, 4), (1, 3, 2, 0), (1, 4, 8, 64)),
        case_of("f32", (8, 5, 16, 8), (3, 0, 2, 1), (8, 8, 8, 4)),
        case_of("bf16", (37, 5, 149), (2, 1, 0), (32, 1, 64)),
        case_of("bf16", (8, 24, 128), (2, 1, 0), (32, 8, 8)),
        case_of("i8", (19, 70, 6), (1, 2, 0), (64, 2, 16)),
        case_of("f64", (9, 33, 5), (1, 2, 0), (16, 4, 8)),
        case_of("i64", (3, 70, 9), (2, 0, 1), (8, 2, 64)),
        case_of("f32", (33, 5, 8), (1, 0, 2), (4, 16, 8)),
        case_of("bf16", (16, 300), (1, 0), (128, 16)),
        case_of("f16", (33, 47), (1, 0), (16, 16)),
        case_of("fp8_e4m3", (65, 130), (1, 0), (64, 64), 3),
        case_of("bf16", (7, 1, 33), (2, 1, 0), (64, 1, 1)),
    ]
)
def test_permutes(case, backend):
    check(case, backend)


@conformance(
    [
        case_of("bf16", (7, 20, 3, 5), (1, 3, 2, 0), (1, 8, 4, 8)),
        case_of("bf16", (7, 8, 3, 65), (1, 3, 2, 0), (1, 64, 4, 8), 1),
        case_of("f32", (3, 9, 3, 9), (1, 3, 2, 0), (1, 16, 4, 4)),
        case_of("f16", (5, 3, 5, 29), (2, 1, 3, 0), (8, 4, 1, 8)),
        case_of("i8", (5, 33, 3, 9), (1, 0, 3, 2), (1, 8, 16, 4)),
        case_of("bf16", (9, 17, 9), (1, 2, 0), (1, 16, 16)),
        case_of("bf16", (7, 6, 3, 5), (1, 3, 2, 0), (1, 8, 4, 8)),  # fewer boxes than a program moves
        case_of("bf16", (7, 20, 4, 15), (1, 3, 2, 0), (1, 4, 4, 8)),  # too little padding
        case_of("f16", (3, 50, 3, 7), (2, 1, 3, 0), (4, 4, 8, 4)),  # boxes along a dimension that they have elements of
        case_of("bf16", (9, 16, 11, 5), (0, 2, 1, 3), (1, 16, 16, 8)),  # neighbours along the same dimension
        case_of("bf16", (3, 37, 130), (1, 2, 0), (2, 128, 4), 1),  # longer than blocks
        case_of("f32", (1101, 8, 2, 3), (3, 2, 1, 0), (4, 2, 8, 64)),  # the outermost dimension is short
        case_of("i8", (5, 3, 5, 600), (3, 0, 2, 1), (16, 8, 8, 4)),
        case_of("fp8_e4m3", (3, 5, 1101), (2, 1, 0), (32, 8, 4)),
    ]
)
def test_elements_of_padded_blocks_are_moved_alone(case, backend, monkeypatch):
    monkeypatch.setattr(pack_permutes, "PROGRAMS_PER_MULTIPROCESSOR", 0)  # tensors that fill a GPU take long here
    check(case, backend)


@conformance(
    [
        case_of("bf16", (50, 3, 66), (2, 1, 0), (8, 8, 8)),
        case_of("bf16", (50, 3, 30), (2, 1, 0), (8, 8, 8)),
        case_of("bf16", (30, 3, 66), (2, 1, 0), (8, 8, 8), 1),
        case_of("bf16", (30, 3, 20), (2, 1, 0), (8, 8, 8)),
        case_of("f32", (67, 3, 2, 25), (1, 3, 2, 0), (2, 16, 4, 16)),
        case_of("i8", (65, 66), (1, 0), (24, 16)),
        case_of("f64", (17, 3, 40), (2, 0, 1), (1, 4, 1)),
        case_of("f32", (40, 300), (1, 0), (512, 8)),
    ]
)
def test_permutes_in_short_blocks(case, backend):
    check(case, backend)


def _mixed(x: ts.Tensor["A", "B", ts.f32], z: ts.Tensor["B", "A", ts.f32], y: ts.Tensor["B", "A", ts.f32]):
    for i, j in ts.tile.grid((A, 8), (B, 16)):
        later = (ts.tile.arange(16) + j)[:, None] >= (ts.tile.arange(8) + i)[None, :]
        y[j : j + 16, i : i + 8] = ts.tile.where(later, x[i : i + 8, j : j + 16].T, z[j : j + 16, i : i + 8])


@conformance(
    [
        Case(
            f"mixed-{a}x{b}",
            _mixed,
            lambda rng, a=a, b=b: [
                normal(rng, (a, b), ts.f32),
                normal(rng, (b, a), ts.f32),
                Output((b, a), ts.f32),
            ],
            lambda x, z, y: np.where(np.arange(len(z))[:, None] >= np.arange(len(x))[None, :], x.T, z),
            backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"),
        )
        for a, b in [(70, 50), (70, 9), (20, 90), (5, 5)]
    ]
)
def test_elements_of_a_permute_may_know_their_places(case, backend):
    check(case, backend)


def _scaled(block: tuple[int, int]) -> Any:
    """Return a transpose times a row and a column: in blocks of one, both look like single elements."""
    rows, columns = block

    def kernel(
        x: ts.Tensor["A", "B", ts.f32],
        row: ts.Tensor["A", ts.f32],
        column: ts.Tensor["B", ts.f32],
        y: ts.Tensor["B", "A", ts.f32],
    ):
        for i, j in ts.tile.grid((A, rows), (B, columns)):
            turned = x[i : i + rows, j : j + columns].T
            y[j : j + columns, i : i + rows] = turned * row[i : i + rows] * column[j : j + columns][:, None]

    return kernel


@conformance(
    [
        Case(
            f"scaled-{a}x{b}-{block[0]}x{block[1]}",
            _scaled(block),
            lambda rng, a=a, b=b: [
                normal(rng, (a, b), ts.f32),
                normal(rng, (a,), ts.f32),
                normal(rng, (b,), ts.f32),
                Output((b, a), ts.f32),
            ],
            lambda x, row, column, y: (x * row[:, None]).T * column[:, None],
            of_rounding(ts.f32, 2),
            backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"),
        )
        for a, b in [(70, 50), (70, 9), (9, 70)]
        for block in [(1, 1), (1, 8), (8, 1), (8, 8)]
    ]
)
def test_vectors_scale_a_permute_along_their_own_dimension(case, backend):
    check(case, backend)
