"""Distances between the rows of one matrix: part of those between all pairs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_pairs = torch.pdist


def between(x: Any, p: float = 2.0) -> Any:
    """Return what `torch.pdist` gives: distances of order `p` between rows `(N, M)`, `(N * (N - 1) / 2,)`."""
    if x.ndim != 2 or not isinstance(x.shape[0], int) or x.shape[0] < 2:
        return _pairs(x, p)
    row, column = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return torch.cdist(x, x, p, "donot_use_mm_for_euclid_dist")[row, column]
