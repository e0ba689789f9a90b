"""Which programs run several as one, how many, and why others do not."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tests.conformance import test_batches as cases


def note(kernel: Callable[..., Any], sizes: str, **knobs: int) -> str:
    """Return what the schedule says of a kernel."""
    space = {name: [value] for name, value in knobs.items()}
    made = ts.kernel.autotune(space=space)(kernel) if space else ts.kernel(kernel)
    text = ts.compile(made, target="sm_90a", dims=dict.fromkeys(sizes, 9), dump=["tirh"]).dumps["tirh"]
    assert isinstance(text, str)
    start = text.find("tessera_notes.batch = [")
    return text[start : text.find("]", start)] if start >= 0 else ""


@pytest.mark.parametrize("body", cases.BODIES, ids=lambda body: body.__name__)
def test_rows_run_together(body: Any) -> None:
    made = cases._rows(body)  # pyright: ignore[reportPrivateUsage]
    assert f"{16 if body is cases.looped else 64} neighbouring programs" in note(made, "m")


@pytest.mark.parametrize(
    ("kernel", "sizes", "programs"),
    [
        ("numbers", "m", 1024),
        ("blocks", "m", 64),
        ("odd", "m", 64),
        ("odd_rows", "m", 2),
        ("deep", "m", 32),
        ("twice", "mn", 256),
        ("in_place", "mn", 64),
        ("masked", "mn", 64),
        ("beyond", "mk", 1024),
        ("embedded", "rm", 32),
        ("sent", "rm", 32),
        ("elements", "rmk", 1024),
        ("pages", "rm", 4),
        ("chosen", "rm", 64),
        ("longer", "mk", 64),
    ],
)
def test_kernels_run_together(kernel: str, sizes: str, programs: int) -> None:
    assert f"{programs} neighbouring" in note(getattr(cases, f"_{kernel}"), sizes)


@pytest.mark.parametrize(
    ("kernel", "sizes", "why"),
    [
        ("odd_sums", "m", "reduce is each program's own"),
        ("odd_places", "m", "no power of two"),
        ("columns", "mn", "side by side in memory"),
        ("scattered", "mk", "does not follow from the program's number alone"),
        ("windows", "rm", "does not follow from the program's number alone"),
    ],
)
def test_kernels_run_apart(kernel: str, sizes: str, why: str) -> None:
    assert why in note(getattr(cases, f"_{kernel}"), sizes)


def private(x: ts.Tensor["m", 64, ts.f32], y: ts.Tensor["m", 64, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        buffer = ts.tile.alloc_shared((64,), ts.f32)
        buffer[...] = x[i, :]
        ts.tile.barrier()
        y[i, :] = buffer[...]


def choosing(x: ts.Tensor["m", 64, ts.f32], y: ts.Tensor["m", 64, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        if x[i, 0] > 0:
            y[i, :] = x[i, :]


def one_place(x: ts.Tensor["m", 64, ts.f32], y: ts.Tensor["m", 64, ts.f32]):
    for _ in ts.tile.grid((m, 1)):
        y[0, :] = x[0, :]


def overlapping(x: ts.Tensor["m", ts.f32], y: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.sum(x[i : i + 4])


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (private, "alloc_shared is each program's own"),
        (choosing, "the condition of a branch differs between programs"),
        (one_place, "all programs store to one place"),
        (overlapping, "overlap or lie apart"),
    ],
)
def test_what_programs_cannot_share(kernel: Callable[..., Any], why: str) -> None:
    assert why in note(kernel, "m")


def static(x: ts.Tensor[1056, 16, ts.f32], y: ts.Tensor[1056, 16, ts.f32]):
    for i in ts.tile.grid((1056, 1)):
        y[i, :] = x[i, :] * 2


def test_multiprocessors_stay_busy_where_the_grid_is_known() -> None:
    assert "4 neighbouring" in note(static, "")  # 1056 rows on 132 multiprocessors, two programs each


def short(x: ts.Tensor["m", 5, 16, ts.f32], y: ts.Tensor["m", 5, 16, ts.f32]):
    for i, j in ts.tile.grid((m, 1), (5, 1)):
        y[i, j, :] = x[i, j, :] * 2


def test_no_more_run_together_than_there_are() -> None:
    assert "8 neighbouring programs of dimension 1" in note(short, "m")


def of_four(x: ts.Tensor["a", "b", "c", 32, ts.f32], y: ts.Tensor["a", "b", "c", 32, ts.f32]):
    for i, j, k in ts.tile.grid((a, 1), (b, 1), (c, 2)):
        y[i, j, k : k + 2, :] = x[i, j, k : k + 2, :] * 2


def of_five(x: ts.Tensor["a", "b", "c", "d", 32, ts.f32], y: ts.Tensor["a", "b", "c", "d", 32, ts.f32]):
    for i, j, k, h in ts.tile.grid((a, 1), (b, 1), (c, 1), (d, 1)):
        total = ts.tile.sum(x[i, j, k, h, :])
        y[i, j, k, h, :] = x[i, j, k, h, :] * total


@pytest.mark.parametrize(("kernel", "dimensions"), [(of_four, (2, 1, 0)), (of_five, (3, 2, 1, 0))])
def test_whichever_dimension_is_long_has_a_launch(kernel: Callable[..., Any], dimensions: tuple[int, ...]) -> None:
    said = note(kernel, "abcd"[: len(dimensions)])
    assert [int(found) for found in re.findall(r"programs of dimension (\d)", said)] == list(dimensions)


def of_six(
    x: ts.Tensor["a", "b", "c", "d", "e", 32, ts.f32],
    y: ts.Tensor["a", "b", "c", "d", "e", 32, ts.f32],
):
    for i, j, k, h, l in ts.tile.grid((a, 1), (b, 1), (c, 1), (d, 1), (e, 1)):  # noqa: E741
        total = ts.tile.sum(x[i, j, k, h, l, :])
        y[i, j, k, h, l, :] = x[i, j, k, h, l, :] * total


def test_the_last_launch_is_for_the_outermost_dimension() -> None:
    found = re.findall(r"programs of dimension (\d)", note(of_six, "abcde"))
    assert found == ["4", "3", "2", "0"]


def test_the_knob_decides() -> None:
    assert "32 neighbouring" in note(cases._numbers, "m", batch=32)  # pyright: ignore[reportPrivateUsage]
    assert note(cases._numbers, "m", batch=1) == ""  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("width", [32, 136, 500])
@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16, ts.fp8_e4m3], ids=lambda dtype: dtype.name)
def test_a_block_moves_6_kilobytes_unless_tiles_grow_too_large(width: int, dtype: Any) -> None:
    def sums(x: ts.Tensor["m", width, dtype], y: ts.Tensor["m", ts.f32]):
        for i in ts.tile.grid((m, 1)):
            y[i] = ts.tile.sum(ts.tile.cast(x[i, :], ts.f32), 0)

    found = re.search(r"(\d+) neighbouring", note(sums, "m"))
    assert found is not None
    programs, padded = int(found[1]), 1 << (width - 1).bit_length()
    assert programs * (width * dtype.bytes + 4) >= 6144 or programs * padded == 8192
    assert programs * padded <= 8192
