"""What RMSNorm and LayerNorm share: rows of trailing dimensions, with what is added before."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from tessera.driver.compile import compile as compiled
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, rows
from tessera.ops.norm import kernels
from tessera.ops.norm.steps import BACKWARD, FORWARD, LARGEST, QUANTISED
from tessera.ops.steps import is_followed, needs_gradient, present, seed_of
from tessera.target.artifact import Artifact


def _eps(dtype: DType) -> float:
    """Return what PyTorch adds where nothing else is asked for: the step at 1 of what it computes in."""
    return 2.0**-52 if dtype.name == "f64" else 2.0**-23


class RowNorm:
    """A norm over the last dimensions."""

    centred: ClassVar[bool]
    """Whether the mean is taken away first."""

    def run(
        self,
        input: Any,
        normalized_shape: int | Sequence[int],
        weight: Any,
        bias: Any,
        eps: float | None,
        residual: Any,
        input_bias: Any,
        dropout: float,
        seed: int,
        quantize: DType | None,
        block: int | None,
        out: Any,
    ) -> Any:
        """Compute a call; see the subclasses."""
        given = self._arguments(input, normalized_shape, weight, bias, eps, residual, input_bias, dropout, seed)
        shape, sizes = given[0], given[1]
        x, *others = given[2]
        if quantize is not None or block is not None:
            return self._quantised(
                shape, shape[: len(shape) - len(sizes)], given[2], residual is not None, quantize, block, out
            )
        keeps = is_followed((x, *others))
        goal = None
        if out is not None:
            rows.checked_out(out, shape, arrays.dtype_of(x), input, residual, weight, bias, input_bias)
            goal = rows.out_rows(out, len(sizes))
        if goal is None:
            made, summed, *_ = FORWARD(x, *others, keeps)
            if out is None:
                out = made.reshape(shape)
            else:
                out[...] = made.reshape(shape)
        else:
            results = FORWARD.results(x, *others, keeps)
            summed = results[1]
            FORWARD.into((goal, *results[1:]), x, *others, keeps)
        return out if residual is None else (out, summed.reshape(shape))

    @staticmethod
    def _quantised(
        shape: tuple[Any, ...],
        ahead: tuple[Any, ...],
        call: tuple[Any, ...],
        is_added: bool,
        quantize: DType | None,
        block: int | None,
        out: Any,
    ) -> Any:
        """Compute a call whose result is 8-bit numbers and their scales."""
        width = call[0].shape[1]
        size = width if block is None else block
        if (
            quantize is None
            or quantize.name not in LARGEST
            or size < 0
            or (width and (not size or width % size))
            or out is not None
        ):
            raise CallError(
                f"quantize is {quantize}, quantize_block {block}, out {'given' if out is not None else 'None'}",
                code="bad-argument",
                location=caller_location(),
                help=f"quantize is {' or '.join(LARGEST)}, quantize_block divides a row's {width} elements, no out",
            )
        if needs_gradient(call):
            raise CallError(
                "8-bit results have no gradients",
                code="no-gradient",
                location=caller_location(),
                help="leave `quantize` away, or call it under torch.no_grad()",
            )
        found, scales, summed = QUANTISED(*call, quantize.name, int(size))
        results = (found.reshape(shape), scales.reshape((*ahead, scales.shape[1])))
        return (*results, summed.reshape(shape)) if is_added else results

    def gradients(
        self,
        grad: Any,
        input: Any,
        normalized_shape: int | Sequence[int],
        weight: Any,
        bias: Any,
        eps: float | None,
        residual: Any,
        input_bias: Any,
        dropout: float,
        seed: int,
        grad_summed: Any,
    ) -> dict[str, Any]:
        """Return gradients by the arguments' names."""
        given = self._arguments(input, normalized_shape, weight, bias, eps, residual, input_bias, dropout, seed)
        shape, sizes, call = given
        x, input_bias, residual, weight, bias, _eps, p, seed, _centred = call
        for name, array in (("grad", grad), ("grad_summed", grad_summed)):
            if array is not None:
                rows.same_shape(array, name, shape)
        grad, grad_summed = (rows.matrix(one, *x.shape) for one in (grad, grad_summed))
        _out, summed, mean, rstd = map(present, FORWARD.fresh(*call, True))
        wanted = [weight is not None, bias is not None, input_bias is not None]
        kind = next((one for one in (weight, bias, input_bias) if one is not None), None)
        whole = x if summed is None else summed
        of_x, of_residual, *vectors = BACKWARD.fresh(
            grad, grad_summed, whole, weight, mean, rstd, p, seed, wanted, kind
        )
        found = {"input": of_x.reshape(shape)}
        if residual is not None:
            found["residual"] = of_residual.reshape(shape) if p > 0 else found["input"]
        names = ("weight", "bias", "input_bias")
        found |= {name: vectors[at].reshape(sizes) for at, name in enumerate(names) if wanted[at]}
        return found

    def _arguments(
        self,
        input: Any,
        normalized_shape: int | Sequence[int],
        weight: Any,
        bias: Any,
        eps: float | None,
        residual: Any,
        input_bias: Any,
        dropout: float,
        seed: int,
    ) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]]:
        """Return the shape, the dimensions of a row, and what the step is called with but its last argument."""
        shape, dtype = arrays.shape_of(input, "input"), rows.float_dtype(input, "input")
        sizes = rows.trailing(shape, normalized_shape)
        count, width = prod(shape[: len(shape) - len(sizes)]), prod(sizes)
        vectors = {"weight": weight, "bias": bias, "input_bias": input_bias}
        rows.check_vectors(vectors, sizes)
        if residual is not None:
            rows.same_shape(residual, "residual", shape)
            rows.same_dtype(residual, "residual", input, "input")
        if not 0 <= dropout < 1:
            raise CallError(
                f"dropout is {dropout}", code="bad-argument", location=caller_location(), help="at least 0, below 1"
            )
        eps = _eps(dtype) if eps is None else float(eps)
        x, added = (rows.matrix(one, count, width) for one in (input, residual))
        one = [rows.vector(each) for each in (input_bias, weight, bias)]
        return shape, sizes, (x, one[0], added, one[1], one[2], eps, float(dropout), seed_of(seed), self.centred)

    def explain(self) -> Any:
        """Return what the last forward kernel of a norm of rows ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return kernels.forward.explain()

    def compile(
        self,
        width: int,
        dtype: DType = bf16,
        *,
        weight: DType | None = None,
        bias: DType | None = None,
        residual: bool = False,
        target: str | None = None,
        dump: Sequence[str] = (),
    ) -> Artifact:
        """Return the forward kernel for rows of a width; needs no device.

        Args:
            width: elements of a row.
            dtype: dtype of the rows.
            weight: dtype of weights, None for none.
            bias: dtype of a bias, None for none.
            residual: whether a residual is added before and the sum is a second result.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        given: dict[str, Any] = dict.fromkeys(("input_bias", "mean", "rstd"))
        given |= {} if residual else dict.fromkeys(("residual", "summed"))
        given |= dict.fromkeys(name for name, kind in (("weight", weight), ("bias", bias)) if kind is None)
        given |= {"T": dtype} | ({"W": weight or bias} if weight or bias else {})
        given |= {"centred": self.centred, "drops": False, "acc": rows.accumulator(dtype)}
        return compiled(kernels.forward, target, dump, {"N": width}, **given)

    def exact(
        self,
        input: Any,
        normalized_shape: int | Sequence[int],
        weight: Any,
        bias: Any,
        eps: float | None,
        residual: Any,
        input_bias: Any,
    ) -> Any:
        """Return the exact result in NumPy and float64, and what was normalised beside it where a residual is given."""
        x = arrays.host(input)
        axes = tuple(range(-len(rows.trailing(x.shape, normalized_shape)), 0))
        eps = _eps(arrays.dtype_of(input)) if eps is None else eps
        x = x if input_bias is None else x + arrays.host(input_bias)
        x = x if residual is None else x + arrays.host(residual)
        apart = x - x.mean(axes, keepdims=True) if self.centred else x
        found = apart / np.sqrt((apart * apart).mean(axes, keepdims=True) + eps)
        found = found if weight is None else found * arrays.host(weight)
        found = found if bias is None else found + arrays.host(bias)
        return found if residual is None else (found, x)

    @classmethod
    def flops(cls, shape: Sequence[int]) -> int:
        """Return the operations of a call with weights: squares, sums, scaling, and for LayerNorm the mean."""
        return (6 if cls.centred else 4) * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType, residual: bool = False) -> int:
        """Return the bytes of rows and result, each once, and of the residual and the sum where there is one."""
        return prod(shape) * dtype.bytes * (4 if residual else 2)
