"""Reductions, norms, and products of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, cast

from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.types import ONE
from tessera.ir.graph.views import ReshapeOp
from tessera.numerics.dtypes import DType, computed_in, f32, f64
from tessera.runtime.device import CPU
from tessera.schedule.fuse.outside import MOST_HELD, OUTER, is_static, rows_held
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter, F
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown


def _axes(c: Converter, x: Any, dims: Any) -> list[int]:
    return _along(len(c.dims(x)), dims)


def _along(rank: int, dims: Any) -> list[int]:
    """Return the dimensions that an op names, all of them where it names none."""
    given: list[int] = [] if dims is None else list(cast(Any, dims)) if isinstance(dims, Sequence) else [dims]
    return [axis % rank for axis in given or range(rank)] if rank else []


_EXACT = ("aten.trace.", "aten.native_batch_norm_backward.", "aten.batch_norm_backward.")
"""Ops whose sums PyTorch adds up in f64 on CPUs."""


def _wide(c: Converter, x: Any, axes: Sequence[int]) -> Any:
    """Return an operand in the dtype that it is added up in."""
    is_exact = c.original().startswith(_EXACT)
    return c.w.cast(x, exact(c, c.result_dtype()) if is_exact else summed_in(c, x, axes, c.result_dtype()))


def summed_in(c: Converter, x: Any, axes: Sequence[int], dtype: DType) -> DType:
    """Return the dtype in which a sum of a dtype along some dimensions is computed.

    On CPUs a sum of everything is the exact one, rounded once: no error of another element is beside its own.
    """
    is_whole = all(axis in axes or size == ONE for axis, size in enumerate(c.dims(x)))
    return exact(c, dtype) if is_whole else computed_in(dtype)


def exact(c: Converter, dtype: DType) -> DType:
    """Return the dtype in which moments, traces and products of a dtype are computed: on CPUs f64 for f32."""
    return f64 if c.device.type == CPU.kind and dtype == f32 else computed_in(dtype)


@row("sum.dim_IntList", "sum.default")
def _sum(c: Converter, x: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = _axes(c, x, dims)
    if _are_few(c, x, axes):
        return _sum_of_parts(c, _wide(c, x, axes), axes, keepdim)
    return c.w.reduce("sum", _wide(c, x, axes), axes, keepdim)


FEW = 16
"""Elements that are added up as parts of an array, side by side, where a sum goes along inner dimensions."""


def _are_few(c: Converter, x: Any, axes: Sequence[int]) -> bool:
    """Return whether sums are of few elements that are no neighbours, nor far apart."""
    sizes = c.dims(x)
    count = c.w.count(x, axes)
    return bool(axes) and 0 not in axes and count.is_static and 1 < count.scale <= FEW and len(sizes) > 2


def _sum_of_parts(c: Converter, x: Any, axes: list[int], keepdim: bool) -> Any:
    sizes = list(c.dims(x))
    thin = [ONE if axis in axes else size for axis, size in enumerate(sizes)]
    total: Any = None
    for place in product(*(range(sizes[axis].scale if axis in axes else 1) for axis in range(len(sizes)))):
        part = c.w.slice(x, [Dim((), at) for at in place], [1] * len(sizes), thin)
        total = part if total is None else c.w.apply("add", total, part)
    return total if keepdim else c.w.without(total, axes)


@row("mean.dim", "mean.default")
def _mean(c: Converter, x: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = _axes(c, x, dims)
    if dtype is None and _has_variance(c, axes):  # the pass over it that gives the one gives the other
        dtype = exact(c, c.w_dtype(x))
        mean = c.w.cast(_moments(c, x, axes, dtype)[0], computed_in(c.result_dtype()))
        return mean if keepdim else c.w.without(mean, axes)
    return _mean_of(c, _wide(c, x, axes), axes, keepdim)


def _has_variance(c: Converter, axes: list[int]) -> bool:
    """Return whether the variance of what is converted along some dimensions is asked for, too."""
    operand = c.node.args[0]
    for user in _readers(operand.args[0] if _is_widened(operand) else operand):
        if str(user.target) in ("aten.var.correction", "aten.var_mean.correction"):
            dims = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim")
            if sorted(_along(operand.meta["val"].ndim, dims)) == sorted(axes):
                return True
    return False


def _readers(node: Any) -> Iterator[Any]:
    """Return what reads a node, or a wider form of its numbers."""
    for user in node.users:
        yield from user.users if _is_widened(user) else (user,)


def _is_widened(node: Any) -> bool:
    """Return whether a node casts floating point numbers to a wider dtype."""
    if str(node.target) != "aten._to_copy.default":
        return False
    dtypes = [one.meta["val"].dtype for one in (node.args[0], node)]
    return all(dtype.is_floating_point for dtype in dtypes) and dtypes[0].itemsize < dtypes[1].itemsize


def _mean_of(c: Converter, x: Any, axes: list[int], keepdim: bool) -> Any:
    total = c.w.reduce("sum", x, axes, keepdim)
    return c.w.apply("div", total, c.w.size(c.w.count(x, axes), c.w_dtype(x)))


@row("amax.default", "amin.default")
def _extreme(c: Converter, x: Any, dims: Any = (), keepdim: bool = False) -> Any:
    fn = "max" if "amax" in str(c.node.target) else "min"
    if c.is_bool(x):
        fn = "any" if fn == "max" else "all"
    return c.w.reduce(fn, x, _axes(c, x, dims), keepdim)


@row("max.default", "min.default")
def _extreme_of_all(c: Converter, x: Any) -> Any:
    fn = str(c.node.target).split(".")[1]
    if c.is_bool(x):
        fn = "any" if fn == "max" else "all"
    return c.w.reduce(fn, x, _axes(c, x, None))


@row("prod.default", "prod.dim_int")
def _product(c: Converter, x: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return c.w.reduce("prod", c.w.cast(x, exact(c, c.result_dtype())), _axes(c, x, dims), keepdim)


@row("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _truth(c: Converter, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    fn = str(c.node.target).split(".")[1]
    return c.w.reduce(fn, c.truth(x), _axes(c, x, dims), keepdim)


@row("var.correction", "var_mean.correction")
def _var(c: Converter, x: Any, dims: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    axes = _axes(c, x, dims)
    # PyTorch's group norm alone computes in f32.
    dtype = computed_in(c.w_dtype(x)) if "group_norm" in c.original() else exact(c, c.w_dtype(x))
    mean, apart = _moments(c, x, axes, dtype)
    count = c.w.size(c.w.count(x, axes), dtype)
    less = c.w.apply("maximum", c.w.apply("sub", count, float(1 if correction is None else correction)), 0.0)
    var = c.w.apply("div", apart, less)
    if not keepdim:
        mean, var = c.w.without(mean, axes), c.w.without(var, axes)
    return [var, mean] if "var_mean" in str(c.node.target) else var


def _moments(c: Converter, x: Any, axes: list[int], dtype: DType) -> tuple[Any, Any]:
    """Return the mean along dimensions and the sum of squares of what is apart from it, computed in a dtype.

    Where one program cannot hold all of a sum's elements, those of parts are computed first and then combined, so that
    the operand is read once (Chan, Golub & LeVeque, Updating formulae, 1979).
    """
    shape = [ONE if axis in axes else dim for axis, dim in enumerate(c.dims(x))]
    found = _moments_last(c, x, axes, dtype)
    if found is not None:
        mean, total = found
        return c.w.reshape(mean, shape), c.w.reshape(total, shape)
    parts = _parts(c, _narrow(c, x), axes)
    if parts is None:
        wide = c.w.cast(x, dtype)
        mean = _mean_of(c, wide, axes, True)
        return mean, _squares(c, c.w.apply("sub", wide, mean), axes)
    split, inner, outer = parts
    wide = c.w.cast(split, dtype)
    some = _mean_of(c, wide, inner, True)
    apart = _squares(c, c.w.apply("sub", wide, some), inner)
    mean, total = _joined(c, some, apart, c.w.count(wide, inner), outer)
    return c.w.reshape(mean, shape), c.w.reshape(total, shape)


def _joined(c: Converter, some: Any, apart: Any, count: Dim, axes: list[int]) -> tuple[Any, Any]:
    """Return the moments of parts together, from the mean and the sum of squares of each and how many it has."""
    mean = _mean_of(c, some, axes, True)
    between = c.w.apply("sub", some, mean)
    more = c.w.apply("mul", c.w.apply("mul", between, between), c.w.size(count, c.w_dtype(some)))
    return mean, c.w.reduce("sum", c.w.apply("add", apart, more), axes, True)


def _moments_last(c: Converter, x: Any, axes: list[int], dtype: DType) -> tuple[Any, Any] | None:
    """Return the moments of each channel, or group of channels, of images that lie channels last; None for others."""
    dims = c.dims(x)
    if not c.lies_last(x) or not is_static(dims):
        return None
    is_shaped = isinstance(_narrow(c, x).owner, ReshapeOp)
    if axes == [0, *range(2, len(dims))] and not is_shaped:
        return _moments_of_columns(c, x, dtype)
    if axes == [2, 3] and len(dims) == 4:
        return _moments_of_groups(c, x if is_shaped else c.w.reshape(x, [*dims[:2], ONE, dims[2] * dims[3]]), dtype)
    return None


def _moments_of_columns(c: Converter, x: Any, dtype: DType) -> tuple[Any, Any]:
    """Return the moments of each channel of images that lie channels last, as those of columns of a matrix.

    A program holds some rows of some columns; what it finds is combined in the same way until few are left.
    """
    x = _narrow(c, x)
    rank = len(c.dims(x))
    last = c.w.transpose(x, [0, *range(2, rank), 1])
    rows, columns = c.w.count(x, [0, *range(2, rank)]).scale, c.dims(x)[1]
    held, done = rows_held(rows, columns.scale), 1
    wide = c.w.cast(c.w.reshape(last, [Dim((), rows // held), Dim((), held), columns]), dtype)
    mean = _mean_of(c, wide, [1], True)
    total = _squares(c, c.w.apply("sub", wide, mean), [1])
    while rows > held:
        rows, done = rows // held, done * held
        held = rows if rows <= MOST_HELD else rows_held(rows, columns.scale)
        shape = [Dim((), rows // held), Dim((), held), columns]
        mean, total = _joined(c, c.w.reshape(mean, shape), c.w.reshape(total, shape), Dim((), done), [1])
    return mean, total


def _moments_of_groups(c: Converter, x: Any, dtype: DType) -> tuple[Any, Any]:
    """Return the moments along the last two dimensions of channels in groups, `(n, groups, channels, places)`.

    Places lie further apart than channels: a program holds some of them for some channels, another all of a group.
    """
    x = _narrow(c, x)
    batch, groups, channels, places = c.dims(x)
    held = rows_held(places.scale, groups.scale * channels.scale)
    steps = Dim((), places.scale // held)
    last = c.w.reshape(c.w.transpose(x, [0, 3, 1, 2]), [batch, steps, Dim((), held), groups * channels])
    wide = c.w.cast(last, dtype)
    mean = _mean_of(c, wide, [2], True)
    total = _squares(c, c.w.apply("sub", wide, mean), [2])
    some, apart = (
        c.w.transpose(c.w.reshape(one, [batch, steps, groups, channels]), [0, 2, 1, 3]) for one in (mean, total)
    )
    return _joined(c, some, apart, Dim((), held), [2, 3])


def _narrow(c: Converter, x: Any) -> Any:
    """Return floating point numbers before they were cast to a wider dtype, as they are in memory."""
    while isinstance(x.owner, CastOp) and c.is_float(x.owner.source) and _is_wider(c, x):
        x = x.owner.source
    return x


def _is_wider(c: Converter, x: Any) -> bool:
    """Return whether a cast has rounded nothing."""
    return c.w_dtype(x.owner.source).bits < c.w_dtype(x).bits


def _squares(c: Converter, value: Any, axes: list[int]) -> Any:
    return c.w.reduce("sum", c.w.apply("mul", value, value), axes, True)


def _parts(c: Converter, x: Any, axes: list[int]) -> tuple[Any, list[int], list[int]] | None:
    """Return an operand with the dimensions along which it is combined first, and then; None where once will do."""
    dims = c.dims(x)
    wide = [axis for axis in axes if dims[axis] != ONE]
    if not is_static(dims) or not wide:
        return None
    inner = [axis for axis in wide if all(other in axes for other in range(axis, len(dims)))]
    outer = [axis for axis in wide if axis not in inner]
    if inner and outer:
        return x, inner, outer
    count = dims[wide[0]].scale
    if inner or len(wide) > 1 or count <= MOST_HELD or count % OUTER or isinstance(x.owner, MapOp | CastOp):
        return None
    (axis,) = wide
    split = c.w.reshape(x, [*dims[:axis], Dim((), count // OUTER), Dim((), OUTER), *dims[axis + 1 :]])
    return split, [axis + 1], [axis]


def _computed(c: Converter, x: Any) -> Any:
    """Return floating point numbers in the dtype that they are computed in."""
    return c.w.cast(x, computed_in(c.w_dtype(x)))


@row("_softmax.default", "_log_softmax.default")
def _softmax(c: Converter, x: Any, axis: int, half_to_float: bool) -> Any:
    wide, axes = _computed(c, x), _axes(c, x, axis)
    apart = c.w.apply("sub", wide, c.w.reduce("max", wide, axes, True)) if axes else c.w.apply("sub", wide, wide)
    powers = c.w.apply("exp", apart)
    total = c.w.reduce("sum", powers, axes, True)
    if "log" in str(c.node.target):
        return c.w.apply("sub", apart, c.w.apply("log", total))
    return c.w.apply("div", powers, total)


@row("native_layer_norm.default")
def _layer_norm(c: Converter, x: Any, sizes: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    wide, rank = _computed(c, x), len(c.dims(x))
    axes = list(range(rank - len(sizes), rank))
    mean = _mean_of(c, wide, axes, True)
    apart = c.w.apply("sub", wide, mean)
    var = _mean_of(c, c.w.apply("mul", apart, apart), axes, True)
    rstd = c.w.apply("rsqrt", c.w.apply("add", var, eps))
    out = c.w.apply("mul", apart, rstd)
    out = out if weight is None else c.w.apply("mul", out, c.w.cast(weight, c.w_dtype(wide)))
    return [out if bias is None else c.w.apply("add", out, c.w.cast(bias, c.w_dtype(wide))), mean, rstd]


def _check_product(c: Converter, *values: Any) -> None:
    for value in values:
        if c.w_dtype(value).name not in ("f64", "f32", "bf16", "f16"):
            raise Unknown("a product of integers")


@row("mm.default", "bmm.default")
def _product_of(c: Converter, a: Any, b: Any) -> Any:
    _check_product(c, a, b)
    return c.w.contract(a, b)


@row("addmm.default", "baddbmm.default")
def _added(c: Converter, bias: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_product(c, a, b)
    found = c.w.contract(a, b)

    def scaled(f: F, x: Any, factor: Any) -> Any:
        return x if factor == 1 else f("mul", x, factor)

    if beta == 0:
        return c.elementwise(lambda f, x: scaled(f, x, alpha), (found,), "DEFAULT")
    return c.elementwise(lambda f, x, y: f("add", scaled(f, x, alpha), scaled(f, y, beta)), (found, bias), "DEFAULT")


@row("tessera.product.default")
def _library_product(c: Converter, a: Any, b: Any, bias: Any, out_dtype: str | None) -> Any:
    """Write a product of the library, with its rows as those of one matrix where they are multiplied by one."""
    _check_product(c, a, b)
    if out_dtype not in (None, c.w_dtype(a).name):
        raise Unknown("a product of another dtype than its operands'")
    left, right = c.dims(a), c.dims(b)
    is_flat = len(left) > 2 == len(right)
    if not is_flat and not (len(left) == len(right) in (2, 3) and left[:-2] == right[:-2]):
        raise Unknown("a product of vectors, or of batches that broadcast")
    if is_flat:
        a = c.w.reshape(a, [prod(left[:-1], start=ONE), left[-1]])
    found = c.w.contract(a, b)
    if bias is not None:
        found = c.elementwise(lambda f, x, y: f("add", x, y), (found, bias), "DEFAULT")
    return c.w.reshape(c.w.cast(found, c.result_dtype()), c.result_dims())


@row("_weight_norm_interface_backward.default")
def _weight_norm_back(c: Converter, g: Any, weight: Any, scale: Any, norms: Any, axis: int) -> Any:
    """Write the gradients of a weight's direction and of its length along a dimension: `scale · weight / norms`."""
    dtype = computed_in(c.w_dtype(weight))
    g, weight, scale, norms = (c.w.cast(value, dtype) for value in (g, weight, scale, norms))
    axes = [at for at in range(len(c.dims(weight))) if at != axis]
    along = c.w.apply("div", c.w.reduce("sum", c.w.apply("mul", g, weight), axes, True), norms)
    across = c.w.apply("sub", g, c.w.apply("mul", weight, c.w.apply("div", along, norms)))
    return [c.w.apply("mul", across, c.w.apply("div", scale, norms)), along]
