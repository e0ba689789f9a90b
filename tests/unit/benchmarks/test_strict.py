"""benchmarks/strict.py: its works are right under both profiles, and one small run."""

from __future__ import annotations

import numpy as np
import pytest
import strict

import tessera as ts

REFERENCES = {
    "sum of rows": lambda x: x.sum(1),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "cumsum": lambda x: x.cumsum(1),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "gemm f32": lambda a, b: a @ b,
    "gemv f32, contiguous along K": lambda a, b: a @ b.T,
}


@pytest.mark.parametrize("profile", strict.PROFILES)
def test_works_are_right(profile: str) -> None:
    found = {work.name: work for work in strict.works(quick=True)}
    for name, reference in REFERENCES.items():
        *given, result = found[name].arguments
        with ts.numerics.profile(profile):
            found[name].call(*given, result)
        exact = reference(*(x.astype(np.float64) for x in given))
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-4)


def test_a_small_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["strict.py", "--quick", "--seconds", "0.01", "--only", "sum of rows"])
    assert strict.main() == 0
    assert "strict / fast" in capsys.readouterr().out
