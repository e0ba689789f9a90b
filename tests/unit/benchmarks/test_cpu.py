"""benchmarks/cpu.py: which works there are, how they are judged, and one small run."""

from __future__ import annotations

import csv
from pathlib import Path

import cpu
import cpu_works as works
import pytest


def row(ours: float, error: float = 0.0, **work: object) -> cpu.Row:
    """Return a work of 4 GB that takes `ours` seconds, and two peers: a fast one that is wrong, and one of a second."""
    one = works.Work("rows", "w", "f32", 4.0, lambda _compile: None, **work)  # type: ignore[arg-type]
    seconds = {"tessera": ours, "wrong": 0.001, "right": 1.0}
    return cpu.Row(one, seconds, {"copy": 10.0}, {"tessera": error, "wrong": 0.5, "right": 0.0})


def test_a_whole_run_covers_what_the_issue_names() -> None:
    all_ = works.works(works.SECTIONS)
    count = {section: sum(work.section == section for work in all_) for section in works.SECTIONS}
    assert count["gemm"] == 12
    assert count["skinny"] == 6
    assert count["rows"] == 14
    assert count["attention"] == 16
    assert len({(work.section, work.name) for work in all_}) == len(all_)


def test_a_peer_whose_result_is_wrong_does_not_count() -> None:
    assert row(0.5).peer == "right"
    assert row(0.5).ratio == 2.0


def test_verdicts() -> None:
    assert row(0.5, ratio=1.3).verdict == "pass"
    assert row(0.9, ratio=1.3).verdict == "fail"
    assert row(0.5, ratio=1.3, share=("copy", 0.9)).verdict == "fail"
    assert row(0.4, ratio=1.3, share=("copy", 0.9)).verdict == "pass"
    assert row(0.5, error=1.0, ratio=1.3).verdict == "wrong"
    assert row(0.5).verdict == ""


def test_a_small_run_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "keep_freed_memory", lambda: None)  # this process goes on
    path = tmp_path / "rows.csv"
    given = ["--quick", "--only", "rows", "calls", "--match", "softmax", "residual", "NumPy", "--turns", "1"]
    assert cpu.main([*given, "--turn-s", "0.001", "--csv", str(path)]) == 0
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert {line["work"] for line in lines if line["contestant"] == "tessera"} == {
        "softmax f32 512x1024",
        "softmax bf16 512x1024",
        "residual+dropout f32 512x1024",
        "residual+dropout bf16 512x1024",
        "call with 4 NumPy arrays",
    }
    assert all(float(line["seconds"]) > 0 for line in lines)
    assert "softmax" in capsys.readouterr().out
