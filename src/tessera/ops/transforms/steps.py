"""The step behind Hadamard transforms: its own gradient, with signs on the other side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ops import arrays, rows
from tessera.ops.steps import Arguments, Gradient, Step, like
from tessera.ops.transforms import kernels

_ELEMENTS = 2048
"""Elements of the rows of a program, where one row has fewer."""


def together(width: int) -> int:
    """Return how many rows of a width a program transforms."""
    return max(1, _ELEMENTS // width)


def _results(x: Any, signs: Any, scale: float) -> Arguments:
    return (like(x, x.shape),)


def _launch(after: bool) -> Any:
    def launch(results: Arguments, x: Any, signs: Any, scale: float) -> None:
        (out,) = results
        if 0 in x.shape:
            return
        acc = rows.accumulator(arrays.dtype_of(x))
        kernels.transform(x, signs, out, scale, after=after, acc=acc, R=together(int(x.shape[1])))

    return launch


_SCHEMA = "(Tensor x, Tensor? signs, float scale) -> Tensor"

BACKWARD = Step("hadamard_backward", _SCHEMA, _results, _launch(after=True))


def _keep(given: Arguments, results: Arguments) -> Arguments:
    return given[1:]


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return rows.contiguous(grads[0]), *kept


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    return 0, None, None


FORWARD = Step(
    "hadamard", _SCHEMA, _results, _launch(after=False), Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of)
)
