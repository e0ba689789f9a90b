"""Complex numbers: pairs along a last dimension, the real part first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ir.graph.types import ONE, ZERO
from tessera.numerics import dtypes
from tessera.torch.compiled.convert import Converter, is_complex, is_value
from tessera.torch.compiled.registry import complex_row
from tessera.torch.compiled.rows.views import joined, select_scattered, selected, slice_scattered, sliced
from tessera.torch.compiled.sizes import Unknown


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


@complex_row("full.default", "full_like.default", "new_full.default")
@complex_row("zeros.default", "zeros_like.default", "new_zeros.default")
def _full(c: Converter, *given: Any, **_where: Any) -> Any:
    value = given[-1] if "full" in str(c.node.target) else 0
    if not isinstance(value, int | float | complex) or value != 0:
        raise Unknown("a complex number")
    return c.w.broadcast_to(c.w.full(0.0, c.result_dtype()), c.result_dims())


@complex_row("_to_copy.default")
def _converted(c: Converter, x: Any, **_how: Any) -> Any:
    if not is_complex(c.node.args[0].meta["val"]):
        return _pair(c, x, c.w.broadcast_to(c.w.full(0.0, c.w_dtype(x)), c.dims(x)))
    return c.w.cast(x, c.result_dtype())


@complex_row("neg.default")
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


@complex_row("add.Tensor", "sub.Tensor")
def _added(c: Converter, a: Any, b: Any, alpha: Any = 1) -> Any:
    if alpha != 1 or not all(map(_is_complex, c.node.args[:2])):
        raise Unknown("a sum with real numbers")
    return c.w.apply(str(c.node.target).split(".")[1], a, b)


@complex_row("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar")
def _times(c: Converter, a: Any, b: Any) -> Any:
    fn = str(c.node.target).split(".")[1]
    first, second = (_is_complex(arg) for arg in c.node.args[:2])
    if first and second and fn == "mul":
        (u, v), (x, y) = _parts(c, a), _parts(c, b)
        products = [c.w.apply("mul", one, other) for one, other in ((u, x), (v, y), (u, y), (v, x))]
        real, imaginary = c.w.apply("sub", *products[:2]), c.w.apply("add", *products[2:])
        last = [len(c.dims(real)) - 1]
        return _pair(c, c.w.without(real, last), c.w.without(imaginary, last))
    if isinstance(b, complex) or (second and fn == "div") or (first and second):
        raise Unknown("a quotient of complex numbers")
    return c.w.apply(fn, _beside(c, a, first), _beside(c, b, second))


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
