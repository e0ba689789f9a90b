"""Steps and chains of them: what a kernel's `Epilogue` parameter takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

import tessera as ts
from tessera.errors import CallError, caller_location
from tessera.frontend.structure import ConstantField, Layout, Structure
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.ops.refusals import checked

FORMALS = ("batch", "rows", "cols")

Axis = Literal["tensor", "row", "col"]
Reference = Callable[[Any], Any]


class Step(Structure):
    """One step of a chain; made by the functions of this module.

    Args:
        layout: what of it is compiled in.
        values: its tensors and numbers.
        reference: what it does to a float64 array, in NumPy.
        flops: operations per element.
        out_dtype: dtype of what it gives, None for that of its operand.
        weight: registers it needs beside its operand: 0 for few, 1 for about as many again, 2 for several times that.
    """

    __slots__ = ("flops", "out_dtype", "reference", "weight")

    def __init__(
        self,
        layout: Layout,
        values: tuple[Any, ...],
        reference: Reference,
        flops: int = 1,
        out_dtype: DType | None = None,
        weight: int = 0,
    ) -> None:
        super().__init__(layout, values)
        self.reference = reference
        self.flops = flops
        self.out_dtype = out_dtype
        self.weight = weight

    @property
    def reduces(self) -> str:
        """What its numbers belong to where it combines results: `row` or `col`, else nothing."""
        return ""

    def bound(self, sizes: Mapping[str, int]) -> Step:
        """Return the step for one launch."""
        return self

    def __repr__(self) -> str:
        return f"<epilogue step {self.layout.label}>"


class Epilogue(Structure):
    """A chain of steps, applied in order.

    As an annotation it takes the kernel's dimensions that the tile's rows and columns belong to, with one for the
    batch before them where there is one: `Epilogue["M", "N"]`, `Epilogue["B", "M", "N"]`. In the kernel's body
    `epilogue(x, m, n)` applies it to the tile whose first element is `(m, n)`; `epilogue(x, m, n, b)` in a batch.

    Args:
        steps: the steps.
    """

    __slots__ = ("out_dtype", "steps")

    HELP: ClassVar[str] = "pass op.epilogue.chain([...])"

    @checked
    def __init__(self, steps: tuple[Step, ...]) -> None:
        layout = Layout.of("chain", _chain, FORMALS, (("steps", tuple(step.layout for step in steps)),))
        super().__init__(layout, tuple(value for step in steps for value in step.values))
        self.steps = steps
        self.out_dtype = next((step.out_dtype for step in reversed(steps) if step.out_dtype), None)
        self.needs_sizes = any(step.needs_sizes for step in steps)

    def bound(self, sizes: Mapping[str, int]) -> Epilogue:
        """Return the chain with memory for the partial results of its reductions, for one launch.

        Args:
            sizes: `rows`, `cols` and, in a batch, `batch`.
        """
        return Epilogue(tuple(step.bound(sizes) for step in self.steps)) if self.needs_sizes else self

    def finish(self, stream: Any = None) -> None:
        """Combine the partial results of a launch, in a fixed order; a no-op without reductions."""
        for step in self.steps:
            step.finish(stream)

    @property
    def reduces_columns(self) -> bool:
        """Whether a step combines the rows of a tile."""
        return any(step.reduces == "col" for step in self.steps)

    @property
    def weight(self) -> int:
        """The largest weight of its steps: what registers it needs beside the accumulator."""
        heaviest = max((step.weight for step in self.steps), default=0)
        # A thread holds as many numbers of each vector over columns as half its accumulators.
        vectors = sum(("axis", ConstantField("col")) in step.layout.fields for step in self.steps)
        return max(heaviest, 1 if vectors > 1 else 0)

    def reference(self, x: Any) -> Any:
        """Return the chain's result for the whole array of results, in NumPy and float64.

        Args:
            x: results, float64 `(M, N)` or `(B, M, N)`.
        """
        for step in self.steps:
            x = step.reference(x)
        return x

    def flops(self, elements: int) -> int:
        """Return its operations for a number of results."""
        return elements * sum(step.flops for step in self.steps)

    def bytes(self) -> int:
        """Return the bytes of its tensors."""
        return sum(arrays.nbytes(value, "a step's tensor") for value in self.values if not is_number(value))

    def __repr__(self) -> str:
        return f"chain([{', '.join(step.layout.label for step in self.steps)}])"


@checked
def chain(steps: Sequence[Step]) -> Epilogue:
    """Return steps as one epilogue, applied in list order to the accumulator in registers.

    Args:
        steps: what the functions of this module return.

    Returns:
        A value for a kernel's `Epilogue` parameter, or `epilogue=` of the ops in `op.linalg`.

    Raises:
        CallError: `not-a-step`.

    Numerics:
        Integers and floats narrower than f32 become f32 before the first step; f64 stays f64.
    """
    for step in steps:
        if not isinstance(step, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CallError(
                f"{step!r:.60} is not an epilogue step",
                code="not-a-step",
                location=caller_location(),
                help="bias(b), gelu(), relu(), silu(), residual(r), scale(s), dropout(p, seed), cast(dtype) …",
            )
    return Epilogue(tuple(steps))


@ts.function
def _chain(self: Any, x: Any, rows: Any, cols: Any, batch: Any = None) -> Any:
    if len(self.steps) > 0 and (x.dtype.is_int or x.dtype.bits < 32):
        x = x.to(ts.f32)
    for i in ts.tile.static_range(len(self.steps)):
        x = self.steps[i](x, rows, cols, batch)
    return x


def is_number(value: Any) -> bool:
    """Return whether a value of a step is a number, not an array."""
    return isinstance(value, int | float | np.number) and not isinstance(value, np.ndarray)


def bad_argument(message: str, help: str) -> CallError:
    """Return the error for an argument without meaning."""
    return CallError(message, code="bad-argument", location=caller_location(), help=help)


def wrong_rank(label: str, shape: tuple[int, ...], wanted: str) -> CallError:
    """Return the error for a tensor of the wrong number of dimensions."""
    return CallError(
        f"{label}: the tensor has the shape {shape}",
        code="wrong-rank",
        location=caller_location(),
        help=f"it takes {wanted}",
    )
