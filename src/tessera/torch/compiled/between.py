"""Distances between the rows of one matrix: part of those between all pairs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_pairs = torch.pdist


def between(x: Any, p: float = 2.0) -> Any:
    """Return what `torch.pdist` gives: distances of order `p` between rows `(N, M)`, `(N * (N - 1) / 2,)`."""
    if x.ndim != 2 or x.shape[0] < 2:
        return _pairs(x, p)
    row, column = _places(x.shape[0], x.device)
    return torch.cdist(x, x, p, "donot_use_mm_for_euclid_dist")[row, column]


def _places(count: Any, device: Any) -> tuple[Any, Any]:
    """Return the rows and columns above the diagonal of a square matrix, row by row."""
    if isinstance(count, int):
        row, column = torch.triu_indices(count, count, 1, device=device)
        return row, column
    rows = torch.arange(count, device=device)  # `triu_indices` takes no size that is a symbol
    starts = rows * count - rows * (rows + 1) // 2
    place = torch.arange(count * (count - 1) // 2, device=device)
    row = torch.searchsorted(starts, place, right=True) - 1
    return row, place - starts[row] + row + 1
