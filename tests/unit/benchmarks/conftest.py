"""Benchmarks turn PyTorch's gradients off in their process; tests behind them need them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _gradients() -> Iterator[None]:
    """Turn gradients on again."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_grad_enabled(True)
