"""benchmarks/explicit.py without a GPU: its kernels over slices are right, and it says what it needs."""

from __future__ import annotations

from typing import Any

import explicit
import ml_dtypes
import numpy as np
import pytest


@pytest.mark.parametrize("kernel", [explicit.slices_64, explicit.slices_128, explicit.kept(explicit.gemm_roles)])
def test_products(kernel: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in ((130, 70), (70, 140)))
    c = np.ones((130, 140), np.float32)
    kernel(a, b, c)
    np.testing.assert_array_equal(c, 1 + a.astype(np.float64) @ b.astype(np.float64))


def test_without_pytorch_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explicit, "torch_or_none", lambda: None)
    monkeypatch.setattr("sys.argv", ["explicit.py"])
    with pytest.raises(SystemExit, match="PyTorch and a GPU"):
        explicit.main()
