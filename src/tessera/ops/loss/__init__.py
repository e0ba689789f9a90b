"""Losses, with the signatures of `torch.nn.functional`."""

from tessera.ops.loss.binary import bce, bce_with_logits
from tessera.ops.loss.cross_entropy import cross_entropy
from tessera.ops.loss.distances import huber, l1, mse, smooth_l1
from tessera.ops.loss.divergences import js, kl_div
from tessera.ops.loss.linear_cross_entropy import linear_cross_entropy
from tessera.ops.loss.pairs import cosine_embedding, triplet_margin

__all__ = [
    "bce",
    "bce_with_logits",
    "cosine_embedding",
    "cross_entropy",
    "huber",
    "js",
    "kl_div",
    "l1",
    "linear_cross_entropy",
    "mse",
    "smooth_l1",
    "triplet_margin",
]
