"""Parts of shared buffers: boxes, steps, elements and index tiles, read and written, also outside of the buffer."""

import re
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DeviceError, LanguageError, TypeMismatchError
from tessera.interp import interpret
from tests.conformance.data import box_of
from tests.conformance.harness import Case, Output, check, conformance
from tests.unit.lower.support import aligned

R, C = 24, 20
"""The size of a buffer: no power of two."""


def boxes(dt: Any) -> Any:
    def kernel(x: ts.Tensor[R, C, dt], a: ts.i32, c: ts.i64, y: ts.Tensor[7, 8, 6, dt], z: ts.Tensor[R, C, dt]):
        for _ in ts.tile.grid((1, 1)):
            buffer = ts.tile.alloc_shared((R, C), dt)
            for k in ts.tile.range(0, R, 8):
                buffer[k : k + 8, :] = x[k : k + 8, :]
            ts.tile.barrier()
            y[0, :, :] = buffer[0:8, 4:10]
            y[1, :, :] = buffer[a : a + 8, c : c + 6]
            y[2, :, :] = buffer[a : a + 16 : 2, c + 15 : c - 3 : -3]
            y[3, :, :] = buffer.T[c : c + 6, a : a + 8].T
            y[4, :, :] = buffer[7:15, a][:, None]
            y[5, :, :] = buffer[a + 3, None, 3:9]
            y[6, 0:4, 0:5] = buffer[::6, ::4]
            y[6, 0:4, 5:6] = ts.tile.full((4, 1), 0, dt)
            y[6, 4:8, :] = ts.tile.full((4, 6), buffer[a, c], dt)
            ts.tile.barrier()
            buffer[a : a + 8, c : c + 6] = y[0, :, :] * 2
            ts.tile.barrier()
            buffer[c + 1 : c + 7, 3:19:4] += 1
            ts.tile.barrier()
            buffer[a + 2, c + 1] = 9
            ts.tile.barrier()
            buffer[:, a] = 5
            ts.tile.barrier()
            z[:, :] = buffer

    return kernel


def _put(x: np.ndarray, rows: Any, columns: Any, change: Any) -> None:
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            if 0 <= r < x.shape[0] and 0 <= c < x.shape[1]:
                x[r, c] = change(x[r, c], i, j)


def _boxes(x: np.ndarray, a: int, c: int, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    row, column = np.arange(8), np.arange(6)
    last = np.zeros((8, 6), x.dtype)
    last[:4, :5], last[4:] = x[::6, ::4], box_of(x, [a], [c])
    y = np.stack(
        [
            x[0:8, 4:10],
            box_of(x, a + row, c + column),
            box_of(x, a + 2 * row, c + 15 - 3 * column),
            box_of(x, a + row, c + column),
            box_of(x, 7 + row, [a] * 6),
            box_of(x, [a + 3] * 8, 3 + column),
            last,
        ]
    )
    buffer = x.copy()
    _put(buffer, a + row, c + column, lambda old, i, j: y[0, i, j] * 2)
    _put(buffer, c + 1 + column, range(3, 19, 4), lambda old, i, j: old + 1)
    _put(buffer, [a + 2], [c + 1], lambda old, i, j: 9)
    _put(buffer, range(R), [a], lambda old, i, j: 5)
    return y, buffer


@conformance(
    [
        Case(
            f"boxes-{dt}-{a}-{c}",
            boxes(dt),
            lambda rng, dt=dt, a=a, c=c: [
                rng.integers(-9, 9, (R, C)).astype(dt.numpy()),
                a,
                c,
                Output((7, 8, 6), dt),
                Output((R, C), dt),
            ],
            _boxes,
        )
        for dt, a, c in ((ts.f32, 3, 5), (ts.i8, -4, 17), (ts.f16, 20, -3), (ts.i64, 2**31 - 1, -(2**40)))
    ]
)
def test_boxes(case, backend):
    check(case, backend)


def picked(
    x: ts.Tensor[2, R, C, ts.f32],
    r: ts.Tensor[12, ts.i32],
    c: ts.Tensor[12, ts.i64],
    k: ts.i32,
    y: ts.Tensor[3, 12, C, ts.f32],
    z: ts.Tensor[R, C, ts.f32],
):
    for _ in ts.tile.grid((1, 1)):
        ring = ts.tile.alloc_shared((2, R, C), ts.f32)
        ring[...] = x[:, :, :]
        ts.tile.barrier()
        rows, columns = r[:], c[:]
        first = rows[3]
        y[0, :, :] = ring[k, rows, :]
        stage = ring[k]
        y[1, :, :] = stage[rows, columns][:, None]
        if rows > 3:
            y[2, :, 0] = stage[rows, columns] + 1.0
        if rows <= 3:
            y[2, :, 0] = ts.tile.zeros((12,), ts.f32)
        y[2, :, 1:C] = ring[1 - k, first : first + 12, 1:C]
        ts.tile.barrier()
        if columns < 9:
            stage[rows, columns] = y[0, :, 2]
        ts.tile.barrier()
        stage[rows[0], 2:9] = 4.0
        ts.tile.barrier()
        stage[rows, 10:14] += 1.0
        ts.tile.barrier()
        z[:, :] = stage


def _picked(x: np.ndarray, r: np.ndarray, c: np.ndarray, k: int, y: np.ndarray, z: np.ndarray) -> Any:
    stage = x[k].copy() if k in (0, 1) else np.zeros((R, C), np.float32)
    other = x[1 - k] if 1 - k in (0, 1) else np.zeros((R, C), np.float32)
    single = np.array([box_of(stage, [i], [j])[0, 0] for i, j in zip(r, c, strict=True)])
    last = box_of(other, r[3] + np.arange(12), range(C))
    last[:, 0] = np.where(r > 3, single + 1, 0)
    y = np.stack([box_of(stage, r, range(C)), np.repeat(single[:, None], C, 1), last])
    for n in range(12):
        if c[n] < 9:
            _put(stage, [r[n]], [c[n]], lambda old, i, j, n=n: y[0, n, 2])
    _put(stage, [r[0]], range(2, 9), lambda old, i, j: 4)
    _put(stage, r, range(10, 14), lambda old, i, j: old + 1)
    return y, stage


def _places(rng: np.random.Generator) -> list[np.ndarray]:
    """Return rows, no two of which are alike, and columns, some of both outside."""
    rows, columns = rng.permutation(R)[:12], rng.integers(-3, C + 3, 12)
    rows[[2, 7]], columns[5] = (R, -1), 2**40
    return [rows.astype(np.int32), columns.astype(np.int64)]


@conformance(
    [
        Case(
            f"picked-{k}",
            picked,
            lambda rng, k=k: [
                rng.normal(size=(2, R, C)).astype(np.float32),
                *_places(rng),
                k,
                Output((3, 12, C), ts.f32),
                Output((R, C), ts.f32),
            ],
            _picked,
        )
        for k in (0, 1)
    ]
)
def test_index_tiles_in_stages(case, backend):
    check(case, backend)


def outside_stages(x: ts.Tensor[2, 8, 8, ts.i32], k: ts.i32, y: ts.Tensor[3, 8, 8, ts.i32]):
    """A stage that does not exist reads as zeros and is not written, by whichever access."""
    for _ in ts.tile.grid((1, 1)):
        ring = ts.tile.alloc_shared((2, 8, 8), ts.i32)
        ring[...] = x[:, :, :]
        ts.tile.barrier()
        y[0, :, :] = ring[k][:, 0:8]
        y[1, :, :] = ring[k, ts.tile.arange(8), :]
        ts.tile.barrier()
        ring[k][0:4, :] = ts.tile.full((4, 8), 7, ts.i32)
        ts.tile.barrier()
        ts.tile.atomic_add(ring[k][ts.tile.arange(8), 3], 100)
        ts.tile.barrier()
        y[2, :, :] = ring[0] + ring[1] * 1000


def _outside_stages(x: np.ndarray, k: int, y: np.ndarray) -> np.ndarray:
    held = x.copy()
    read = x[k] if 0 <= k < 2 else np.zeros((8, 8), np.int32)
    if 0 <= k < 2:
        held[k, 0:4] = 7
        held[k, :, 3] += 100
    return np.stack([read, read, held[0] + held[1] * 1000])


@conformance(
    [
        Case(
            f"stage-{k}",
            outside_stages,
            lambda rng, k=k: [rng.integers(-9, 9, (2, 8, 8)).astype(np.int32), k, Output((3, 8, 8), ts.i32)],
            _outside_stages,
            backends=("interp", "cpu", "threads-sm_80", "cuda") if k == 1 else ("cpu", "threads-sm_80", "cuda"),
        )
        for k in (1, 2, -1)
    ]
)
def test_stages_that_do_not_exist(case, backend):
    check(case, backend)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_assembly(target: str) -> None:
    """The emulated GPU runs what is compiled, with all its threads."""
    for kernel, arguments, reference in (
        (boxes(ts.f32), CASES_BY_NAME["boxes"], _boxes),
        (picked, CASES_BY_NAME["picked"], _picked),
    ):
        check(Case(kernel.__name__, kernel, arguments, reference), f"ptx-{target}")


CASES_BY_NAME = {
    "boxes": lambda rng: [
        rng.integers(-9, 9, (R, C)).astype(np.float32),
        3,
        -2,
        Output((7, 8, 6), ts.f32),
        Output((R, C), ts.f32),
    ],
    "picked": lambda rng: [
        rng.normal(size=(2, R, C)).astype(np.float32),
        *_places(rng),
        1,
        Output((3, 12, C), ts.f32),
        Output((R, C), ts.f32),
    ],
}


def stage_of_a_view(x: ts.Tensor[2, 8, 16, ts.f32], y: ts.Tensor[2, 16, 8, ts.f32]):
    """The dimensions of a stage are those of the view that it is taken of."""
    for _ in ts.tile.grid((1, 1)):
        ring = ts.tile.alloc_shared((2, 8, 16), ts.f32)
        ring[...] = x[:, :, :]
        ts.tile.barrier()
        turned = ts.tile.transpose(ring, (0, 2, 1))
        y[0, :, :] = turned[1]
        y[1, :, 0:4] = turned[0][:, 2:6]
        y[1, :, 4:8] = ring[0].T[0:16, 0:4]


@conformance(
    [
        Case(
            "stage-of-a-view",
            stage_of_a_view,
            lambda rng: [rng.normal(size=(2, 8, 16)).astype(np.float32), Output((2, 16, 8), ts.f32)],
            lambda x, y: np.stack([x[1].T, np.concatenate([x[0, 2:6], x[0, 0:4]]).T]),
        )
    ]
)
def test_stages_of_transposed_buffers(case, backend):
    check(case, backend)


# What is refused


def swizzled(y: ts.Tensor[8, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8, 8), ts.i32, swizzle="xor")
        y[:] = tile[0:8, 0]


def of_floats(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8,), ts.i32)
        y[:] = tile[x[:]]


def too_many(y: ts.Tensor[8, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8,), ts.i32)
        y[:] = tile[0:8, 0]


def too_large(y: ts.Tensor[8, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8, 8), ts.i32)
        tile[0:4, 0] = y[:]


def negative(y: ts.Tensor[8, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8,), ts.i32)
        y[0] = tile[-1]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (swizzled, "swizzled"),
        (of_floats, "an index tile must be integer"),
        (too_many, "2 indices for shared<8xi32>"),
        (too_large, "does not fit the slice of shape"),
        (negative, "the index -1 is negative"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_mistakes(kernel: Any, message: str) -> None:
    with pytest.raises((TypeMismatchError, LanguageError)) as caught:
        ts.compile(ts.kernel(kernel), target="sm_80")
    assert message in str(caught.value)


def unwritten(y: ts.Tensor[8, ts.i32], k: ts.i32):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8,), ts.i32)
        tile[0:4] = ts.tile.zeros((4,), ts.i32)
        ts.tile.barrier()
        y[0] = tile[k]


@pytest.mark.parametrize("k", [3, 4])
def test_the_interpreter_looks_at_elements(k: int) -> None:
    if k == 3:
        interpret(aligned(unwritten), [np.zeros(8, np.int32), k])
        return
    with pytest.raises(DeviceError, match=r"nothing was written to.*element \(4,?\)"):
        interpret(aligned(unwritten), [np.zeros(8, np.int32), k])


def twice(y: ts.Tensor[8, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8,), ts.i32)
        tile[ts.tile.arange(8) // 2] = ts.tile.arange(8)


def test_two_values_for_one_element() -> None:
    with pytest.raises(DeviceError, match="two elements write different values to a shared buffer"):
        interpret(aligned(twice), [np.zeros(8, np.int32)])


def in_rows(x: ts.Tensor["m", 64, ts.f32], y: ts.Tensor["m", 64, ts.f32], start: ts.i64):
    for i in ts.tile.grid((m, 64)):
        buffer = ts.tile.alloc_shared((64, 64), ts.f32)
        buffer[0:32, :] = x[i : i + 32, :]
        buffer[32:64, :] = x[i + 32 : i + 64, :]
        ts.tile.barrier()
        y[i : i + 16, :] = buffer[16:32, :]


def test_neighbours_move_in_vectors() -> None:
    """Neither platform takes the elements of rows one by one."""
    ptx = ts.compile(ts.kernel(in_rows), target="sm_80", dump=["ptx"]).dumps["ptx"]
    widths = re.findall(r"(?:ld|st)\.shared\.(\S*)", ptx)
    assert widths
    assert set(widths) == {"v4.b32"}
    assembly = ts.compile(ts.kernel(in_rows), target="x86-64-v3", dump=["asm"]).dumps["asm"]
    assert "ymm" in assembly
    assert not re.search(r"vmovss|vgather|vmaskmov", assembly)
