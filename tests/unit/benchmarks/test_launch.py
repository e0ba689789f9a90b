"""benchmarks/launch.py: its kernels are right, and without a GPU it says so."""

from __future__ import annotations

import launch
import numpy as np
import pytest


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_kernel_adds_its_arrays(count: int) -> None:
    arrays = list(np.random.default_rng(count).standard_normal((count, 100)).astype(np.float32))
    expected = np.sum(arrays, axis=0, dtype=np.float64)
    launch.KERNELS[count](*arrays)
    np.testing.assert_allclose(arrays[0], expected, rtol=1e-5, atol=1e-6)


def test_without_pytorch_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "torch_or_none", lambda: None)
    monkeypatch.setattr("sys.argv", ["launch.py"])
    assert launch.main() == 2
    assert "PyTorch and a GPU" in capsys.readouterr().err
