"""What graphs need is compiled before they run, by several processes, and nothing is launched meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import tessera as ts
from tessera import ops
from tessera.driver import ahead
from tessera.driver.variants import Variants
from tessera.errors import TesseraError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux alone")


class Compiled:
    """What this process compiles, and what it finds."""

    def __init__(self) -> None:
        self.late: list[str] = []
        self.ahead: list[str] = []


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiled:
    """Let two processes compile, into a cache of their own, and note which kernels are compiled late."""
    monkeypatch.setenv("TESSERA_COMPILE_PROCESSES", "2")
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    found = Compiled()
    inside = [False]
    compile_, before = cast(Any, Variants)._made, ahead.Wants.compile

    def noted(self: Any, *args: Any) -> Any:
        (found.ahead if inside[0] else found.late).append(self._signature.name)
        return compile_(self, *args)

    def all_at_once(self: ahead.Wants) -> None:
        inside[0] = True
        before(self)
        inside[0] = False

    monkeypatch.setattr(Variants, "_made", noted)
    monkeypatch.setattr(ahead.Wants, "compile", all_at_once)
    return found


def kept(folder: Path) -> int:
    """Return how many kernels are in the cache."""
    return len(list((folder / "cache").glob("artifacts/*/*/*.art")))


def test_processes_compile_what_a_function_needs(compiled: Compiled, tmp_path: Path) -> None:
    @ts.jit
    def layer(x: Any, w: Any) -> Any:
        y = np.tanh(ops.softmax(x @ w) @ w.T)
        return y - np.mean(y, axis=0)

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((37, 19)), rng.standard_normal((19, 23))
    got = layer(x, w)
    scores = np.exp(x @ w)
    y = np.tanh(scores / scores.sum(-1, keepdims=True) @ w.T)
    np.testing.assert_allclose(got, y - y.mean(0), rtol=1e-9, atol=1e-12)
    assert compiled.late == []
    assert kept(tmp_path) > len(compiled.ahead) > 0  # the rest by the other process
    assert "disk cache" not in str(layer.explain())


def test_arguments_stay_as_they_are_until_it_runs(compiled: Compiled) -> None:
    @ts.jit
    def step(w: Any, m: Any, x: Any) -> Any:
        grad = x.T @ np.tanh(x @ w)
        ops.optim.sgd_([w], [grad], [m], 1, lr=0.1, momentum=0.9)
        return np.sum(w * w)

    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((8, 8)).astype(np.float32), rng.standard_normal((21, 8)).astype(np.float32)
    m = np.zeros_like(w)
    grad = x.T.astype(np.float64) @ np.tanh(x.astype(np.float64) @ w.astype(np.float64))
    want = w - 0.1 * grad
    total = step(w, m, x)
    np.testing.assert_allclose(w, want, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(total, np.sum(want * want), rtol=1e-4)


def test_places_are_not_read_before_they_are_computed(compiled: Compiled) -> None:
    """Ops of PyTorch that take places from arrays would fail on what a new array happens to hold."""

    def chosen(table: Any, index: Any, x: Any) -> Any:
        rows = torch.nn.functional.embedding((index * 2) % 7, table)
        order = torch.argsort((x @ x.T).sum(0))
        return torch.fft.fft(rows).abs()[order] @ x.T, torch.take_along_dim(x, order[:, None], 0)

    table, index, x = torch.randn(7, 16), torch.arange(5), torch.randn(5, 16)
    compiled_one = torch.compile(chosen, backend="tessera")
    for got, want in zip(compiled_one(table, index, x), chosen(table, index, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert compiled.late == []


def test_training_steps(compiled: Compiled, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(12, 20), torch.nn.LayerNorm(20), torch.nn.GELU(), torch.nn.Linear(20, 4)
    )
    x = torch.randn(9, 12)
    torch.compile(module, backend="tessera")(x).square().sum().backward()
    got = [one.grad.clone() for one in module.parameters()]
    double = module.double()
    for one in double.parameters():
        one.grad = None
    double(x.double()).square().sum().backward()
    for ours, one in zip(got, double.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), one.grad, rtol=1e-4, atol=1e-5)
    assert compiled.late == []
    assert kept(tmp_path) > len(compiled.ahead) > 0


def _two(x: Any) -> Any:
    y = np.exp(x) / np.sum(np.exp(x), axis=0)
    return np.sqrt(np.sum(y * y, axis=0)) + ops.cumsum(x, 1)[0]


@pytest.mark.parametrize("variable", ["TESSERA_CACHE_SIZE_MB", "TESSERA_COMPILE_PROCESSES", "TESSERA_DUMP_DIR"])
def test_one_process_where_others_could_not_hand_over(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    values = {"TESSERA_CACHE_SIZE_MB": "0", "TESSERA_COMPILE_PROCESSES": "1", "TESSERA_DUMP_DIR": str(tmp_path)}
    monkeypatch.setenv(variable, values[variable])
    monkeypatch.setattr(os, "fork", _refused)
    x = np.random.default_rng(2).standard_normal((6, 11))
    np.testing.assert_allclose(ts.jit(_two)(x), _reference(x), rtol=1e-9)
    assert len(compiled.late) > 1
    assert not compiled.ahead


def _reference(x: Any) -> Any:
    y = np.exp(x) / np.exp(x).sum(0)
    return np.sqrt((y * y).sum(0)) + np.cumsum(x, axis=1)[0]


def _refused() -> int:
    raise AssertionError("forked")


def test_an_error_is_said_by_the_call_that_needs_the_code(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing: Callable[..., Any] = cast(Any, Variants)._made

    def fail(self: Any, *args: Any) -> Any:
        raise TesseraError("no code", code="no-code")

    monkeypatch.setattr(Variants, "_made", fail)
    x = np.random.default_rng(3).standard_normal((6, 11))
    function = ts.jit(_two)
    with pytest.raises(TesseraError, match="no code"):
        function(x)
    monkeypatch.setattr(Variants, "_made", failing)
    np.testing.assert_allclose(function(x), _reference(x), rtol=1e-9)


def test_sizes_that_are_compiled_in_make_other_kernels(compiled: Compiled) -> None:
    @ts.jit
    def norms(*given: Any) -> Any:
        return [ops.softmax(x @ x.T) for x in given]

    rng = np.random.default_rng(4)
    given = [rng.standard_normal((rows, 5)) for rows in (3, 4, 17, 33, 70, 131)]
    for got, x in zip(norms(*given), given, strict=True):
        scores = np.exp(x @ x.T - (x @ x.T).max(-1, keepdims=True))
        np.testing.assert_allclose(got, scores / scores.sum(-1, keepdims=True), rtol=1e-9)
    assert compiled.late == []
