"""Margins of labels: PyTorch's own parts count the first class for each place behind the last label."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_plain = torch.nn.functional.multilabel_margin_loss
_TOTALS: dict[str, Any] = {"mean": torch.mean, "sum": torch.sum, "none": torch.Tensor.contiguous}
_NO_LABEL = -1


def margin_of_labels(x: Any, labels: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Any:
    """Return what `multilabel_margin_loss` gives: how far classes without a label come near to those with one.

    Args:
        x: scores, `(N, C)`, `(C,)` or `()`.
        labels: integers of the same shape: the classes of a row up to the first -1.
        size_average: replaced by `reduction`; where it is given PyTorch computes.
        reduce: the same.
        reduction: `none` for the losses, `(N,)`; `mean` or `sum` of them.
    """
    if size_average is not None or reduce is not None or labels.shape != x.shape or reduction not in _TOTALS:
        return _plain(x, labels, size_average, reduce, reduction)
    if not x.ndim:  # a single class
        x, labels = x.reshape(1), labels.reshape(1)
    is_label = (labels == _NO_LABEL).cumsum(-1) == 0
    labels = torch.where(is_label, labels, 0)
    classes = torch.arange(x.shape[-1], device=x.device)
    has_label = ((labels.unsqueeze(-1) == classes) & is_label.unsqueeze(-1)).any(-2, keepdim=True)
    gaps = (1 - x.gather(-1, labels).unsqueeze(-1) + x.unsqueeze(-2)).relu()
    counted = is_label.unsqueeze(-1) & ~has_label
    losses = torch.where(counted, gaps, 0).sum((-2, -1)) / x.shape[-1]
    return _TOTALS[reduction](losses)
