"""Compiles reductions and scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, cast

from xdsl.ir import Block, SSAValue

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.calls import inline
from tessera.frontend.combiners import combiner
from tessera.frontend.convert import (
    apply,
    axis_of,
    broadcast_to,
    cast_to,
    constant,
    operand,
    places_along,
    reshape_to,
    static_int,
    to_tile,
)
from tessera.frontend.function import DeviceFunction
from tessera.frontend.library import exponentials, extremes, moments
from tessera.frontend.registry import compiles
from tessera.frontend.values import Scalar, Tile, Value, show, wrap
from tessera.ir.tile.reduce import REDUCTIONS, ReduceByOp, ReduceOp, ScanByOp, ScanOp
from tessera.ir.tile.types import describe, element_of, shape_of
from tessera.ir.types import element_type
from tessera.numerics import dtypes
from tessera.numerics.dtypes import accumulator_of


def _source(b: Builder, x: Any, op: Any, what: str) -> Tile:
    """Return the operand, widened to the type it accumulates in."""
    if op not in REDUCTIONS:
        raise TypeMismatchError(
            f"{what}: no reduction is called {show(op)}",
            code="bad-argument",
            help="decorate it with @ts.function" if callable(op) else f"one of {', '.join(REDUCTIONS)}",
        )
    source = to_tile(b, x, what)
    is_bool = source.dtype.kind == "bool"
    if op in ("any", "all"):
        if not is_bool:
            raise TypeMismatchError(
                f"{what}: {describe(source.type)} is not bool",
                code="dtype-mismatch",
                help="compare it: x != 0",
            )
        return source
    policy = source.policy
    wide = policy.accum if policy is not None and policy.accum is not None else accumulator_of(source.dtype)
    return Tile(cast_to(b, source.ssa, element_type(wide)))


def _axes(b: Builder, axis: Any, source: Tile, what: str) -> tuple[int, ...]:
    """Return the dimensions to combine, in order; all of them for None."""
    if axis is None:
        return tuple(range(len(source.shape)))
    parts = cast(tuple[Any, ...], axis) if isinstance(axis, tuple) else (axis,)
    found = sorted({axis_of(b, part, source, what) for part in parts})
    if not parts or len(found) < len(parts):
        raise TypeMismatchError(
            f"{what}: {show(axis)} does not name dimensions of {describe(source.type)} once each",
            code="bad-axis",
            help="give one axis, a tuple of different ones, or None for all",
        )
    return tuple(found)


def reduced(b: Builder, x: Any, axis: Any, op: Any, what: str = "reduce", keepdims: Any = False) -> Tile | Scalar:
    """Return the reduction of `x` along `axis`, or of all its elements when `axis` is None."""
    source = _source(b, x, op, what)

    def along(values: list[SSAValue], where: int) -> Sequence[SSAValue]:
        return [b.emit(ReduceOp(values[0], where, op)).result]

    (result,) = _along_axes(b, [source], axis, along, what, keepdims)
    return result


def _along_axes(
    b: Builder,
    sources: Sequence[Tile],
    axis: Any,
    along: Callable[[list[SSAValue], int], Sequence[SSAValue]],
    what: str,
    keepdims: Any,
) -> tuple[Any, ...]:
    """Reduce tiles of one shape along one dimension after the other, by a function that does so for one."""
    axes, shape, values = _axes(b, axis, sources[0], what), list(sources[0].shape), [each.ssa for each in sources]
    while axes:
        # Neighbouring dimensions are one, which takes one pass.
        last = first = axes[-1]
        while first - 1 in axes:
            first -= 1
        shape[first : last + 1] = [prod(shape[first : last + 1])]
        values = list(along([reshape_to(b, value, shape) for value in values], first))
        del shape[first]
        axes = axes[: axes.index(first)]
    return tuple(_kept(b, value, sources[0], axis, what) if keepdims else wrap(value) for value in values)


def _kept(b: Builder, ssa: SSAValue, source: Tile, axis: Any, what: str) -> Tile:
    """Return a reduction of `source` with the dimensions back, of size 1."""
    axes = _axes(b, axis, source, what)
    shape = tuple(1 if i in axes else size for i, size in enumerate(source.shape))
    return Tile(reshape_to(b, ssa, shape) if shape_of(ssa.type) else broadcast_to(b, ssa, shape))


def _sources(b: Builder, x: Any, what: str) -> list[Tile]:
    """Return the tiles that a combiner of the user's own takes together."""
    given = cast(tuple[Any, ...], x) if isinstance(x, tuple) else (x,)
    tiles = [to_tile(b, each, what) for each in given]
    if any(each.shape != tiles[0].shape for each in tiles):
        raise TypeMismatchError(
            f"{what}: {', '.join(describe(each.type) for each in tiles)} differ in shape",
            code="shape-mismatch",
            help="tiles that are combined together have one shape",
        )
    return tiles


def _block(b: Builder, function: DeviceFunction[..., Any], tiles: Sequence[Tile], what: str) -> Block:
    return combiner(b, function, [element_of(each.type) for each in tiles], what)


@compiles(tile.reduce)
def _reduce(b: Builder, x: Any, axis: Any, op: Any, keepdims: Any) -> Any:
    if not isinstance(op, DeviceFunction):
        return reduced(b, x, axis, op, keepdims=keepdims)
    tiles, function = _sources(b, x, "reduce"), cast(DeviceFunction[..., Any], op)

    def along(values: list[SSAValue], where: int) -> Sequence[SSAValue]:
        return b.emit(ReduceByOp(values, where, _block(b, function, tiles, "reduce"))).outputs

    results = _along_axes(b, tiles, axis, along, "reduce", keepdims)
    return results if isinstance(x, tuple) else results[0]


def _named(op: str, b: Builder, x: Any, axis: Any = None, keepdims: Any = False) -> Tile | Scalar:
    return reduced(b, x, axis, op, op, keepdims)


for _function in (tile.sum, tile.max, tile.min, tile.prod, tile.any, tile.all):
    compiles(_function)(cast(Callable[..., Any], partial(_named, _function.__name__)))


@compiles(tile.mean)
def _mean(b: Builder, x: Any, axis: Any = None, keepdims: Any = False) -> Tile | Scalar:
    source = _float_source(b, x, "mean")
    count = prod(source.shape[i] for i in _axes(b, axis, source, "mean"))
    total = reduced(b, source, axis, "sum", "mean", keepdims)
    return apply(b, "div", total, count, what="mean")


@compiles(tile.var)
def _var(b: Builder, x: Any, axis: Any = None, keepdims: Any = False, ddof: Any = 0) -> Tile | Scalar:
    source = _float_source(b, x, "var")
    count = prod(source.shape[i] for i in _axes(b, axis, source, "var")) - static_int(b, ddof, "var: ddof")
    if count < 1:
        raise TypeMismatchError(
            f"var: ddof {show(ddof)} leaves {count} of the elements of {describe(source.type)} to divide by",
            code="bad-argument",
            help="take ddof=0, or more elements",
        )
    off = apply(b, "sub", source, _mean(b, source, axis, True), what="var")
    known = prod(source.shape[i] for i in _axes(b, axis, source, "var"))
    total = inline(b, moments.deviation.function, [off, axis, keepdims, float(known)], {})
    return apply(b, "div", total, count, what="var")


@compiles(tile.combine_moments)
def _combine_moments(b: Builder, count: Any, mean: Any, deviation: Any, more: Any, other: Any, others: Any) -> Any:
    parts = [operand(b, part, "combine_moments") for part in (count, mean, deviation, more, other, others)]
    if not any(isinstance(part, Value) for part in parts):
        parts[0] = wrap(constant(b, parts[0], element_type(dtypes.f32)))
    for part in parts:
        if isinstance(part, Value) and not part.dtype.is_float:
            raise TypeMismatchError(
                f"combine_moments: {show(part)} is no float", code="dtype-mismatch", help="cast it to ts.f32"
            )
    return inline(b, moments.combined.function, parts, {})


def _float_source(b: Builder, x: Any, what: str) -> Tile:
    """Return the operand in the float type that its sum accumulates in."""
    source = to_tile(b, x, what)
    if not source.dtype.is_float:
        return Tile(cast_to(b, source.ssa, element_type(dtypes.f32)))
    return _source(b, source, "sum", what)


@compiles(tile.row_sum)
def _row_sum(b: Builder, x: Any) -> Tile | Scalar:
    return reduced(b, x, -1, "sum", "row_sum")


@compiles(tile.row_max)
def _row_max(b: Builder, x: Any) -> Tile | Scalar:
    return reduced(b, x, -1, "max", "row_max")


def _scanned(b: Builder, x: Any, axis: Any, op: Any, reverse: Any, what: str) -> Tile:
    source = _source(b, x, op, what)
    return Tile(b.emit(ScanOp(source.ssa, axis_of(b, axis, source, what), op, bool(reverse))).result)


@compiles(tile.scan)
def _scan(b: Builder, x: Any, axis: Any, op: Any, reverse: Any) -> Any:
    return _any_scan(b, x, axis, op, reverse, "scan")


@compiles(tile.associative_scan)
def _associative_scan(b: Builder, x: Any, axis: Any, op: Any, reverse: Any) -> Any:
    return _any_scan(b, x, axis, op, reverse, "associative_scan")


def _any_scan(b: Builder, x: Any, axis: Any, op: Any, reverse: Any, what: str) -> Any:
    if not isinstance(op, DeviceFunction):
        return _scanned(b, x, axis, op, reverse, what)
    tiles = _sources(b, x, what)
    block = _block(b, cast(DeviceFunction[..., Any], op), tiles, what)
    where = axis_of(b, axis, tiles[0], what)
    outputs = b.emit(ScanByOp([each.ssa for each in tiles], where, block, bool(reverse))).outputs
    results = tuple(wrap(output) for output in outputs)
    return results if isinstance(x, tuple) else results[0]


@compiles(tile.cumsum)
def _cumsum(b: Builder, x: Any, axis: Any, reverse: Any) -> Tile:
    return _scanned(b, x, axis, "sum", reverse, "cumsum")


def _running(op: str, name: str, b: Builder, x: Any, axis: Any = -1, reverse: Any = False) -> Tile:
    return _scanned(b, x, axis, op, reverse, name)


for _op, _function in (("prod", tile.cumprod), ("max", tile.cummax), ("min", tile.cummin)):
    compiles(_function)(cast(Callable[..., Any], partial(_running, _op, _function.__name__)))


@compiles(tile.argmax)
def _argmax(b: Builder, x: Any, axis: Any, keepdims: Any) -> Any:
    return _place_of(b, x, axis, keepdims, "argmax", extremes.larger, extremes.larger_or_nan)


@compiles(tile.argmin)
def _argmin(b: Builder, x: Any, axis: Any, keepdims: Any) -> Any:
    return _place_of(b, x, axis, keepdims, "argmin", extremes.smaller, extremes.smaller_or_nan)


def _place_of(
    b: Builder,
    x: Any,
    axis: Any,
    keepdims: Any,
    what: str,
    of_integers: DeviceFunction[..., Any],
    of_floats: DeviceFunction[..., Any],
) -> Any:
    source = _source(b, x, "max", what)
    shape = source.shape
    flat = source.ssa if axis is not None else reshape_to(b, source.ssa, (prod(shape),))
    where = 0 if axis is None else axis_of(b, axis, source, what)
    sizes = shape_of(flat.type)
    tiles = [Tile(flat), places_along(b, sizes, where)]
    block = _block(b, of_floats if source.dtype.is_float else of_integers, tiles, what)
    _, found = b.emit(ReduceByOp([each.ssa for each in tiles], where, block)).outputs
    return _kept(b, found, source, axis, what) if keepdims else wrap(found)


@compiles(tile.logsumexp)
def _logsumexp(b: Builder, x: Any, axis: Any, keepdims: Any) -> Any:
    source = _float_source(b, x, "logsumexp")
    axes = _axes(b, axis, source, "logsumexp")
    kept = cast(Tile, inline(b, exponentials.logsumexp.function, [source, axes], {}))
    rest = tuple(size for i, size in enumerate(source.shape) if i not in axes)
    if keepdims:
        return kept
    return Tile(reshape_to(b, kept.ssa, rest)) if rest else reduced(b, kept, None, "sum", "logsumexp")


@compiles(tile.log_softmax)
def _log_softmax(b: Builder, x: Any, axis: Any) -> Any:
    source = _float_source(b, x, "log_softmax")
    return inline(b, exponentials.log_softmax.function, [source, _axes(b, axis, source, "log_softmax")], {})


@compiles(tile.softmax)
def _softmax(b: Builder, x: Any, axis: Any) -> Any:
    source = _float_source(b, x, "softmax")
    return inline(b, exponentials.softmax.function, [source, _axes(b, axis, source, "softmax")], {})
