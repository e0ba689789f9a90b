"""Programs that once showed a fault: each runs right on the CPU, in the interpreter, there after each pass, as PTX on
an emulated GPU, and on a GPU where there is one.

A file is a program as `tessera.tools.fuzz.serial` writes it, already small. Its name says what was wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.driver import settings
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.ptx import emulated
from tessera.tools.fuzz.run import Device, check
from tessera.tools.fuzz.serial import dumps, loads
from tessera.tools.fuzz.source import source
from tessera.tools.fuzz.steps import checked

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))


@pytest.mark.parametrize("kind", ["cpu", "interp"])
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_past_failures(path: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.settings(), "interpret", kind == "interp")
    program = loads(path.read_text(encoding="utf-8"))
    outcome = check(program, Device(kind), tmp_path)
    assert outcome.kind == "same", f"{outcome.detail}\n{source(program)}"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_past_failures_on_an_emulated_gpu(path: Path, target: str, tmp_path: Path) -> None:
    program = loads(path.read_text(encoding="utf-8"))
    outcome = emulated(program, tmp_path, (target,))
    assert outcome.kind == "same", f"{outcome.detail}\n{source(program)}"


@pytest.mark.device
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_past_failures_on_a_gpu(path: Path, tmp_path: Path) -> None:
    program = loads(path.read_text(encoding="utf-8"))
    outcome = check(program, Device("cuda"), tmp_path)
    assert outcome.kind == "same", f"{outcome.detail}\n{source(program)}"


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_past_failures_after_each_pass(path: Path, tmp_path: Path) -> None:
    program = loads(path.read_text(encoding="utf-8"))
    outcome = checked(program, tmp_path)
    assert outcome.kind == "same", f"{outcome.detail}\n{source(program)}"


@pytest.mark.parametrize("seed", range(5))
def test_programs_are_what_was_written(seed: int) -> None:
    program = generate(seed)
    assert loads(dumps(program)) == program
