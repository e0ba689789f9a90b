"""Compiles reductions and scans."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import cast_to, reshape_to, static_int, to_tile
from tessera.frontend.registry import compiles
from tessera.frontend.values import Scalar, Tile, show, wrap
from tessera.ir.tile.reduce import REDUCTIONS, ReduceOp, ScanOp
from tessera.ir.tile.types import describe
from tessera.ir.types import element_type
from tessera.numerics.dtypes import accumulator_of


def _source(b: Builder, x: Any, op: Any, what: str) -> Tile:
    """Return the operand, widened to the type it accumulates in."""
    if op not in REDUCTIONS:
        raise TypeMismatchError(
            f"{what}: no reduction is called {show(op)}",
            code="bad-argument",
            help=f"one of {', '.join(REDUCTIONS)}",
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


def _axis(b: Builder, axis: Any, source: Tile, what: str) -> int:
    rank = len(source.shape)
    known = static_int(b, axis, f"{what}: the axis")
    if not -rank <= known < rank:
        raise TypeMismatchError(
            f"{what}: axis {known} of {describe(source.type)} does not exist",
            code="bad-axis",
            help=f"axes are {-rank} to {rank - 1}",
        )
    return known % rank


def reduced(b: Builder, x: Any, axis: Any, op: Any, what: str = "reduce") -> Tile | Scalar:
    """Return the reduction of `x` along `axis`, or of all its elements when `axis` is None."""
    source = _source(b, x, op, what)
    if axis is not None:
        return cast(Any, wrap(b.emit(ReduceOp(source.ssa, _axis(b, axis, source, what), op)).result))
    ssa = source.ssa
    if len(source.shape) > 1:
        size = 1
        for extent in source.shape:
            size *= extent
        ssa = reshape_to(b, ssa, (size,))
    return cast(Any, wrap(b.emit(ReduceOp(ssa, 0, op)).result))


@compiles(tile.reduce)
def _reduce(b: Builder, x: Any, axis: Any, op: Any) -> Tile | Scalar:
    return reduced(b, x, axis, op)


def _named(op: str, b: Builder, x: Any, axis: Any) -> Tile | Scalar:
    return reduced(b, x, axis, op, op)


for _function in (tile.sum, tile.max, tile.min, tile.prod, tile.any, tile.all):
    compiles(_function)(cast(Callable[..., Any], partial(_named, _function.__name__)))


@compiles(tile.row_sum)
def _row_sum(b: Builder, x: Any) -> Tile | Scalar:
    return reduced(b, x, -1, "sum", "row_sum")


@compiles(tile.row_max)
def _row_max(b: Builder, x: Any) -> Tile | Scalar:
    return reduced(b, x, -1, "max", "row_max")


def _scanned(b: Builder, x: Any, axis: Any, op: Any, reverse: Any, what: str) -> Tile:
    source = _source(b, x, op, what)
    return Tile(b.emit(ScanOp(source.ssa, _axis(b, axis, source, what), op, bool(reverse))).result)


@compiles(tile.scan)
def _scan(b: Builder, x: Any, axis: Any, op: Any, reverse: Any) -> Tile:
    return _scanned(b, x, axis, op, reverse, "scan")


@compiles(tile.cumsum)
def _cumsum(b: Builder, x: Any, axis: Any, reverse: Any) -> Tile:
    return _scanned(b, x, axis, "sum", reverse, "cumsum")
