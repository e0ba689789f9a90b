"""What `benchmarks/regret.py` measures and prints, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

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
    regret.printed([row(1, 3e-6, True), row(1, 2e-6, False), row(2, 1e-6, True), row(2, 4e-6, False)])
    lines = capsys.readouterr().out.splitlines()
    assert "[2] gemm 2: regret 0%, 3.00 of PyTorch (3.00 at best)" in lines[0]
    assert "[1] gemm 1: regret 50%, 1.00 of PyTorch (1.50 at best)" in lines[1]
    assert lines[2] == "2 works, 4 schedules: regret 25.0% in the mean, 50% at most; 1.73 of PyTorch"


class Workers:
    """Processes that put what they are told on a queue, then end with a status."""

    def __init__(self, told: list[Any], exitcode: int):
        self.told, self.exitcode = told, exitcode
        self.Barrier, self.Lock, self.Queue = (lambda *_: None,) * 2 + (lambda: self,)
        self.Process = lambda target, args: self

    def get(self) -> Any:
        return self.told.pop(0)

    def start(self) -> None: ...

    def join(self) -> None: ...


@pytest.mark.parametrize(
    ("told", "exitcode", "status"),
    [
        ([row(1, 3e-6, True)], 0, 0),
        ([row(1, 3e-6, True), "[2] gemm 2: wrong"], 0, 1),
        (["[1] gemm 1: wrong", row(1, 3e-6, False)], 0, 1),
        ([row(1, 3e-6, True)], 1, 1),
        ([], 0, 1),
    ],
)
def test_a_wrong_result_or_a_process_that_fails_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: list[Any], exitcode: int, status: int
) -> None:
    workers = Workers([*told, None], exitcode)
    monkeypatch.setattr(
        regret, "torch_or_none", lambda: SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    )
    monkeypatch.setattr(regret.multiprocessing, "get_context", lambda _: workers)
    faults = [one for one in told if isinstance(one, str)]
    assert regret.main(["--jobs", "1"]) == status
    shown = capsys.readouterr().out
    assert all(fault in shown for fault in faults)
    assert ("ended with status 1" in shown) == bool(exitcode)


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
