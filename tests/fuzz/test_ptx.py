"""The emulated GPU: what it agrees with, and the faults of PTX, of launches and of schedules that it finds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.target.artifact import Artifact, Launch
from tessera.tools.emulate.errors import Fault, TooLong
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import contents, placed
from tessera.tools.fuzz.campaign import Job, campaign, seeds
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.meaning import meaning
from tessera.tools.fuzz.ptx import compiled, emulated, run
from tessera.tools.fuzz.run import Device as Where
from tessera.tools.fuzz.run import differences
from tessera.tools.fuzz.serial import loads
from tests.fuzz.test_in_step import M, N, sums

ROWS = ((M, N), (N, 1)), ((M,), (1,))


def artifact(target: str = "sm_80") -> Artifact:
    return ts.compile(sums, target=target, dims={"m": M, "n": N}, dump=["ptx"])


def edited(given: Artifact, old: str, new: str) -> Artifact:
    text = given.dumps["ptx"]
    assert isinstance(text, str)
    assert old in text
    return replace(given, dumps={"ptx": text.replace(old, new, 1)})


def totals(given: Artifact, order: int | None = None, budget: int = 10**7) -> tuple[Any, Any]:
    """Return what the kernel stores, and the sums of its argument's rows."""
    x = np.random.default_rng(0).integers(-8, 8, (M, N)).astype(np.float32)
    y, device = np.full(M, np.nan, np.float32), Device()
    pointers = [device.add(array.reshape(-1).view(np.uint8), np.ones(array.nbytes, bool)) for array in (x, y)]
    Emulation(given).run(device, pointers, ROWS, [], Limits(budget, order))
    return device.back(1).view(np.float32), x.sum(1)


@pytest.mark.parametrize("order", [None, 0, 1])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_sums_are_those_of_numpy(target: str, order: int | None) -> None:
    np.testing.assert_array_equal(*totals(artifact(target), order))


def test_an_exchange_with_the_wrong_lane_gives_other_sums() -> None:
    found, expected = totals(edited(artifact(), "shfl.sync.bfly.b32 \t%r", "shfl.sync.up.b32 \t%r"))
    assert (found != expected).any()


def test_a_launch_that_takes_an_array_for_longer_than_it_is_is_found() -> None:
    given = artifact()
    (launch,) = given.launches
    params = tuple(replace(one, axis=1) if one.kind == "size" and one.axis == 0 else one for one in launch.params)
    longer = replace(launch, params=params, grid=((["size", 0, 1], 4),))
    with pytest.raises(Fault, match="outside of all arrays"):
        totals(replace(given, launches=(longer,)))


def test_a_launch_with_another_number_of_parameters_is_found() -> None:
    given = artifact()
    (launch,) = given.launches
    fewer: Launch = replace(launch, params=launch.params[:-1])
    with pytest.raises(Fault, match="parameters"):
        totals(replace(given, launches=(fewer,)))


def test_a_kernel_that_takes_too_long_is_left() -> None:
    with pytest.raises(TooLong):
        totals(artifact(), budget=1000)


@ts.kernel
def one_by_one(
    x: ts.Tensor["m", ts.i32], total: ts.Tensor[1, ts.i32], lock: ts.Tensor[1, ts.i32], order: ts.Tensor["p", ts.i32]
) -> None:
    for i in ts.tile.grid((m, 16)):
        ticket = ts.tile.atomic_add(lock[0], 1)
        while ts.tile.atomic_load(order[ticket], order="acquire") == 0:
            pass
        total[0] = total[0] + ts.tile.sum(x[i : i + 16])
        ts.tile.atomic_store(order[ticket + 1], 1, order="release")


def test_programs_that_spin_let_others_go_on() -> None:
    given = ts.compile(one_by_one, target="sm_80", dims={"m": 100, "p": 8}, dump=["ptx"])
    x, order = np.arange(100, dtype=np.int32), np.array([1] + [0] * 7, np.int32)
    shapes = tuple(((size,), (1,)) for size in (100, 1, 1, 8))
    for turns in (None, 0, 1):
        device = Device()
        arrays = (x, np.zeros(1, np.int32), np.zeros(1, np.int32), order)
        pointers = [device.add(one.view(np.uint8), np.ones(one.nbytes, bool)) for one in arrays]
        Emulation(given).run(device, pointers, shapes, [], Limits(10**8, turns))
        assert device.back(1).view(np.int32)[0] == x.sum()
        assert device.back(3).view(np.int32).all()


@ts.kernel
def tails(x: ts.Tensor["m", ts.i16], y: ts.Tensor["m", ts.i16]) -> None:
    for i in ts.tile.grid((m, 8)):
        buffer = ts.tile.alloc_shared((8,), ts.i16)
        ts.tile.cp_async(buffer, x[i : i + 8])
        ts.tile.commit_group()
        ts.tile.wait_group(0)
        ts.tile.barrier()
        y[i : i + 8] = buffer


def copied(text: str, given: Artifact) -> tuple[Any, Any]:
    """Return 11 numbers and what `tails` makes of them; the last one shares its word with none."""
    x, y, device = np.arange(1, 12, dtype=np.int16), np.zeros(11, np.int16), Device()
    pointers = [device.add(array.view(np.uint8), np.ones(array.nbytes, bool)) for array in (x, y)]
    Emulation(replace(given, dumps={"ptx": text})).run(device, pointers, (((11,), (1,)),) * 2, [], Limits(10**7))
    return x, device.back(1).view(np.int16)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_of_the_word_that_an_array_ends_in_no_more_than_its_elements_is_copied(target: str) -> None:
    """LLVM knows that the words of these runs are aligned, so that no address is rounded."""
    given = ts.compile(tails, target=target, dump=["ptx"])
    text = given.dumps["ptx"]
    assert isinstance(text, str)
    assert "ld.weak.global.b32" in text
    np.testing.assert_array_equal(*copied(text, given))
    with pytest.raises(Fault, match="outside of all arrays"):
        copied(text.replace("ld.weak.global", "ld.global"), given)
    with pytest.raises(Fault, match="outside of all arrays"):
        copied(re.sub(r"@%p\d+ ld.weak", "ld.weak", text), given)


def test_random_programs_are_as_they_mean() -> None:
    job = Job(Where("ptx", "sm_90a"), Options(), coverage=False, metamorphic=0.5)
    summary = campaign(job, seeds(1000), 1, programs=8, seconds=None)
    assert not summary.failures
    assert summary.kinds["same"] >= 6
    assert not summary.skips


@pytest.mark.parametrize("seed", [5006, 5008, 5022, 5038])
def test_products_and_reductions_of_hopper_are_as_they_mean(seed: int, tmp_path: Path) -> None:
    """Bulk copies, warpgroup products with roles, split sums between programs, clusters."""
    outcome = emulated(generate(seed, Options(plans=1)), tmp_path, ("sm_90a",))
    assert outcome.kind == "same", outcome.detail


def test_a_turn_in_which_all_warps_meet_is_none(tmp_path: Path) -> None:
    """A bias goes from warp to warp between two products; a warpgroup that had the turn would wait for the other."""
    outcome = emulated(saved("turns-in-which-warps-meet"), tmp_path, ("sm_90a",))
    assert outcome.kind == "same", outcome.detail


def test_a_missing_barrier_is_found(tmp_path: Path) -> None:
    assert not wrong(saved("threads-share-a-buffer"), "sm_80", "bar.sync \t0", "bar.sync \t0", tmp_path)
    with pytest.raises(Fault, match="nothing orders the two"):
        wrong(saved("threads-share-a-buffer"), "sm_80", "bar.sync \t0", "bar.warp.sync \t-1", tmp_path)


@pytest.mark.parametrize(("pending", "found"), [(1, False), (9, True)])
def test_products_whose_operands_are_given_back_before_they_are_done_are_found(
    pending: int, found: bool, tmp_path: Path
) -> None:
    program = saved("consumers-take-turns")  # two groups of consumers, five steps in three stages
    edit = "wgmma.wait_group.sync.aligned 1", f"wgmma.wait_group.sync.aligned {pending}"
    assert bool(wrong(program, "sm_90a", *edit, tmp_path)) is found


def test_products_that_are_read_before_they_are_done_are_found(tmp_path: Path) -> None:
    program = saved("consumers-take-turns")
    edit = "wgmma.wait_group.sync.aligned 0", "wgmma.wait_group.sync.aligned 9"
    assert wrong(program, "sm_90a", *edit, tmp_path)


def saved(name: str) -> tree.Program:
    """Return a program that `tessera fuzz --save` wrote."""
    return loads((Path(__file__).parent / "programs" / f"{name}.json").read_text(encoding="utf-8"))


def wrong(program: tree.Program, target: str, old: str, new: str, folder: Path) -> list[str]:
    """Return what a program stores wrongly where a text of its PTX is another."""
    values = {tensor.name: contents(tensor, program.seed) for tensor in program.tensors}
    expected, _ = meaning(program, values)
    given = compiled(program, folder, values, target)
    text = given.dumps["ptx"]
    assert isinstance(text, str)
    assert old in text
    arrays = {tensor.name: placed(values[tensor.name], tensor.layout) for tensor in program.tensors}
    run(replace(given, dumps={"ptx": text.replace(old, new)}), program, arrays, Limits(10**8, order=1))
    return differences(program, arrays, expected)
