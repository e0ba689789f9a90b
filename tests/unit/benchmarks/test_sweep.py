"""benchmarks/sweep.py: what it draws, what it says of it, and a few tiny works from end to end."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep
import sweep_report as report
import sweep_works as works
from sweep_works import FAMILIES, LIMITS, Limits, Work

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is the peer")

TINY = Limits(
    flops=4e7,
    f32_flops=4e7,
    bytes=1 << 19,
    side=(8, 1024),
    terms=(8, 256),
    elements=(1 << 8, 1 << 12),
    row_elements=(1 << 8, 1 << 12),
    width=(32, 300),
    positions=(32, 100),
    dtypes=(4, 2, 4),
)


def first(seed: int, count: int, limits: Limits) -> list[Work]:
    """Return the first works of a sample."""
    return list(itertools.islice(works.sample(seed, limits), count))


@pytest.mark.parametrize("device", LIMITS)
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_works_are_valid_and_bounded(device: str, seed: int) -> None:
    limits = LIMITS[device]
    drawn = first(seed, 200, limits)
    assert {work.family for work in drawn} == set(FAMILIES)
    assert [work.number for work in drawn] == list(range(200))
    for work in drawn:
        assert work.flops <= (limits.f32_flops if work.dtype == "f32" else limits.flops), work.name
        assert 0 < work.bytes <= limits.bytes, work.name
        assert min(work.shape) >= 2, work.name
        assert work.offset in (0, 1), work.name
        assert work.pad == 0 or work.pad % 2 == 1, work.name
        if work.family in FAMILY_CHECKS:
            FAMILY_CHECKS[work.family](work)


def check_reduction(work: Work) -> None:
    pattern, sizes = work.options["pattern"], work.options["sizes"]
    assert math.prod(sizes) == math.prod(work.shape)
    reduced = math.prod(s for s, letter in zip(sizes, pattern, strict=True) if letter == "r")
    assert reduced == math.prod(work.shape[axis] for axis in work.options["axes"])


def check_elementwise(work: Work) -> None:
    assert np.broadcast_shapes(work.shape, work.options["other"]) == work.shape
    pattern, sizes = work.options["pattern"], work.options["sizes"]
    held = math.prod(s for s, letter in zip(sizes, pattern, strict=True) if letter == "f")
    assert held == math.prod(work.options["other"])


def check_attention(work: Work) -> None:
    assert work.shape[2] in range(16, 257, 8)


def check_tiles(work: Work) -> None:
    rows, columns, terms = work.options["block"]
    assert 64 <= rows <= 256
    assert 32 <= columns <= 256
    assert 16 <= terms <= 128
    assert rows % 8 == columns % 8 == terms % 8 == 0


def check_rows(work: Work) -> None:
    assert work.flops == 0
    assert work.kind in works.ROW_KINDS


def check_permute(work: Work) -> None:
    assert sorted(work.options["order"]) == list(range(len(work.shape)))


FAMILY_CHECKS = {
    "reductions": check_reduction,
    "elementwise": check_elementwise,
    "attention": check_attention,
    "tiles": check_tiles,
    "rows": check_rows,
    "permutes": check_permute,
}


def test_rows_of_a_gpu_have_the_widths_and_elements_they_should() -> None:
    rows = list(itertools.islice(works.sample(5, LIMITS["cuda"], ["rows"]), 300))
    assert all(math.prod(work.shape) >= 1 << 22 for work in rows)
    widths = [work.shape[1] for work in rows]
    # Uniform in the logarithm: as many below the geometric mean of the bounds as above.
    assert 0.4 < np.mean(np.log(widths) < np.log(32 * 200_000) / 2) < 0.6
    assert 0.35 < np.mean([width % 8 != 0 for width in widths]) < 0.65


def test_a_work_depends_on_its_seed_and_number_alone() -> None:
    limits = LIMITS["cuda"]
    drawn = first(7, 60, limits)
    assert drawn == first(7, 60, limits)
    assert drawn != first(8, 60, limits)
    assert works.drawn(7, 41, limits) == drawn[41]
    some = ["gemm", "rows"]
    by_family = itertools.islice(works.sample(7, limits, some), 10)
    assert list(by_family) == [work for work in drawn if work.family in some][:10]
    assert sweep.parsed(["--seed", "7", "--only", "41"]).only == [41]
    assert list(sweep.chosen(sweep.parsed(["--seed", "7", "--only", "41"]))) == [drawn[41]]


def test_bounds_that_leave_nothing_are_an_error() -> None:
    with pytest.raises(ValueError, match="leave nothing"):
        first(0, 100, replace(TINY, flops=1.0, f32_flops=1.0))


def test_the_placement_of_tensors_is_drawn_too() -> None:
    drawn = first(3, 400, LIMITS["cuda"])
    for name in ("offset", "pad", "results_too"):
        assert 0.02 < np.mean([bool(getattr(work, name)) for work in drawn]) < 0.2


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_merged_dimensions_address_the_same_elements(order: tuple[int, ...]) -> None:
    view = np.arange(2 * 3 * 4 * 10).reshape(2, 3, 4, 10)[..., :7].transpose(order)  # rows lie apart
    out = np.zeros(view.shape, view.dtype)
    strides = [[stride // view.itemsize for stride in array.strides] for array in (view, out)]
    sizes, merged = works.merged_strides(view.shape, *strides)
    source, target = (
        np.lib.stride_tricks.as_strided(array, sizes, [view.itemsize * stride for stride in found])
        for array, found in zip((view, out), merged, strict=True)
    )
    target[...] = source
    np.testing.assert_array_equal(out, view)
    assert len(sizes) == 4 - sum(a + 1 == b < 3 for a, b in itertools.pairwise(order))


def test_blocks_are_powers_of_two_within_their_bounds() -> None:
    assert works.blocks((1000, 5, 33), [(2, 64), (0, 64), (1, 2048)], 2048) == [32, 1, 64]
    assert works.blocks((3, 100_000), [(1, 1024), (0, 2048)], 2048) == [2, 1024]


def outcome(number: int, ratio: float | None, error: str = "") -> report.Outcome:
    """Return an outcome of a work on rows that a copy takes as long for."""
    work = replace(works.drawn(0, number, LIMITS["cuda"]), family="rows", flops=0.0)
    if error:
        return report.Outcome(work, error=error)
    seconds = {"tessera": 1e-3, "copy": 1e-3} | ({} if ratio is None else {"slow": 9.0, "fast": ratio * 1e-3})
    return report.Outcome(work, seconds)


def test_the_fastest_peer_counts_and_failures_are_zero() -> None:
    assert outcome(1, 0.5).ratio == pytest.approx(0.5)
    assert outcome(1, 0.5).peer == "fast"
    assert outcome(1, None).ratio is None
    failed = outcome(1, 1.0, "WrongResult: nothing")
    assert (failed.ratio, failed.of_copy) == (0.0, 0.0)
    assert report.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert report.geometric_mean([0.0, 2.0]) == 0.0
    assert report.low(range(1, 101)) == 6  # five of a hundred lie below
    assert report.low([3.0, 1.0]) == 1.0
    assert report.command_of(outcome(31, 1.0), 7, "cuda") == "python benchmarks/sweep.py --seed 7 --only 31"


@needs_torch
def test_tiny_works_of_every_family_are_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sweep.LIMITS, "cpu", TINY)
    monkeypatch.setattr(
        sweep.Bench, "_timed", lambda self, calls: {name: (call(), 1.0)[1] for name, call in calls.items()}
    )
    chosen = {work.family: work.number for work in reversed(first(11, 60, TINY))}
    assert set(chosen) == set(FAMILIES)
    path = tmp_path / "sweep.csv"
    numbers = [str(number) for number in chosen.values()]
    status = sweep.main(["--device", "cpu", "--seed", "11", "--csv", str(path), "--turns", "1", "--only", *numbers])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["number"] for line in lines] == numbers
    assert not any(line["error"] for line in lines)
    assert {line["ratio"] for line in lines} == {"1.0"}, [line["notes"] for line in lines]
    assert f"{len(FAMILIES)} of {len(FAMILIES)} works were run" in shown.out


@needs_torch
@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_fault_of_ours_is_told_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    def broken(*arguments: Any) -> None:
        if fault == "raises":
            raise ValueError("on purpose")

    monkeypatch.setitem(sweep.LIMITS, "cpu", TINY)
    monkeypatch.setattr("sweep_kernels.gather", broken)
    monkeypatch.setattr(sweep.Bench, "_timed", lambda self, calls: dict.fromkeys(calls, 1.0))
    numbers = [w.number for w in first(0, 200, TINY) if w.kind in ("gather", "scatter")][:3]
    assert sweep.main(["--device", "cpu", "--family", "gathers", "--count", "3"]) == 1
    shown = capsys.readouterr().out
    assert "failed:" in shown
    broken_numbers = [number for number in numbers if works.drawn(0, number, TINY).kind == "gather"]
    assert broken_numbers
    for number in broken_numbers:
        assert f"--seed 0 --only {number} --device cpu" in shown
    assert ("WrongResult" if fault == "wrong" else "ValueError: on purpose") in shown
    assert "3 of 3 works were run" in shown


@needs_torch
def test_time_that_is_over_starts_no_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["--device", "cpu", "--minutes", "1e-9"]) == 0
    assert "0 of 150 works were run" in capsys.readouterr().out


def test_without_pytorch_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "torch_or_none", lambda: None)
    assert sweep.main([]) == 2
    assert "PyTorch and a GPU" in capsys.readouterr().err
