"""Compiles `zeros`, `full`, `arange` and their relatives."""

from __future__ import annotations

from typing import Any

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.access import view_shape
from tessera.frontend.builder import Builder
from tessera.frontend.convert import (
    apply,
    broadcast_to,
    cast_to,
    check_range,
    element_in_tiles,
    operand,
    static_int,
    static_shape,
    to_policy,
    to_ssa,
)
from tessera.frontend.registry import compiles
from tessera.frontend.values import Shared, SharedPart, Tile, Value, View, show
from tessera.ir.tile.elementwise import ArangeOp
from tessera.ir.types import dtype_of, element_type
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, Policy


def filled(b: Builder, shape: tuple[int, ...], value: Any, policy: Policy, what: str) -> Tile:
    """Return a tile whose elements all are `value`."""
    ready = operand(b, value, what)
    if isinstance(ready, Tile):
        raise TypeMismatchError(
            f"{what}: the value is {show(ready)}, not a scalar",
            code="not-a-scalar",
            help="use ts.tile.broadcast_to",
        )
    scalar = to_ssa(b, ready, element_type(policy.dtype))
    return Tile(broadcast_to(b, scalar, shape), _kept(policy))


def _kept(policy: Policy) -> Policy | None:
    return None if policy == Policy(policy.dtype.storage) else policy


@compiles(tile.zeros)
def _zeros(b: Builder, shape: Any, dtype: Any) -> Tile:
    return filled(b, static_shape(b, shape, "zeros"), 0, to_policy(dtype, "zeros"), "zeros")


@compiles(tile.full)
def _full(b: Builder, shape: Any, value: Any, dtype: Any) -> Tile:
    value = operand(b, value, "full")
    policy = to_policy(dtype, "full") if dtype is not None else Policy(_own_dtype(value))
    return filled(b, static_shape(b, shape, "full"), value, policy, "full")


def _own_dtype(value: Any) -> DType:
    return value.dtype if isinstance(value, Value) else dtype_of(element_in_tiles([value]))


def like(value: Any, what: str) -> tuple[tuple[int, ...], Policy]:
    """Return the shape and dtype of a tile, slice or shared buffer, which is not loaded for it.

    Raises:
        TypeMismatchError: `not-a-tile`.
    """
    if isinstance(value, Tile | Shared):
        return value.shape, value.policy or Policy(value.dtype)
    if isinstance(value, View) and view_shape(value):
        return view_shape(value), value.tensor.param.policy
    if isinstance(value, SharedPart) and view_shape(value):
        return view_shape(value), value.buffer.policy or Policy(value.buffer.dtype)
    raise TypeMismatchError(f"{what}: {show(value)} is not a tile", code="not-a-tile", help="give a tile or a slice")


@compiles(tile.zeros_like)
def _zeros_like(b: Builder, x: Any, dtype: Any) -> Tile:
    shape, own = like(x, "zeros_like")
    return filled(b, shape, 0, own if dtype is None else to_policy(dtype, "zeros_like"), "zeros_like")


@compiles(tile.full_like)
def _full_like(b: Builder, x: Any, value: Any, dtype: Any) -> Tile:
    shape, own = like(x, "full_like")
    return filled(b, shape, value, own if dtype is None else to_policy(dtype, "full_like"), "full_like")


@compiles(tile.arange)
def _arange(b: Builder, start: Any, stop: Any, dtype: Any) -> Tile:
    first = static_int(b, start, "arange: a bound")
    first, last = (0, first) if stop is None else (first, static_int(b, stop, "arange: a bound"))
    if last <= first:
        raise TypeMismatchError(
            f"arange from {first} to {last} is empty",
            code="bad-shape",
            help="a tile has at least one element",
        )
    wanted = to_policy(dtype, "arange").dtype
    if wanted.kind == "bool":
        raise TypeMismatchError("arange of bool", code="dtype-mismatch", help="use an integer or float dtype")
    near = -(2**31) <= first and last <= 2**31
    counted = wanted if wanted.is_int else dtypes.i32 if near else dtypes.i64
    for bound in (first, last - 1):
        check_range(bound, counted)
    lanes = Tile(b.emit(ArangeOp(last - first, element_type(counted))).result)
    if first:
        lanes = apply(b, "add", lanes, first)
    return Tile(cast_to(b, lanes.ssa, element_type(wanted)))
