"""What `benchmarks/regret.py` measures and prints, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import regret

import tessera as ts
from tessera.ops.linalg.plan import plan, ranked
from tessera.ops.linalg.prepare import sized
from tessera.ops.linalg.problem import Options
from tessera.target.registry import target_named


def row(number: int, seconds: float, chosen: bool) -> regret.Row:
    return regret.Row(number, f"gemm {number}", "a schedule", 1e-6, seconds, 3e-6, chosen)


def test_regret_is_the_time_beyond_that_of_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    assert regret.printed([row(1, 3e-6, True), row(1, 2e-6, False), row(2, 1e-6, True), row(2, 4e-6, False)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "[2] gemm 2: regret 0%, 3.00 of PyTorch (3.00 at best)" in lines[0]
    assert "[1] gemm 1: regret 50%, 1.00 of PyTorch (1.50 at best)" in lines[1]
    assert lines[2] == "2 works, 4 schedules: regret 25.0% in the mean, 50% at most; 1.73 of PyTorch"


def test_a_wrong_choice_is_a_failure() -> None:
    assert regret.printed([row(1, 3e-6, False), row(2, 1e-6, True)]) == 1


def test_other_schedules_are_the_first_of_each_tile() -> None:
    problem, target = sized(1000, 777, 333, ts.bf16, ts.bf16, Options()), target_named("sm_90a")
    chosen, all_ = plan(problem, target), ranked(problem, target)
    found = list(regret.others(chosen, all_))
    assert found
    assert str(chosen) not in map(str, found)
    assert all(each.seconds <= regret.PREDICTED * chosen.seconds for each in found)
    tiles = [(each.path, each.block_m, each.block_n, each.turned, each.pack_a, each.pack_b) for each in found]
    assert max(map(tiles.count, tiles)) <= regret.OF_A_TILE
    slow = replace(all_[-1], seconds=10 * chosen.seconds)
    assert list(regret.others(chosen, [slow])) == []


def test_without_a_gpu_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(regret, "torch_or_none", lambda: None)
    assert regret.main([]) == 2
    assert "PyTorch and a GPU" in capsys.readouterr().err
