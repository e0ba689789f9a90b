"""What softmax and its logarithm share: one dimension, a scale, a mask."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, ClassVar

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, axes, rows
from tessera.ops.softmaxes.steps import LAST, SOFTMAX, SOFTMAX_BACKWARD, accumulator, column_blocks, forward_kernel
from tessera.target.artifact import Artifact


class Along:
    """Softmax or its logarithm."""

    form: ClassVar[str]
    """`softmax` or `log`."""

    def run(self, input: Any, dim: int | None, dtype: object, scale: float, mask: Any, causal: bool, out: Any) -> Any:
        """Compute a call; see the subclasses."""
        given = self._arguments(input, dim, dtype, scale, mask, causal)
        shape, dims, call, kind = given
        if out is None:
            return axes.unfolded(SOFTMAX(*call)[0], shape, dims)
        rows.checked_out(out, shape, kind, input)
        goal = axes.place_along(out, dims, tuple(call[0].shape))
        if goal is None:
            out[...] = axes.unfolded(SOFTMAX(*call)[0], shape, dims)
        else:
            SOFTMAX.into((goal,), *call)
        return out

    def gradients(
        self, grad: Any, input: Any, dim: int | None, dtype: object, scale: float, mask: Any, causal: bool
    ) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        shape, dims, call, kind = self._arguments(input, dim, dtype, scale, mask, causal)
        checked_gradient(grad, shape, kind)
        (y,) = SOFTMAX.fresh(*call)
        masked = mask is not None or causal
        found = SOFTMAX_BACKWARD.fresh(
            axes.folded(grad, dims), y, call[2], self.form, masked, arrays.dtype_of(input).name
        )
        return {"input": axes.unfolded(found[0], shape, dims)}

    def _arguments(
        self, input: Any, dim: int | None, dtype: object, scale: float, mask: Any, causal: bool
    ) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[Any, ...], DType]:
        """Return the shape, the dimension, what the step is called with, and the dtype of the result."""
        shape, kind = arrays.shape_of(input, "input"), axes.dtype_asked(dtype, rows.float_dtype(input, "input"))
        dims = axes.chosen(one_dimension(dim), len(shape))
        if (mask is not None or causal) and dims != (len(shape) - 1,):
            raise CallError(
                f"dim is {dim!r} with a mask",
                code="bad-axis",
                location=caller_location(),
                help="masks go along the last dimension: move it there",
            )
        queries = 0
        if causal:
            if len(shape) < 2:
                raise CallError(
                    f"argument 'input' has the shape {tuple(shape)}, and no queries",
                    code="wrong-shape",
                    location=caller_location(),
                    help="causal takes (..., queries, keys)",
                )
            queries = shape[-2]
        x = axes.folded(input, dims)
        kept = None if mask is None else mask_rows(mask, shape)
        return shape, dims, (x, kept, float(scale), queries, self.form, kind.name), kind

    def explain(self) -> Any:
        """Return what the last forward kernel ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return ran(self.form)

    def compile(
        self,
        shape: Sequence[int],
        dim: int = -1,
        dtype: DType = bf16,
        *,
        mask: DType | None = None,
        causal: bool = False,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for arrays of a shape; needs no device.

        Args:
            shape: sizes of the input.
            dim: as in a call.
            dtype: of input and result.
            mask: dtype of a mask, None for none.
            causal: as in a call.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        options = {"mask": None} if mask is None else {"W": mask}
        options |= {"boolean": mask is not None and mask.name == "bool", "causal": causal}
        return compile_forward(self.form, shape, dim, dtype, options | {"sums": None}, target, dump)

    def exact(self, input: Any, dim: int | None, scale: float, mask: Any, causal: bool) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input) * scale
        if mask is not None:
            given = arrays.host(mask)
            x = np.where(given != 0, x, -np.inf) if arrays.dtype_of(mask).name == "bool" else x + given
        if causal:
            x = np.where(_seen(*x.shape[-2:]), x, -np.inf)
        axis = one_dimension(dim)
        if not x.size:
            return x
        with np.errstate(invalid="ignore", divide="ignore"):
            top = x.max(axis, keepdims=True) if x.ndim else x
            apart = x - np.where(top == -np.inf, 0.0, top)
            total = np.exp(apart).sum(axis, keepdims=True) if x.ndim else np.exp(apart)
            if mask is not None or causal:
                total = np.where(total == 0, 1.0, total)
            return np.exp(apart) / total if self.form == "softmax" else apart - np.log(total)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call: largest, difference, power, sum and quotient of each element."""
        return 5 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of input and result, each once."""
        return 2 * prod(shape) * dtype.bytes


def _seen(queries: int, keys: int) -> Any:
    """Return which keys queries see."""
    return np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)


def one_dimension(dim: int | None) -> int:
    """Return the dimension of a softmax.

    Raises:
        CallError: `bad-axis` for None.
    """
    if dim is None:
        raise CallError(
            "dim is None", code="bad-axis", location=caller_location(), help="name the dimension: -1 is the last"
        )
    return index(dim)


def checked_gradient(grad: Any, shape: Sequence[Any], dtype: DType) -> None:
    """Check the gradient of a result.

    Raises:
        CallError: `not-an-array`, `wrong-shape` or `wrong-dtype`.
    """
    rows.same_shape(grad, "grad", shape)
    if arrays.dtype_of(grad, "grad").name != dtype.name:
        raise CallError(
            f"argument 'grad' has the dtype {arrays.dtype_of(grad)}, the result {dtype}",
            code="wrong-dtype",
            location=caller_location(),
            help="convert it to that dtype",
        )


def mask_rows(mask: Any, shape: Sequence[Any]) -> Any:
    """Return a mask as rows that repeat: where it has not the input's trailing dimensions, it is copied.

    Raises:
        CallError: `not-an-array`, `wrong-dtype`, `wrong-shape` or `mask-needs-no-gradient`.
    """
    found, dtype = tuple(arrays.shape_of(mask, "mask")), arrays.dtype_of(mask, "mask")
    if dtype.name not in ("bool", *rows.FLOATS):
        raise CallError(
            f"argument 'mask' has the dtype {dtype}",
            code="wrong-dtype",
            location=caller_location(),
            help="it takes bool, true where an element counts, or floating point numbers, which are added",
        )
    pairs = zip(found[::-1], tuple(shape)[::-1], strict=False)
    if len(found) > len(shape) or any(one not in (1, other) for one, other in pairs):
        raise CallError(
            f"argument 'mask' has the shape {found}, input {tuple(shape)}",
            code="wrong-shape",
            location=caller_location(),
            help="it has to broadcast to the shape of input",
        )
    torch: Any = sys.modules.get("torch")
    if torch is not None and arrays.is_torch(mask) and mask.requires_grad and torch.is_grad_enabled():
        raise CallError(
            "masks have no gradients", code="mask-needs-no-gradient", location=caller_location(), help="detach it"
        )
    own = next((at for at, size in enumerate(found) if size != 1), len(found))
    if found[own:] != tuple(shape)[len(shape) - len(found) + own :] or own == len(found):
        mask = mask.expand(tuple(shape)) if arrays.is_torch(mask) else np.broadcast_to(mask, tuple(shape))
        own = 0
    return mask if own == 0 and len(mask.shape) == 2 else mask.reshape(prod(mask.shape[:-1]), shape[-1])


def ran(form: str) -> Any:
    """Return what the last kernel of a form ran.

    Raises:
        CallError: `never-run` before the first call.
    """
    return LAST.get(form, forward_kernel((1, 1), accumulator(bf16))).explain()


def compile_forward(
    form: str,
    shape: Sequence[int],
    dim: int,
    dtype: DType,
    options: dict[str, Any],
    target: str | None,
    dump: Sequence[str],
) -> Artifact:
    """Compile the kernel that a call with contiguous arrays runs."""
    dims = axes.chosen(dim, len(shape))
    found = axes.extents(shape, dims)
    sizes = {"M": found[0], "N": found[1]} if found[2] == 1 else dict(zip("ANB", found, strict=True))
    acc = accumulator(dtype)
    kernel = forward_kernel(tuple(sizes.values()), acc)
    if found[2] != 1:
        options = {name: options[name] for name in ("y", "sums") if name in options}
        options |= column_blocks(found)
    return compiled(kernel, target, dump, sizes, form=form, acc=acc, T=dtype, Y=dtype, **options)
