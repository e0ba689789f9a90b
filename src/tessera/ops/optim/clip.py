"""Clipping of gradients by the norm of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, bf16, f32, f64
from tessera.ops import arrays, rows
from tessera.ops.operation import library_op
from tessera.ops.optim import kernels, lists
from tessera.ops.refusals import checked, refused
from tessera.ops.steps import check_not_traced, like, written
from tessera.ops.traced import traced_among
from tessera.target.artifact import Artifact

_PIECE = 1024 * 16
"""Elements of a program of `square_sums`."""


@library_op
class ClipGradNorm:
    """Clipping of gradients; `__call__` says what it takes."""

    @checked
    def __call__(self, grads: lists.Tree, max_norm: float) -> Any:
        """Shrink gradients in place until the norm of all their elements is at most `max_norm`; return what it was.

        Args:
            grads: arrays of any shapes on one device, in lists, tuples and dictionaries; f64, f32, bf16 or f16.
            max_norm: the largest norm that is left alone.

        Returns:
            The norm before, an array of one element beside the first gradient: f32, f64 where a gradient is f64.
            Nothing is copied to the host. Infinite and NaN norms give zeros and NaNs, as in PyTorch.

        Raises:
            CallError: `not-an-array`, `wrong-dtype`, `bad-argument`, or `not-contiguous`.

        Numerics:
            Squares are added up in f32 by pieces (f64 where a gradient is f64), pieces in f64, both in one order: the
            same bits in every run. Gradients are multiplied by `max_norm / (norm + 1e-6)` where that is below 1.

        Source: `torch.nn.utils.clip_grad_norm_`.
        """
        given = lists.leaves(grads=grads)
        lists.check_lists(given, (), ())
        if not max_norm >= 0:
            raise refused(f"max_norm is {max_norm}", "bad-argument", "it is at least 0; inf clips nothing")
        some = given["grads"]
        if not some:
            raise refused("there are no gradients", "bad-argument", "give at least one array")
        wide = f64 if any(arrays.dtype_of(one).name == "f64" for one in some) else f32
        most = float(max_norm)
        traced = traced_among(some)
        if traced is None:
            check_not_traced()
            return _clip(some, most, wide)
        made = [traced.filled((1,), wide)]
        return traced.change("clip_grad_norm_", lambda changed, _read: [_clip(changed, most, wide)], some, (), made)[0]

    def reference(self, grads: Sequence[Any], max_norm: float) -> tuple[list[Any], float]:
        """Return the gradients after clipping and the norm before, in NumPy and float64."""
        wide = [arrays.host(one) for one in grads]
        norm = float(np.sqrt(sum((one * one).sum() for one in wide)))
        return [one * min(1.0, max_norm / (norm + 1e-6)) for one in wide], norm

    def explain(self) -> Any:
        """Return what the last kernel of sums of squares ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.square_sums.explain()

    def compile(self, count: int, dtype: DType = bf16, *, target: str | None = None) -> Artifact:
        """Return the kernel of sums of squares for so many elements; needs no device.

        Args:
            count: elements of a gradient.
            dtype: its dtype.
            target: as for `ts.compile`.
        """
        acc = rows.accumulator(dtype)
        return compiled(kernels.square_sums, target, (), {"M": 1, "N": count}, T=dtype, W=acc, acc=acc)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations for a gradient of a shape: its squares, their sum, and the factor."""
        return 3 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes for a gradient that is clipped: read twice and written once."""
        return 3 * prod(shape) * dtype.bytes


def _clip(grads: Sequence[Any], max_norm: float, wide: DType) -> Any:
    """Shrink gradients in place; return the norm before."""
    found = lists.in_memory([(one,) for one in grads])
    first = grads[0].detach() if arrays.is_torch(grads[0]) else grads[0]
    total = like(first, (1,), wide)
    sizes = [one.shape[0] * -(-one.shape[1] // _PIECE) for (one,) in found]
    if not sizes:
        arrays.zero(total)
        return total
    parts, start = like(first, (sum(sizes),), wide), 0
    for (one,), size in zip(found, sizes, strict=True):
        kernels.square_sums(one, parts, start, acc=wide)
        start += size
    kernels.norm(parts, total)
    if max_norm < inf:
        for (one,) in found:
            kernels.clip(one, total, max_norm, acc=wide)
        written(*grads)
    return total


clip_grad_norm_ = ClipGradNorm()
"""Clipping of gradients; see `ClipGradNorm.__call__`."""
