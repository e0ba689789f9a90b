"""How many warps compute a program."""

from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts


def summed(dtype: Any, width: int, rows: int = 1) -> Callable[..., Any]:
    """Return a kernel that sums rows."""

    def kernel(x: ts.Tensor["m", width, dtype], y: ts.Tensor["m", ts.f32]):
        for i in ts.tile.grid((m, rows)):
            y[i : i + rows] = ts.tile.sum(ts.tile.cast(x[i : i + rows, :], ts.f32), 1)

    return kernel


def doubled(x: ts.Tensor["m", 8192, ts.bf16], y: ts.Tensor["m", 8192, ts.bf16]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] + x[i, :]


def columns(dtype: Any, rows: int) -> Callable[..., Any]:
    """Return a kernel that sums columns, 16 KB in a program."""
    width = 16384 // rows // dtype.bytes

    def kernel(x: ts.Tensor[rows, "m", dtype], y: ts.Tensor["m", ts.f32]):
        for i in ts.tile.grid((m, width)):
            y[i : i + width] = ts.tile.sum(ts.tile.cast(x[:, i : i + width], ts.f32), 0)

    return kernel


def warps(kernel: Callable[..., Any], m: int | None = 100000) -> int:
    """Return the warps of a block on Hopper, whose warps have 32 threads."""
    made = ts.compile(ts.kernel(kernel), target="sm_90a", dims=None if m is None else {"m": m})
    (measured,) = made.reflection["kernels"].values()
    return int(measured["threads"]) // 32


@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16, ts.fp8_e4m3], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("width", [7000, 8192, 10000])
def test_a_warp_takes_4_kilobytes_of_a_long_row_and_no_more_than_64_registers_a_thread(dtype: Any, width: int) -> None:
    elements = min(4096 // dtype.bytes, 64 * 32)
    padded = 1 << (width - 1).bit_length()
    assert warps(summed(dtype, width)) == padded // elements


def test_several_rows_of_a_program_have_more_warps_than_one_that_is_as_long() -> None:
    assert warps(summed(ts.bf16, 1024, rows=8)) == 2 * warps(summed(ts.bf16, 8192))


@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16, ts.fp8_e4m3], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("programs", "expected"), [(1, 16), (8, 16), (9, None)])
def test_few_programs_have_as_many_threads_as_have_an_access(dtype: Any, programs: int, expected: int | None) -> None:
    """What one program sums waits for memory alone: each thread loads 16 bytes, of 16 warps at most."""
    size = 8192 // dtype.bytes

    def kernel(x: ts.Tensor[programs, size, dtype], y: ts.Tensor[programs, ts.f32]):
        for i in ts.tile.grid((programs, 1)):
            y[i] = ts.tile.sum(ts.tile.cast(x[i, :], ts.f32), 0)

    found = warps(kernel, None)
    assert found == (expected or warps(summed(dtype, size)))
    assert expected is None or found > warps(summed(dtype, size))


def halved(x: ts.Tensor["m", 2048, ts.bf16], y: ts.Tensor["m", 2048, ts.bf16]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] / 2


def test_threads_of_rows_that_are_not_reduced_have_16_bytes_and_there_are_16_warps_at_most() -> None:
    assert (warps(halved), warps(doubled)) == (8, 16)


@pytest.mark.parametrize(("dtype", "rows"), [(ts.f32, 8), (ts.bf16, 8), (ts.bf16, 4)])
def test_the_columns_of_few_rows_are_reduced_by_a_thread_each(dtype: Any, rows: int) -> None:
    made = ts.compile(ts.kernel(columns(dtype, rows)), target="sm_90a", dims={"m": 1 << 20})
    (measured,) = made.reflection["kernels"].values()
    assert measured["threads"] // 32 == 4
    assert measured["shared_bytes"] == 0


@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16, ts.fp8_e4m3], ids=lambda dtype: dtype.name)
def test_the_columns_of_more_rows_have_a_warp_for_2048_elements(dtype: Any) -> None:
    assert warps(columns(dtype, 32)) == 16384 // dtype.bytes // 2048


@ts.kernel
def over_rows(x: ts.Tensor["a", "b", ts.bf16], y: ts.Tensor["b", ts.f32]):
    for j in ts.tile.grid((b, 128)):
        total = ts.tile.zeros((128,), ts.f32)
        for i in ts.tile.range(0, a, 64):
            total += ts.tile.sum(x[i : i + 64, j : j + 128].to(ts.f32), 0)
        y[j : j + 128] = total


def test_loops_that_reduce_leave_room_for_programs_that_wait_for_memory() -> None:
    made = ts.compile(over_rows, target="sm_90a", dims={"a": 67, "b": 2518016})
    (measured,) = made.reflection["kernels"].values()
    assert measured["threads"] == 128
    assert measured["registers"] <= 64
    assert measured.get("spill_store_bytes", 0) == 0


def losses(dear: bool, stores: bool) -> Callable[..., Any]:
    """Return a kernel that sums functions of rows, which take long or not, and may store them too."""

    def kernel(x: ts.Tensor["m", 4096, ts.bf16], z: ts.Tensor["m", 4096, ts.bf16], y: ts.Tensor["m", ts.f32]):
        for i in ts.tile.grid((m, 1)):
            one = ts.tile.cast(x[i, :], ts.f32)
            found = ts.tile.exp(one) * ts.tile.tanh(one) if dear else one * one
            if stores:
                z[i, :] = found
            y[i] = ts.tile.sum(found)

    return kernel


def test_sums_of_functions_that_take_long_have_a_warp_for_512_elements() -> None:
    cheap = warps(losses(dear=False, stores=False))
    assert warps(losses(dear=True, stores=False)) == 8 > cheap
    assert warps(losses(dear=True, stores=True)) == warps(losses(dear=False, stores=True)) == cheap


def neighbours(count: int, width: int) -> Callable[..., Any]:
    """Return a kernel that adds so many elements at places that tensors say."""

    def kernel(x: ts.Tensor["k", ts.f32], at: ts.Tensor["m", width, ts.i32], y: ts.Tensor["m", width, ts.f32]):
        for i in ts.tile.grid((m, 1)):
            place = at[i, :]
            total = ts.tile.zeros((width,), ts.f32)
            for step in ts.tile.static_range(count):
                total = total + ts.tile.load(x[place + step], fill=0.0)
            y[i, :] = total

    return kernel


def test_threads_have_few_elements_of_many_gathers() -> None:
    assert warps(neighbours(8, 1024)) == 4
    assert warps(neighbours(9, 1024)) == 8


def test_programs_with_many_gathers_are_not_made_larger() -> None:
    few, many = (ts.compile(ts.kernel(neighbours(count, 512)), target="sm_90a").reflection for count in (3, 4))
    assert "batch" in few
    assert "batch" not in many
