"""The GPT of the examples: its losses are PyTorch's in float64, and its kernels compile for a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gpt
import numpy as np
import pytest

import tessera as ts

torch = pytest.importorskip("torch")

SMALL = gpt.Config(layers=2, heads=2, width=32, context=16, batch=2, rate=1e-2, steps=4, seed=3)
TEXT = gpt.Text("a text of some letters " * 3 + "yuiop")


def losses(step: Any, tensors: bool) -> list[float]:
    return gpt.curve(step, TEXT, SMALL, gpt.placed("cpu", tensors), 0, "")


def test_losses_are_those_of_pytorch() -> None:
    weights = gpt.initial(SMALL, len(TEXT.letters), np.float64)
    theirs = losses(gpt.torch_step(SMALL, gpt.mapped(gpt.placed("cpu", True), weights)), True)
    arrays = gpt.Tessera(SMALL, gpt.mapped(np.copy, weights))
    np.testing.assert_allclose(losses(arrays, False), theirs, rtol=1e-12)
    tensors = gpt.Tessera(SMALL, gpt.mapped(gpt.placed("cpu", True), weights))
    np.testing.assert_allclose(losses(tensors, True), theirs, rtol=1e-12)
    assert theirs[-1] < theirs[0]
    sample = arrays.sample(TEXT, lambda array: array, "a text ", 5)
    assert sample.startswith("a text ")
    assert len(sample) == 12
    program: Any = gpt.train_step._last[0].program
    for group in [*program.kernels.values()][:2]:
        artifact = ts.compile(group, target="sm_90a")
        assert artifact.code.startswith(b"\x7fELF")


def test_the_rate_rises_and_falls() -> None:
    config = gpt.Config(steps=100)
    rates = [config.rate_at(step) for step in range(1, 101)]
    assert np.argmax(rates) == 9
    assert rates[9] == config.rate
    assert abs(rates[-1] - 0.1 * config.rate) < 1e-12


def test_it_says_what_it_takes() -> None:
    path = Path(gpt.__file__)
    done = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "--compare" in done.stdout
