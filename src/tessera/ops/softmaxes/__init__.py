"""Softmax, its logarithm and logsumexp; `tessera.ops` has them by name."""

from tessera.ops.softmaxes.log_softmax import log_softmax
from tessera.ops.softmaxes.logsumexp import logsumexp
from tessera.ops.softmaxes.softmax import softmax

__all__ = ["log_softmax", "logsumexp", "softmax"]
