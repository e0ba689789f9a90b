"""Products in traced functions: NumPy's functions of traced arrays, which the graph fuses what follows with."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from tessera.errors import CallError, LanguageError, caller_location
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.ops.linalg.problem import Options, check_pair, default_out
from tessera.ops.refusals import refused
from tessera.ops.steps import check_not_traced
from tessera.ops.traced import joined

_NAMES = [field.name for field in fields(Options)]
_MEANING = ("trans_a", "trans_b", "out_dtype")
"""Options that say what a product is; all others say how it is computed."""


def product(a: Any, b: Any, out_dtype: DType | None = None) -> Any:
    """Return a product with NumPy's rules, of which one operand at least is traced.

    Raises:
        CallError: `wrong-rank`, `wrong-shape`, `unsupported-dtypes`.
    """
    a, b = joined((a, b))
    given = arrays.dtype_of(a, "a")
    check_pair(given, arrays.dtype_of(b, "b"))
    shapes = tuple(a.shape), tuple(b.shape)
    if not shapes[0] or not shapes[1]:
        raise refused(f"a has the shape {shapes[0]} and b {shapes[1]}", "wrong-rank", "multiply numbers with *")
    if shapes[0][-1] != shapes[1][-2 if len(shapes[1]) > 1 else 0]:
        raise refused(f"a is {shapes[0]} and b is {shapes[1]}", "wrong-shape", "a (..., M, K) and b (..., K, N)")
    result = out_dtype or default_out(given)
    if result.is_float and result.bits > given.bits:  # a product of 16 bits would be rounded to them first
        a, b = a.astype(result.numpy()), b.astype(result.numpy())
    found = np.matmul(a, b)
    return found if arrays.dtype_of(found) == result else found.astype(result.numpy())


def gemm(
    a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any, bias: Any, beside: dict[str, Any], options: tuple[Any, ...]
) -> Any:
    """Return `alpha·a·b + beta·c + bias`, of which one operand at least is traced; other arguments as for `Gemm.run`.

    Raises:
        LanguageError: `not-traceable` for what only the product's own kernel computes.
        CallError: as for `product`, `not-in-graphs`.
    """
    if out is not None:
        check_not_traced(a, b, out)
    chosen = dict(zip(_NAMES, options, strict=True))
    _check_plain(beside, chosen)
    a, b, c, bias, alpha, beta = joined((a, b, c, bias, alpha, beta))
    for name, array in (("a", a), ("b", b)):
        if not 2 <= len(arrays.shape_of(array, name)) <= 3:
            raise refused(f"{name} has the shape {tuple(array.shape)}", "wrong-rank", "it takes matrices")
    left = np.swapaxes(a, -1, -2) if chosen["trans_a"] else a
    right = np.swapaxes(b, -1, -2) if chosen["trans_b"] else b
    total = product(left, right, chosen["out_dtype"])
    dtype = total.dtype
    if not (isinstance(alpha, int | float) and alpha == 1):
        total = total * alpha
    if c is not None and not (isinstance(beta, int | float) and beta == 0):
        total = total + _fitting(c, "c", total.shape) * beta
    if bias is not None:
        total = total + _fitting(bias, "bias", total.shape[-1:])
    return total if total.dtype == dtype else total.astype(dtype)


def _fitting(array: Any, name: str, wanted: Any) -> Any:
    shape = tuple(arrays.shape_of(array, name))
    if len(shape) != len(wanted) or any(one != other for one, other in zip(shape, wanted, strict=True)):
        raise CallError(
            f"{name} has the shape {shape}, not {tuple(wanted)}",
            code="wrong-shape",
            location=caller_location(),
            help="reshape it",
        )
    return array


def _check_plain(beside: dict[str, Any], chosen: dict[str, Any]) -> None:
    """Check that nothing is asked for that only the product's own kernel computes."""
    plain = dict(zip(_NAMES, Options().values(), strict=True))
    asked = [name for name, value in beside.items() if value is not None]
    asked += [name for name, value in chosen.items() if name not in _MEANING and value != plain[name]]
    if asked:
        raise LanguageError(
            f"products in traced functions have no {', '.join(asked)}",
            code="not-traceable",
            location=caller_location(),
            help="write what follows a product with NumPy's functions; or call it outside of ts.jit",
        )
