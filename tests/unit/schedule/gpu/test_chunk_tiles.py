"""Which tiles are computed chunk by chunk, in how many passes, and why others stay whole."""

from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tests.conformance import test_chunks as cases


def note(kernel: Callable[..., Any], dims: dict[str, int], **knobs: int) -> str:
    """Return what the schedule says of a kernel."""
    space = {name: [value] for name, value in knobs.items()}
    made = ts.kernel.autotune(space=space)(kernel) if space else ts.kernel(kernel)
    text = ts.compile(made, target="sm_90a", dims=dims, dump=["tirh"]).dumps["tirh"]
    assert isinstance(text, str)
    start = text.find("tessera_notes.chunk = [")
    return text[start : text.find("]", start)] if start >= 0 else ""


ROW = {"m": 9, "n": cases.N}


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        (cases.alone, 1),
        (cases.sums, 2),
        (cases.several, 4),
        (cases.conditions, 2),
        (cases.best, 2),
        (cases.combined, 2),
        (cases.running, 2),
        (cases.backwards, 2),
        (cases.recurrence, 1),
        (cases.recurrence_back, 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_rows_go_in_passes(body: Any, passes: int) -> None:
    made = cases._rows(body)  # pyright: ignore[reportPrivateUsage]
    said = note(made, ROW, chunk=16, batch=1)
    assert f"tiles of 77 elements are computed in {'one pass' if passes == 1 else f'{passes} passes'} over" in said


@pytest.mark.parametrize(
    ("kernel", "passes"),
    [
        ("blocks", "2 passes over chunks of 16"),
        ("columns", "one pass over chunks of 9"),
        ("transposed", "2 passes"),
        ("in_place", "2 passes"),
        ("in_place_early", "2 passes"),
        ("in_place_twice", "2 passes"),
        ("masked", "2 passes"),
        ("outside", "2 passes"),
        ("indexed", "2 passes"),
        ("between", "3 passes"),
        ("in_loop", "2 passes"),
    ],
)
def test_kernels_go_in_passes(kernel: str, passes: str) -> None:
    assert f"are computed in {passes}" in note(getattr(cases, f"_{kernel}"), ROW, chunk=16, batch=1)


def copied(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        buffer = ts.tile.alloc_shared((77,), ts.f32)
        buffer[...] = x[i, :]
        ts.tile.barrier()
        y[i, :] = buffer[...]


def waiting(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32], z: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        ts.tile.atomic_add(z[i], ts.tile.sum(row, 0))
        y[i, :] = row * 2


def combined_sum(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, :] = row - ts.tile.sum(row, 0)


def largest(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, :] = row - ts.tile.max(row, 0)


def squares(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, n)):
        tile = x[i : i + n, :]
        y[i : i + n, :] = tile + tile.T


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (cases._rows(cases.crossed), "scans from both ends meet"),  # pyright: ignore[reportPrivateUsage]
        (cases._rows(cases.turned), "part takes or gives all of one"),  # pyright: ignore[reportPrivateUsage]
        (cases._in_place_late, "accessed in other passes or places"),  # pyright: ignore[reportPrivateUsage]
        (cases._shifted, "accessed in other passes or places"),  # pyright: ignore[reportPrivateUsage]
        (cases._over_each_other, "accessed in other passes or places"),  # pyright: ignore[reportPrivateUsage]
        (cases._carried, "loops or branches carry them"),  # pyright: ignore[reportPrivateUsage]
        (copied, "takes or gives all of one"),
        (waiting, "stands between them"),
        (squares, "one dimension of a tile is another one of the same tile"),
    ],
)
def test_what_stays_whole(kernel: Callable[..., Any], why: str) -> None:
    assert why in note(kernel, ROW, chunk=16, batch=1)


@pytest.mark.parametrize("kernel", cases.TURNING, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("order", cases.ORDERS)
def test_boxes_are_cut_along_dimensions_that_keep_their_places(kernel: Any, order: tuple[int, ...]) -> None:
    said = note(kernel(order), {"m": 2}, chunk=16, batch=1)
    keeps = any(place == at for place, at in enumerate(order))
    assert ("one pass over chunks of 16" if keeps else "accessed in other passes or places") in said


def test_strict_gives_the_order_of_sums_alone() -> None:
    with ts.numerics.profile("strict"):
        assert "strict gives the order" in note(combined_sum, ROW, chunk=16, batch=1)
        assert "2 passes" in note(largest, ROW, chunk=16, batch=1)


@pytest.mark.parametrize("width", [131072, 50257])
@pytest.mark.parametrize("kernel", [cases.norm_of(ts.bf16), cases.softmax_of(ts.fp8_e4m3)], ids=["norm", "softmax"])
def test_long_rows_lie_in_registers(kernel: Any, width: int) -> None:
    alone = {"hold_rows": 0, "share_rows": 1}
    again = ts.kernel.autotune(space={name: [value] for name, value in alone.items()})(kernel)
    made = ts.compile(again, target="sm_90a", dims={"m": 99, "n": width}, **alone)
    (measured,) = made.reflection["kernels"].values()
    assert measured["spill_store_bytes"] == measured["spill_load_bytes"] == 0
    # no more than the warps' sums take: chunks are added up within threads
    assert measured["shared_bytes"] == measured["threads"] // 32 * 4


def test_rows_that_registers_hold_stay_whole() -> None:
    assert note(combined_sum, ROW) == ""
    assert note(combined_sum, ROW, chunk=0) == ""


@pytest.mark.parametrize(
    ("kernel", "width", "chunk"),
    [
        (cases.norm_of(ts.bf16), 8192, None),
        (cases.norm_of(ts.bf16), 12000, None),
        (cases.softmax_of(ts.bf16), 16384, None),
        (cases.softmax_of(ts.bf16), 20000, 16384),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_two_programs_of_long_rows_have_room_at_a_time(kernel: Any, width: int, chunk: int | None) -> None:
    alone = ts.kernel.autotune(space={"share_rows": [1]})(kernel)
    made = ts.compile(alone, target="sm_90a", dims={"n": width}, share_rows=1)
    (measured,) = made.reflection["kernels"].values()
    assert 2 * measured["threads"] * measured["registers"] <= 65536
    assert measured["spill_store_bytes"] == 0
    said = note(kernel, {"n": width}, share_rows=1)
    assert f"chunks of {chunk}" in said if chunk else not said


@pytest.mark.parametrize(
    ("width", "programs"), [(12288, 4), (16384, 4), (25800, 4), (36864, 3), (49152, 2), (20001, 4)]
)
def test_long_rows_that_several_passes_need_stay_in_shared_memory(width: int, programs: int) -> None:
    options = {"target": "sm_90a", "dims": {"n": width}, "dump": ("ptx",), "share_rows": 1}
    kernel = cases.norm_of(ts.bf16)
    made = ts.compile(ts.kernel.autotune(space={"share_rows": [1]})(kernel), **options)
    (measured,) = made.reflection["kernels"].values()
    assert programs * measured["threads"] * measured["registers"] <= 65536
    assert programs * (measured["shared_bytes"] + 1024) <= 233472
    assert measured["spill_store_bytes"] == 0
    assert f"rows of {width} elements stay in shared memory" in note(kernel, {"n": width}, share_rows=1)
    assert "cp.async.cg.shared.global" in made.dumps["ptx"]
    space = {"hold_rows": [0], "share_rows": [1]}
    loaded_again = ts.compile(ts.kernel.autotune(space=space)(kernel), hold_rows=0, **options)
    assert "cp.async" not in loaded_again.dumps["ptx"]


@pytest.mark.parametrize(("width", "dtype"), [(65536, ts.bf16), (13001, ts.bf16), (16384, ts.f64)])
def test_rows_that_do_not_fit_are_loaded_again(width: int, dtype: DType) -> None:
    assert "shared memory" not in note(cases.norm_of(dtype), {"n": width})


def row_sums(x: ts.Tensor["m", "n", ts.bf16], y: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.sum(x[i, :].to(ts.f32))


def doubled(x: ts.Tensor["m", "n", ts.bf16], y: ts.Tensor["m", "n", ts.bf16]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] * 2


def running_sums(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = ts.tile.cumsum(x[i, :], 0)


@pytest.mark.parametrize(
    ("kernel", "width", "chunk"),
    [
        (cases.softmax_of(ts.bf16), 57344, 32768),
        (cases.softmax_of(ts.bf16), 57348, 32768),  # rows of multiples of 8 bytes
        (cases.softmax_of(ts.bf16), 57345, 32768),  # rows that begin anywhere
        (cases.softmax_of(ts.bf16), 32769, 16384),  # two long chunks would be twice the row
        (cases.softmax_of(ts.bf16), 30001, 16384),
        (cases.norm_of(ts.bf16), 30001, 8192),
        (cases.norm_of(ts.bf16), 50257, 32768),
        (doubled, 12288, 4096),
        (doubled, 16000, None),
        (doubled, 16384, None),
        (doubled, 50257, 16384),
        (cases.norm_of(ts.bf16), 50304, 32768),
        (row_sums, 57344, 16384),  # nothing is read again
        (running_sums, 8192, None),
        (running_sums, 12000, None),  # scan-rows divides them
        (running_sums, 100001, None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_long_rows_that_are_written_again_have_long_chunks(kernel: Any, width: int, chunk: int | None) -> None:
    alone = {"hold_rows": 0, "share_rows": 1}
    again = ts.kernel.autotune(space={name: [value] for name, value in alone.items()})(kernel)
    made = ts.compile(again, target="sm_90a", dims={"n": width}, **alone)
    (measured,) = made.reflection["kernels"].values()
    assert measured["spill_store_bytes"] == 0
    said = note(kernel, {"n": width}, **alone)
    assert f"chunks of {chunk}" in said if chunk else not said


def of_several_rows(x: ts.Tensor["m", 16384, ts.f32], y: ts.Tensor["m", 16384, ts.f32]):
    for i in ts.tile.grid((m, 2)):
        rows = x[i : i + 2, :]
        y[i : i + 2, :] = rows / ts.tile.sum(rows, 1)[:, None]


def scans_little(x: ts.Tensor["m", "n", ts.f32], w: ts.Tensor[8, ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, :] = row / ts.tile.sum(row) * ts.tile.sum(ts.tile.cumsum(w[:], 0))


def test_rows_that_are_read_once_or_scanned_beside_keep_their_chunks() -> None:
    assert "in one pass over chunks of 16384" in note(of_several_rows, {})
    assert note(scans_little, {"n": 12000}) == ""


def test_dimensions_that_nothing_is_summed_along_come_first() -> None:
    assert "tiles of 154 elements are computed in one pass over chunks of 77" in note(
        cases._blocks,  # pyright: ignore[reportPrivateUsage]
        ROW,
        chunk=128,
        batch=1,
    )
