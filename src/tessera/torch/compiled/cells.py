"""Steps of recurrent networks as formulas: on GPUs PyTorch has one kernel for each, which no graph sees into."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_linear: Any = torch.nn.functional.linear


def gated(x: Any, h: Any, w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> Any:
    """Return what `torch.gru_cell` gives."""
    r_x, z_x, n_x = _linear(x, w_x, b_x).chunk(3, -1)
    r_h, z_h, n_h = _linear(h, w_h, b_h).chunk(3, -1)
    new = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return (h - new) * torch.sigmoid(z_x + z_h) + new


def remembered(x: Any, hc: Sequence[Any], w_x: Any, w_h: Any, b_x: Any = None, b_h: Any = None) -> tuple[Any, Any]:
    """Return what `torch.lstm_cell` gives."""
    h, c = hc
    i, f, g, o = (_linear(x, w_x, b_x) + _linear(h, w_h, b_h)).chunk(4, -1)
    cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell
