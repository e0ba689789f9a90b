"""The step behind products that PyTorch follows: results, gradients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import BY_NAME, DType, f32
from tessera.ops import arrays
from tessera.ops.linalg.batches import general, product_shape, rows_of_any
from tessera.ops.linalg.problem import Options, check_pair, default_out
from tessera.ops.reduce import sum as total
from tessera.ops.steps import (
    Arguments,
    Gradient,
    Step,
    check_no_gradient,
    check_not_traced,
    like,
    missing,
    needs_gradient,
)

LAYER = (False, True, *Options().values()[2:])
"""Options of a layer, whose weights are stored `(outputs, inputs)`."""
_MEANING = 3
"""So many options say what a product is; all others say how it is computed."""
_REFUSED = "PyTorch follows products alone: without addends, scales, epilogues, and options of their kernels"
_HELP = "write what else is computed with PyTorch's functions, or call it under torch.no_grad()"


def _results(a: Any, b: Any, bias: Any, out_dtype: str | None) -> Arguments:
    given = arrays.dtype_of(a, "a")
    check_pair(given, arrays.dtype_of(b, "b"))
    return (
        like(a, product_shape(tuple(a.shape), tuple(b.shape)), BY_NAME[out_dtype] if out_dtype else default_out(given)),
    )


def _launch(results: Arguments, a: Any, b: Any, bias: Any, out_dtype: str | None) -> None:
    (out,) = results
    if bias is None:
        general(a, b, out, None)
    else:
        rows_of_any(a, b.mT, bias, None, out, LAYER, None)


def _gradient_results(grad: Any, a: Any, b: Any, bias: Any, wanted: Sequence[bool]) -> Arguments:
    given = zip((a, b, bias), wanted, strict=True)
    return tuple(_beside(one) if one is not None and need else missing(grad) for one, need in given)


def _beside(operand: Any) -> Any:
    """Return an unset array that lies as an operand, of which a layer gives the transpose of its weights."""
    if operand.ndim > 1 and operand.stride(-2) == 1 and operand.stride(-1) != 1:
        turned = operand.mT
        return like(turned, turned.shape).mT
    return like(operand, operand.shape)


def _launch_gradient(results: Arguments, grad: Any, a: Any, b: Any, bias: Any, wanted: Sequence[bool]) -> None:
    left = a.reshape(1, -1) if a.ndim == 1 else a
    right = b.reshape(-1, 1) if b.ndim == 1 else b
    grad = grad.unsqueeze(-1) if b.ndim == 1 else grad
    grad = grad.unsqueeze(-2) if a.ndim == 1 else grad
    if wanted[0]:
        _sum_into(results[0].view(left.shape), grad, right.mT)
    if wanted[1]:
        joins = right.ndim == 2 < left.ndim
        if joins:  # the sum over the batch is one of the product
            left, grad = (one.flatten(0, -2) for one in (left, grad))
        _sum_into(results[1].view(right.shape), left.mT, grad)
    if wanted[2]:
        total(grad.flatten(0, -2), 0, out=results[2])


def _sum_into(out: Any, a: Any, b: Any) -> None:
    """Compute a product, summed over the dimensions of batches along which a result has one element."""
    a, b = _of_one_dtype(a, b)
    dtype = arrays.dtype_of(a)
    shape = product_shape(tuple(a.shape), tuple(b.shape))
    if shape == tuple(out.shape):
        if out.dtype == a.dtype:
            general(a, b, out, None)
        else:
            out.copy_(general(a, b, None, None))
        return
    ahead = len(shape) - out.ndim
    axes = [axis for axis, size in enumerate(shape) if axis < ahead or (out.shape[axis - ahead] == 1 and size != 1)]
    wide = general(a, b, None, _summed(dtype))
    out.copy_(total(wide, axes).reshape(out.shape))


def _of_one_dtype(a: Any, b: Any) -> tuple[Any, Any]:
    """Return operands in the wider of their dtypes: a result of another one than its operands' has such a gradient."""
    if a.dtype == b.dtype:
        return a, b
    wide = max((a.dtype, b.dtype), key=lambda dtype: dtype.itemsize)
    return a.to(wide), b.to(wide)


def _summed(dtype: DType) -> DType:
    return dtype if dtype.bits >= f32.bits else f32


BACKWARD = Step(
    "product_backward",
    "(Tensor grad, Tensor a, Tensor b, Tensor? bias, bool[] wanted) -> (Tensor, Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, _results: Arguments) -> Arguments:
    return given[:3]


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept, [bool(one) for one in needed[:3]]


def _gradients_of(kept: Arguments) -> tuple[int | None, ...]:
    return 0, 1, None if kept[2] is None else 2, None


PRODUCT = Step(
    "product",
    "(Tensor a, Tensor b, Tensor? bias, str? out_dtype) -> Tensor",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)


def followed(
    a: Any, b: Any, bias: Any, out: Any, out_dtype: DType | None, is_plain: bool = True, beside: Sequence[Any] = ()
) -> Any:
    """Return a product that PyTorch follows, None where it does not have to: it is computed as any other.

    Args:
        a: `(..., M, K)` or `(K,)`.
        b: `(..., K, N)` or `(K,)`.
        bias: `(N,)`, or None.
        out: array for the result, which has no gradient and is in no graph: it is refused.
        out_dtype: dtype of the result, or None.
        is_plain: whether nothing else is asked for.
        beside: what else may be tensors, which have no gradients.

    Raises:
        CallError: `no-gradient`, `out-needs-no-gradient`, `not-in-graphs`, or as for `op.matmul`.
    """
    if out is not None:
        check_no_gradient((a, b, bias, out, *beside))
        check_not_traced(a, b, out)
    if not is_plain and needs_gradient((a, b, bias, *beside)):
        raise CallError(_REFUSED, code="no-gradient", location=caller_location(), help=_HELP)
    if not is_plain and sys.modules["torch"].compiler.is_compiling():
        raise CallError(_REFUSED, code="not-in-graphs", help=_HELP)  # without a place, which cannot be traced
    if out is not None or not is_plain:  # tensors of other classes, or a result that needs no gradient
        return None
    return PRODUCT(a, b, bias, None if out_dtype is None else out_dtype.name)[0]


def followed_matrices(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    is_plain: bool,
    options: Sequence[Any],
    ranks: Sequence[int],
    beside: Sequence[Any],
) -> Any:
    """Return a product of matrices, or of batches of them, that PyTorch follows; see `followed`.

    Args:
        a: the left operand.
        b: the right operand.
        c: the addend, or None.
        out: array for the result, or None.
        is_plain: whether there is nothing beside operands and options.
        options: the fields of `Options`.
        ranks: how many dimensions an operand may have.
        beside: what else may be tensors.

    Raises:
        CallError: `wrong-rank`, or as for `followed`.
    """
    for name, operand in (("a", a), ("b", b)):
        if len(operand.shape) not in ranks:
            raise CallError(
                f"{name} has the shape {tuple(operand.shape)}",
                code="wrong-rank",
                help=f"pass an array of {' or '.join(map(str, ranks))} dimensions",
            )
    left, right = (one.mT if turned else one for one, turned in zip((a, b), options[:2], strict=True))
    is_plain = is_plain and tuple(options[_MEANING:]) == Options().values()[_MEANING:]
    return followed(left, right, c, out, options[2], is_plain, beside)
