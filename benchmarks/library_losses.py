"""Losses among the works of `library.py`: the input needs a gradient, the target none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from library_works import PLACE, Work, random_rows

from tessera import ops as op


def _probabilities(torch: Any, rows: int, width: int) -> Any:
    """Return rows of numbers between 0 and 1."""
    return random_rows(torch, rows, width).detach().sigmoid()


def _chances(torch: Any, rows: int, width: int) -> Any:
    """Return rows of probabilities that add up to 1 each."""
    return random_rows(torch, rows, width).detach().softmax(1)


def _of_elements(ours: Callable[..., Any], theirs: Callable[..., Any], x: Any, y: Any) -> Work:
    """Return a loss of elements: two arrays are read forward, one is written too backward."""
    return Work(ours, theirs, (x.detach().requires_grad_(), y.detach()), 2 * x.nbytes, 3 * x.nbytes)


def bce(torch: Any, rows: int, width: int) -> Work:
    """Binary cross entropy of probabilities."""
    x, y = _probabilities(torch, rows, width), _probabilities(torch, rows, width)
    return _of_elements(op.loss.bce, torch.nn.functional.binary_cross_entropy, x, y)


def bce_with_logits(torch: Any, rows: int, width: int) -> Work:
    """Binary cross entropy of logits."""
    x, y = random_rows(torch, rows, width), _probabilities(torch, rows, width)
    return _of_elements(op.loss.bce_with_logits, torch.nn.functional.binary_cross_entropy_with_logits, x, y)


def kl_div(torch: Any, rows: int, width: int) -> Work:
    """Kullback-Leibler divergence of logarithms and probabilities."""
    x, y = _chances(torch, rows, width).log(), _chances(torch, rows, width)
    f = torch.nn.functional
    return _of_elements(
        lambda x, y: op.loss.kl_div(x, y, reduction="batchmean"),
        lambda x, y: f.kl_div(x, y, reduction="batchmean"),
        x,
        y,
    )


def js(torch: Any, rows: int, width: int) -> Work:
    """Jensen-Shannon divergence of logarithms."""
    x, y = _chances(torch, rows, width).log(), _chances(torch, rows, width).log()
    f = torch.nn.functional

    def theirs(x: Any, y: Any) -> Any:
        middle = torch.logaddexp(x, y) - 0.6931471805599453
        parts = (f.kl_div(middle, one, reduction="batchmean", log_target=True) for one in (x, y))
        return sum(parts) / 2

    return _of_elements(lambda x, y: op.loss.js(x, y, log=True), theirs, x, y)


def huber(torch: Any, rows: int, width: int) -> Work:
    """Huber's loss."""
    x, y = random_rows(torch, rows, width), random_rows(torch, rows, width)
    return _of_elements(op.loss.huber, torch.nn.functional.huber_loss, x, y)


def cosine(torch: Any, rows: int, width: int) -> Work:
    """Cosine embedding loss of pairs of rows."""
    x, y = random_rows(torch, rows, width), random_rows(torch, rows, width)
    signs = 2 * torch.randint(0, 2, (rows,), device=PLACE.device) - 1
    theirs = torch.nn.functional.cosine_embedding_loss
    return Work(op.loss.cosine_embedding, theirs, (x, y, signs), 2 * x.nbytes, 4 * x.nbytes)


def triplet(torch: Any, rows: int, width: int) -> Work:
    """Triplet margin loss of rows."""
    given = tuple(random_rows(torch, rows, width) for _ in range(3))
    theirs = torch.nn.functional.triplet_margin_loss
    return Work(op.loss.triplet_margin, theirs, given, 3 * given[0].nbytes, 6 * given[0].nbytes)


LOSSES: dict[str, Callable[[Any, int, int], Work]] = {
    "bce": bce,
    "bce_with_logits": bce_with_logits,
    "kl_div": kl_div,
    "js": js,
    "huber": huber,
    "cosine": cosine,
    "triplet": triplet,
}
"""By name."""
