"""The kernels that `benchmarks/tiles.py` measures, on the CPU."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import tiles


@pytest.mark.parametrize("block", ["96x192x48", "128x80x32"])
def test_products_in_any_tile(block: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((200, 104), (104, 248)))
    out = np.full((200, 248), np.nan, ml_dtypes.bfloat16)
    tiles.product_in(*tiles.block_of(block), {})(a, b, out)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(out.astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error < tiles.ERROR["product"]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "torch_or_none", lambda: None)
    monkeypatch.setattr(sys, "argv", ["tiles.py"])
    with pytest.raises(SystemExit, match="needs PyTorch and a GPU"):
        tiles.main()
