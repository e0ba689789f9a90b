"""Complex numbers: pairs along a last dimension, the real part first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ir.graph.types import ONE, ZERO
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter, is_complex, is_value
from tessera.torch.compiled.registry import complex_row
from tessera.torch.compiled.rows.library import norm_of, repeated
from tessera.torch.compiled.rows.takes import indexed, taken_along
from tessera.torch.compiled.rows.views import (
    divided,
    extended,
    flipped,
    joined,
    select_scattered,
    selected,
    slice_scattered,
    sliced,
    unbound,
)
from tessera.torch.compiled.sizes import Unknown

PAIR = Dim((), 2)
"""The size of the last dimension."""


@complex_row("view_as_complex.default", "view_as_real.default", "alias.default", "detach.default")
@complex_row("resolve_conj.default", "resolve_neg.default")
def _same(c: Converter, x: Any) -> Any:
    return x


@complex_row("clone.default", "lift_fresh_copy.default")
def _copied(c: Converter, x: Any, memory_format: Any = None) -> Any:
    return c.copied(x)


@complex_row("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default")
@complex_row("squeeze.dims", "squeeze.dim", "squeeze.default")
def _reshaped(c: Converter, x: Any, _sizes: Any = None) -> Any:
    return c.w.reshape(x, c.result_dims())


@complex_row("expand.default")
def _expanded(c: Converter, x: Any, _sizes: Any, implicit: bool = False) -> Any:
    return c.w.broadcast_to(x, c.result_dims())


@complex_row("permute.default")
def _permuted(c: Converter, x: Any, perm: Sequence[int]) -> Any:
    return c.w.transpose(x, [*(axis % len(perm) for axis in perm), len(perm)])


@complex_row("transpose.int")
def _transposed(c: Converter, x: Any, first: int, second: int) -> Any:
    rank = len(c.dims(x)) - 1
    order = list(range(rank + 1))
    first, second = first % rank, second % rank
    order[first], order[second] = second, first
    return c.w.transpose(x, order)


@complex_row("slice.Tensor")
def _sliced(c: Converter, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return sliced(c, x, axis % (len(c.dims(x)) - 1), start, end, step)


@complex_row("select.int")
def _selected(c: Converter, x: Any, axis: int, index: Any) -> Any:
    return selected(c, x, axis % (len(c.dims(x)) - 1), index)


@complex_row("cat.default")
def _joined(c: Converter, tensors: Sequence[Any], axis: int = 0) -> Any:
    if not all(is_complex(node.meta["val"]) for node in c.node.all_input_nodes):
        raise Unknown("real numbers beside complex ones")
    return joined(c, tensors, axis % (len(c.dims(tensors[0])) - 1))


@complex_row("split_with_sizes.default", "split.Tensor")
def _divided(c: Converter, x: Any, sizes: Any, axis: int = 0) -> Any:
    return divided(c, x, sizes, axis % (len(c.dims(x)) - 1))


@complex_row("unbind.int")
def _unbound(c: Converter, x: Any, axis: int = 0) -> Any:
    return unbound(c, x, axis % (len(c.dims(x)) - 1))


@complex_row("flip.default")
def _flipped(c: Converter, x: Any, axes: Sequence[int]) -> Any:
    rank = len(c.dims(x)) - 1
    return flipped(c, x, [axis % rank for axis in axes if rank])


@complex_row("repeat.default")
def _repeated(c: Converter, x: Any, counts: Sequence[Any]) -> Any:
    return repeated(c, x, [*counts, 1])


@complex_row("constant_pad_nd.default")
def _extended(c: Converter, x: Any, pads: Sequence[Any], value: Any = 0) -> Any:
    if value != 0:
        raise Unknown("complex numbers other than 0 around a tensor")
    return extended(c, x, [0, 0, *pads], 0)


@complex_row("index_select.default")
def _taken(c: Converter, x: Any, axis: int, index: Any) -> Any:
    if len(c.dims(x)) == 1:
        raise Unknown("elements of a number")
    return taken_along(c, x, axis % (len(c.dims(x)) - 1), index)


@complex_row("index.Tensor", "_unsafe_index.Tensor")
def _indexed(c: Converter, x: Any, indices: Sequence[Any]) -> Any:
    return indexed(c, x, indices)


@complex_row("slice_scatter.default")
def _slice_scattered(
    c: Converter, x: Any, part: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    return slice_scattered(c, x, part, axis % (len(c.dims(x)) - 1), start, end, step)


@complex_row("select_scatter.default")
def _select_scattered(c: Converter, x: Any, part: Any, axis: int, index: Any) -> Any:
    if not all(is_complex(node.meta["val"]) for node in c.node.args[:2]):
        raise Unknown("real numbers beside complex ones")
    return select_scattered(c, x, part, axis % (len(c.dims(x)) - 1), index)


@complex_row("where.self")
def _where(c: Converter, condition: Any, a: Any, b: Any) -> Any:
    if not all(map(_is_complex, c.node.args[1:])):
        raise Unknown("real numbers beside complex ones")
    return c.w.apply("select", c.w.with_ones(condition, [len(c.dims(condition))]), a, b, dtype=c.result_dtype())


@complex_row("full.default", "full_like.default", "new_full.default", "scalar_tensor.default")
@complex_row(
    "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_permuted.default"
)
@complex_row("empty_like.default", "new_empty.default", "new_empty_strided.default")
def _full(c: Converter, *given: Any, **_where: Any) -> Any:
    value = given[-1] if "full" in str(c.node.target) or "scalar" in str(c.node.target) else 0
    if not isinstance(value, int | float | complex):
        raise Unknown("a number that is known when the graph runs")
    return _number(c, complex(value), c.result_dims(), c.result_dtype())


def _number(c: Converter, value: complex, dims: Sequence[Dim], dtype: DType) -> Any:
    """Return pairs of the parts of a number."""
    real, imaginary = (c.w.broadcast_to(c.w.full(part, dtype), dims) for part in (value.real, value.imag))
    if value.real == value.imag:
        return real
    here = c.w.apply("eq", c.w.iota(dims, len(dims) - 1, dtypes.i64), 0)
    return c.w.apply("select", here, real, imaginary, dtype=dtype)


@complex_row("_to_copy.default")
def _converted(c: Converter, x: Any, **_how: Any) -> Any:
    if not is_complex(c.node.args[0].meta["val"]):
        return _pair(c, x, c.w.broadcast_to(c.w.full(0.0, c.w_dtype(x)), c.dims(x)))
    return c.w.cast(x, c.result_dtype())


@complex_row("neg.default", "_neg_view.default")
def _negated(c: Converter, x: Any) -> Any:
    return c.w.apply("neg", x)


@complex_row("_conj.default", "_conj_physical.default", "conj_physical.default")
def _conjugated(c: Converter, x: Any) -> Any:
    if not is_complex(c.node.args[0].meta["val"]):
        return x
    return c.w.apply("select", _is_real_part(c, x), x, c.w.apply("neg", x), dtype=c.w_dtype(x))


@complex_row("complex.default")
def _complex(c: Converter, real: Any, imaginary: Any) -> Any:
    return _pair(c, real, imaginary)


@complex_row("polar.default")
def _polar(c: Converter, length: Any, angle: Any) -> Any:
    parts = (c.w.apply("mul", length, c.w.apply(fn, angle)) for fn in ("cos", "sin"))
    return _pair(c, *parts)


@complex_row("add.Tensor", "sub.Tensor", "add.Scalar", "sub.Scalar")
def _added(c: Converter, a: Any, b: Any, alpha: Any = 1) -> Any:
    if not isinstance(alpha, int | float):
        raise Unknown("a factor that is complex, or known when the graph runs")
    first, second = (_as_pair(c, value, arg) for value, arg in zip((a, b), c.node.args[:2], strict=True))
    second = second if alpha == 1 else c.w.apply("mul", second, float(alpha))
    return c.w.apply(str(c.node.target).split(".")[1], first, second)


def _as_pair(c: Converter, value: Any, argument: Any) -> Any:
    """Return an operand, which may be real or a number, as pairs of the result's parts."""
    dtype = c.result_dtype()
    if _is_complex(argument):
        return c.w.cast(value, dtype)
    if is_value(value):
        return _joined_parts(c, c.w.with_ones(c.w.cast(value, dtype), [len(c.dims(value))]), None)
    if not isinstance(value, int | float | complex):
        raise Unknown("a number that is known when the graph runs")
    return _number(c, complex(value), [PAIR], dtype)


def _joined_parts(c: Converter, real: Any, imaginary: Any) -> Any:
    """Return pairs of parts that have a last dimension of one element; no imaginary part is 0."""
    dims = [*c.dims(real)[:-1], PAIR]
    here = c.w.apply("eq", c.w.iota(dims, len(dims) - 1, dtypes.i64), 0)
    other = c.w.full(0, c.w_dtype(real)) if imaginary is None else imaginary
    return c.w.apply("select", here, real, other, dtype=c.w_dtype(real))


@complex_row("abs.default", "angle.default")
def _polar_part(c: Converter, x: Any) -> Any:
    real, imaginary = _parts(c, x)
    is_length = "abs" in str(c.node.target)
    found = c.w.apply("hypot", real, imaginary) if is_length else c.w.apply("atan2", imaginary, real)
    return c.w.without(found, [len(c.dims(found)) - 1])


@complex_row("sgn.default")
def _direction(c: Converter, x: Any) -> Any:
    length = c.w.apply("hypot", *_parts(c, x))
    return c.w.apply("select", c.w.apply("eq", length, 0.0), 0.0, c.w.apply("div", x, length), dtype=c.w_dtype(x))


@complex_row("sum.dim_IntList", "sum.default", "mean.dim", "mean.default")
def _sum(c: Converter, x: Any, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if not _is_complex(c.node.args[0]):
        raise Unknown("a complex sum of real numbers")
    rank = len(c.dims(x)) - 1
    along = [axis % rank for axis in axes or range(rank)] if rank else []
    total = c.w.reduce("sum", c.w.cast(x, c.result_dtype()), along, keepdim)
    is_mean = "mean" in str(c.node.target)
    return c.w.apply("div", total, c.w.size(c.w.count(x, along), c.w_dtype(total))) if is_mean else total


@complex_row("linalg_vector_norm.default")
def _norm(c: Converter, x: Any, order: Any = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    length = c.w.apply("hypot", *_parts(c, x))
    return norm_of(c, c.w.without(length, [len(c.dims(length)) - 1]), order, axes, keepdim)


@complex_row("log.default")
def _logarithm(c: Converter, x: Any) -> Any:
    real, imaginary = _parts(c, x)
    length = c.w.apply("hypot", real, imaginary)
    return _joined_parts(c, c.w.apply("log", length), c.w.apply("atan2", imaginary, real))


@complex_row("pow.Tensor_Scalar")
def _power(c: Converter, x: Any, exponent: Any) -> Any:
    if not _is_complex(c.node.args[0]) or exponent not in (1, 2, 3, 4):
        raise Unknown("a power of complex numbers that is not 1, 2, 3 or 4")
    if exponent == 1:
        return x
    square = _product(c, x, x)
    return square if exponent == 2 else _product(c, square, x if exponent == 3 else square)


@complex_row("exp.default")
def _exponential(c: Converter, x: Any) -> Any:
    real, angle = _parts(c, x)
    length = c.w.apply("exp", real)
    return _joined_parts(c, *(c.w.apply("mul", length, c.w.apply(fn, angle)) for fn in ("cos", "sin")))


@complex_row("eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor")
def _same_numbers(c: Converter, a: Any, b: Any) -> Any:
    if not _is_complex(c.node.args[0]) or (is_value(b) and not _is_complex(c.node.args[1])):
        raise Unknown("real numbers beside complex ones")
    other = b if is_value(b) else _number(c, complex(b), [PAIR], c.w_dtype(a))
    (u, v), (x, y) = _parts(c, a), _parts(c, other)
    is_equal = "eq" in str(c.node.target)
    found = c.w.apply(
        "and" if is_equal else "or", *(c.w.apply("eq" if is_equal else "ne", *two) for two in ((u, x), (v, y)))
    )
    return c.w.without(found, [len(c.dims(found)) - 1])


@complex_row("copy.default")
def _overwritten(c: Converter, x: Any, source: Any, non_blocking: bool = False) -> Any:
    if not _is_complex(c.node.args[0]):
        raise Unknown("real parts of complex numbers")
    return c.copied(c.w.broadcast_to(_as_pair(c, source, c.node.args[1]), c.dims(x)))


@complex_row("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar")
def _times(c: Converter, a: Any, b: Any) -> Any:
    fn = str(c.node.target).split(".")[1]
    first, second = (_is_complex(arg) for arg in c.node.args[:2])
    if isinstance(b, complex):
        b, second = _number(c, b, [PAIR], c.result_dtype()), True
    if first and second and fn == "mul":
        return _product(c, a, b)
    if second and fn == "div":
        return _quotient(c, _as_pair(c, a, c.node.args[0]), b)
    return c.w.apply(fn, _beside(c, a, first), _beside(c, b, second))


def _product(c: Converter, a: Any, b: Any) -> Any:
    """Return the products of pairs, element by element."""
    (u, v), (x, y) = _parts(c, a), _parts(c, b)
    products = [c.w.apply("mul", one, other) for one, other in ((u, x), (v, y), (u, y), (v, x))]
    return _joined_parts(c, c.w.apply("sub", *products[:2]), c.w.apply("add", *products[2:]))


@complex_row("mm.default", "bmm.default")
def _product_of(c: Converter, a: Any, b: Any) -> Any:
    """Write a product of matrices as one of real numbers, of which each element of the right one is a matrix.

    A pair on the left lies along a row as it is, and is multiplied by `x, y` above `-y, x`.
    """
    left, right = c.dims(a), c.dims(b)
    split = [*right[:-2], PAIR, *right[-2:]]
    (x, y), below = _parts(c, b), len(right) - 2
    turned = _joined_parts(c, c.w.apply("neg", y), x)
    above, under = (c.w.broadcast_to(c.w.with_ones(part, [below]), split) for part in (b, turned))
    is_above = c.w.apply("eq", c.w.iota(split, below, dtypes.i64), 0)
    wide = c.w.apply("select", is_above, above, under, dtype=c.w_dtype(b))
    wide = c.w.reshape(wide, [*right[:-3], right[-3] * 2, right[-2] * 2])
    found = c.w.contract(c.w.reshape(a, [*left[:-2], left[-2] * 2]), wide)
    return c.w.reshape(found, c.result_dims())


@complex_row("addmm.default", "baddbmm.default")
def _product_added(c: Converter, bias: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if isinstance(beta, complex) or isinstance(alpha, complex):
        raise Unknown("complex factors of a product and what is added")
    found = _product_of(c, a, b)
    found = found if alpha == 1 else c.w.apply("mul", found, c.ready(alpha, c.w_dtype(found)))
    if beta == 0:
        return found
    bias = bias if beta == 1 else c.w.apply("mul", bias, c.ready(beta, c.w_dtype(found)))
    return c.w.apply("add", found, c.w.broadcast_to(bias, c.dims(found)))


def _quotient(c: Converter, a: Any, b: Any) -> Any:
    """Return a quotient of pairs without squares, which overflow (Smith, Algorithm 116, 1962)."""
    (u, v), (x, y) = _parts(c, a), _parts(c, b)
    is_steep = c.w.apply("lt", c.w.apply("abs", x), c.w.apply("abs", y))

    def chosen(one: Any, other: Any) -> Any:
        return c.w.apply("select", is_steep, one, other, dtype=c.w_dtype(b))

    def fused(one: Any, factor: Any, other: Any, fn: str = "add") -> Any:
        return c.w.apply(fn, c.w.apply("mul", one, factor), other)

    ratio = c.w.apply("div", chosen(x, y), chosen(y, x))
    below = fused(chosen(x, y), ratio, chosen(y, x))
    real = chosen(fused(u, ratio, v), fused(v, ratio, u))
    imaginary = chosen(fused(v, ratio, u, "sub"), c.w.apply("sub", v, c.w.apply("mul", u, ratio)))
    return _joined_parts(c, *(c.w.apply("div", part, below) for part in (real, imaginary)))


@complex_row("reciprocal.default")
def _inverse(c: Converter, x: Any) -> Any:
    return _quotient(c, _number(c, 1, [PAIR], c.w_dtype(x)), x)


def _is_complex(argument: Any) -> bool:
    return hasattr(argument, "meta") and is_complex(argument.meta["val"])


def _beside(c: Converter, value: Any, is_pair: bool) -> Any:
    """Return an operand beside pairs."""
    if is_pair:
        return value
    if not is_value(value):
        return c.ready(value, c.result_dtype())
    return c.w.cast(c.w.with_ones(value, [len(c.dims(value))]), c.result_dtype())


def _is_real_part(c: Converter, x: Any) -> Any:
    dims = c.dims(x)
    return c.w.apply("eq", c.w.iota(dims, len(dims) - 1, dtypes.i64), 0)


def _parts(c: Converter, x: Any) -> tuple[Any, Any]:
    """Return real and imaginary parts, with a last dimension of one element."""
    dims = [*c.dims(x)[:-1], ONE]
    starts = ([*[ZERO] * (len(dims) - 1), start] for start in (ZERO, ONE))
    first, second = (c.w.slice(x, start, [1] * len(dims), dims) for start in starts)
    return first, second


def _pair(c: Converter, real: Any, imaginary: Any) -> Any:
    """Return pairs of parts."""
    dims, dtype = c.result_dims(), c.result_dtype()
    last = [len(dims) - 1]
    parts = [c.w.broadcast_to(c.w.with_ones(c.w.cast(one, dtype), last), dims) for one in (real, imaginary)]
    here = c.w.apply("eq", c.w.iota(dims, len(dims) - 1, dtypes.i64), 0)
    return c.w.apply("select", here, *parts, dtype=dtype)
