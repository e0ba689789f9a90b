"""Optimizers that change lists of parameters in place: `adamw_`, `lion_`, `sgd_`, and `clip_grad_norm_`."""

from tessera.ops.optim.adamw import adamw_
from tessera.ops.optim.clip import clip_grad_norm_
from tessera.ops.optim.lion import lion_
from tessera.ops.optim.sgd import sgd_

__all__ = ["adamw_", "clip_grad_norm_", "lion_", "sgd_"]
