"""From Python values to IR values: constants, promotion, casts and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from numbers import Integral
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, SSAValue

from tessera.errors import LanguageError, TypeMismatchError, shown
from tessera.frontend.annotations import Dim
from tessera.frontend.builder import Builder
from tessera.frontend.constants import NONE_HELP
from tessera.frontend.values import (
    AnyView,
    Scalar,
    Shared,
    TensorValue,
    Tile,
    Undefined,
    Value,
    is_number,
    show,
    some_slice,
    wrap,
)
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.shared import SharedLoadOp
from tessera.ir.tile.types import describe, element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.numerics import dtypes
from tessera.numerics.conversions import nearest
from tessera.numerics.dtypes import DType, Policy, as_policy, dtype_help, promote, promote_numbers
from tessera.numerics.functions import domain_dtype


def constant(b: Builder, value: bool | int | float, element: Attribute) -> SSAValue:
    """Return a scalar constant of an element type, rounded to it.

    Raises:
        TypeMismatchError: `constant-range` when an integer type cannot hold it.
    """
    if isinstance(element, IndexType):
        check_range(value, dtypes.i64)
        return b.emit(ConstantOp(int(value), index)).result
    dtype = dtype_of(element)
    if dtype.kind == "bool":
        return b.emit(ConstantOp(bool(value), element)).result
    if dtype.is_int:
        check_range(value, dtype)
        return b.emit(ConstantOp(int(value), element)).result
    rounded = nearest(_as_float(value), dtype)
    if dtype.bits >= 16:
        return b.emit(ConstantOp(rounded, element)).result
    wide = b.emit(ConstantOp(rounded, element_type(dtypes.f32))).result
    return b.emit(CastOp(wide, element)).result


def _as_float(value: bool | int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise TypeMismatchError(
            "an integer beyond the range of floats", code="constant-range", help="use a smaller number"
        ) from None


def _range_of(dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer dtype."""
    return (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)


def check_range(value: bool | int | float, dtype: DType) -> None:
    """Check that an integer dtype holds a number.

    Raises:
        TypeMismatchError: `constant-range` when it does not.
    """
    low, high = _range_of(dtype)
    if isinstance(value, float) and not value.is_integer():
        raise TypeMismatchError(
            f"{shown(value)} is no {dtype}", code="constant-range", help="use an integer, or a float dtype"
        )
    if not low <= value <= high:
        raise TypeMismatchError(
            f"{shown(value)} does not fit {dtype}, which holds {low} to {high}",
            code="constant-range",
            help="use a wider dtype",
        )


def default_element(value: bool | int | float) -> Attribute:
    """Return the type a compile-time number takes where nothing else decides."""
    if isinstance(value, bool):
        return element_type(dtypes.boolean)
    return index if isinstance(value, int) else element_type(dtypes.f32)


def operand(b: Builder, value: Any, what: str = "operand") -> Any:
    """Return `value` ready for arithmetic: slices and shared buffers are loaded, dimension symbols resolved.

    Raises:
        TypeMismatchError: `not-a-value` for what is neither tile, scalar nor number.
    """
    from tessera.frontend.access import read

    if isinstance(value, Tile | Scalar) or is_number(value):
        return value
    if isinstance(value, AnyView):
        return read(b, value)
    if isinstance(value, Shared):
        return Tile(b.emit(SharedLoadOp(value.ssa)).result, value.policy)
    if isinstance(value, Dim):
        return symbol(b, value)
    raise not_a_value(value, what)


def materialise(b: Builder, value: Any) -> Any:
    """Return a value that a name can hold: a slice is loaded now, so that later stores do not change it."""
    if isinstance(value, AnyView):
        return operand(b, value)
    if isinstance(value, tuple):
        return tuple(materialise(b, part) for part in cast(tuple[Any, ...], value))
    return value


def symbol(b: Builder, dim: Dim) -> int | Scalar:
    """Return the size that a dimension symbol stands for.

    Raises:
        LanguageError: `unknown-name` when no argument has the dimension.
    """
    missing = [name for name in dim.names if name not in b.dims.names]
    if missing:
        raise LanguageError(
            f"no argument has the dimension {missing[0]}",
            code="unknown-name",
            help=f"dimensions here: {', '.join(b.dims.names) or 'none'}",
        )
    return b.as_size(b.dims.dim(dim, b.loc()))


def not_a_value(value: Any, what: str) -> TypeMismatchError:
    """Return the error for a `value` that has no place in arithmetic."""
    help = "give a tile, a scalar or a number"
    if isinstance(value, TensorValue):
        name = value.param.name
        help = f"take a slice of it: {some_slice(value)}; {name}[index] takes an index tile"
        if what == "the condition":
            help = f"ask `if {name} is not None` whether it was given; of elements, `if ts.tile.any(...)`"
    if isinstance(value, DType):
        help = "a dtype is not a number; ts.tile.cast converts"
    if isinstance(value, str):
        help = 'text stands in print and assert alone: print(f"{x}")'
    if isinstance(value, tuple | list):
        help = "numbers become a tile by ts.tile.stack((1.0, 2.0)); of several values take one: value, place = …"
    if isinstance(value, np.ndarray):
        help = "pass the array as an argument; a few numbers become a tile by ts.tile.stack((1.0, 2.0))"
    if value is None:
        help = NONE_HELP
    return TypeMismatchError(f"{what}: {show(value)} is not a tile or number", code="not-a-value", help=help)


def cast_to(b: Builder, value: SSAValue, element: Attribute, saturate: bool = False) -> SSAValue:
    """Return `value` with another element type."""
    if element_of(value.type) == element:
        return value
    return b.emit(CastOp(value, element, saturate)).result


def to_ssa(b: Builder, value: Any, element: Attribute) -> SSAValue:
    """Return a tile, scalar or number as an IR value of an element type."""
    if isinstance(value, Value):
        return cast_to(b, value.ssa, element)
    return constant(b, value, element)


def reshape_to(b: Builder, value: SSAValue, shape: Sequence[int]) -> SSAValue:
    """Return the elements of a tile as another shape; a no-op when it has it already."""
    return value if shape_of(value.type) == tuple(shape) else b.emit(ReshapeOp(value, shape)).result


def broadcast_shapes(
    shapes: Sequence[tuple[int, ...]], what: str, operands: Sequence[Any] | None = None
) -> tuple[int, ...]:
    """Return the shape that NumPy's rules give.

    Args:
        shapes: the operands' shapes, `()` for scalars.
        what: the operation, for diagnostics.
        operands: the operands, for diagnostics; their shapes by default.

    Raises:
        TypeMismatchError: `shape-mismatch`.
    """
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate((1,) * (rank - len(shape)) + shape):
            if size != 1 and result[axis] not in (1, size):
                texts = map(show, operands) if operands else map(str, shapes)
                raise TypeMismatchError(
                    f"{what}: {', '.join(texts)} do not broadcast: {result[axis]} != {size}",
                    code="shape-mismatch",
                    help=_broadcast_help(shapes),
                )
            result[axis] = max(result[axis], size)
    return tuple(result)


def _broadcast_help(shapes: Sequence[tuple[int, ...]]) -> str:
    ranks = {len(shape) for shape in shapes if shape}
    if ranks == {1, 2}:
        return "add a dimension where the row values belong: x[:, None]"
    return "sizes must be equal or 1, counted from the last dimension"


def broadcast_to(b: Builder, value: SSAValue, shape: tuple[int, ...], what: str = "broadcast") -> SSAValue:
    """Return `value` repeated to `shape`.

    Raises:
        TypeMismatchError: `shape-mismatch`.
    """
    own = shape_of(value.type)
    if own == shape:
        return value
    if not own:
        return b.emit(SplatOp(value, shape)).result
    padded = (1,) * (len(shape) - len(own)) + own
    if len(own) > len(shape) or any(a not in (1, c) for a, c in zip(padded, shape, strict=True)):
        raise TypeMismatchError(
            f"{what}: {describe(value.type)} does not broadcast to {shape}",
            code="shape-mismatch",
            help="sizes must be equal or 1, counted from the last dimension",
        )
    value = reshape_to(b, value, padded)
    return value if padded == shape else b.emit(BroadcastOp(value, shape)).result


def common_element(values: Sequence[Any]) -> Attribute:
    """Return the element type that operands are promoted to; Python numbers adapt to the others."""
    strong = [v for v in values if isinstance(v, Value)]
    weak = [v for v in values if not isinstance(v, Value)]
    if not strong:
        return max((default_element(v) for v in weak), key=_weak_rank)
    dtype = promote_numbers(reduce(promote, (v.dtype for v in strong)), weak)
    if dtype == dtypes.i64 and all(isinstance(v, Scalar) for v in strong):
        if any(isinstance(v.type, IndexType) for v in strong):
            return index
    return element_type(dtype)


def _weak_rank(element: Attribute) -> int:
    order = [element_type(dtypes.boolean), index, element_type(dtypes.f32)]
    return order.index(element)


def apply(b: Builder, fn: str, *values: Any, what: str | None = None) -> Tile | Scalar:
    """Apply an elementwise function after promoting and broadcasting its operands.

    Raises:
        TypeMismatchError: `shape-mismatch`, or `dtype-mismatch` outside the function's domain.
    """
    what = what or fn
    ready = [operand(b, value, what) for value in values]
    condition = [ready.pop(0)] if fn == "select" else []
    element = _in_domain(fn, _chosen_element(condition, ready), what)
    args = [to_ssa(b, value, element) for value in ready]
    if condition:
        args.insert(0, boolean(b, condition[0], f"{what}: the condition"))
    shape = broadcast_shapes([shape_of(arg.type) for arg in args], what, (*condition, *ready))
    args = [broadcast_to(b, arg, shape) for arg in args]
    return cast(Any, wrap(b.emit(ElementwiseOp(fn, args)).result))


def _chosen_element(condition: Sequence[Any], ready: Sequence[Any]) -> Attribute:
    """Return the element type of operands; a tile chooses between two numbers without a dtype as of a tile's."""
    by_tile = any(isinstance(value, Tile) for value in condition)
    weak = not any(isinstance(value, Value) for value in ready)
    return element_in_tiles(ready) if by_tile and weak else common_element(ready)


def element_in_tiles(numbers: Sequence[Any]) -> Attribute:
    """Return the type that a tile of compile-time numbers has: of integers i32, where it holds them."""
    low, high = _range_of(dtypes.i32)
    element = common_element(numbers)
    fits = all(low <= value <= high for value in numbers)
    return element_type(dtypes.i32) if isinstance(element, IndexType) and fits else element


def boolean(b: Builder, value: Any, what: str) -> SSAValue:
    """Return a condition as a bool value.

    Raises:
        TypeMismatchError: `dtype-mismatch` when it is not bool.
    """
    value = operand(b, value, what)
    element = element_type(dtypes.boolean)
    if isinstance(value, bool):
        return constant(b, value, element)
    if not isinstance(value, Value) or value.dtype.kind != "bool":
        raise TypeMismatchError(f"{what} is {show(value)}, not bool", code="dtype-mismatch", help="compare it: x != 0")
    return value.ssa


def _in_domain(fn: str, element: Attribute, what: str) -> Attribute:
    """Return the element type that `fn` computes in for operands of `element`."""
    dtype = dtype_of(element)
    found = domain_dtype(fn, dtype, what)
    return element if found == dtype else element_type(found)


def to_tile(b: Builder, value: Any, what: str) -> Tile:
    """Return `value` as a tile.

    Raises:
        TypeMismatchError: `not-a-tile` for scalars and numbers, `not-a-value` for anything else.
    """
    ready = operand(b, value, what)
    if not isinstance(ready, Tile):
        raise TypeMismatchError(
            f"{what}: {show(ready)} is not a tile",
            code="not-a-tile",
            help="make a tile of it: ts.tile.full(shape, value)",
        )
    return ready


def may_be_far(value: Any) -> bool:
    """Return whether a value may be an integer beyond `index`."""
    return isinstance(value, Scalar) and value.dtype == dtypes.u64


def to_index(b: Builder, value: Any, what: str, far: bool = False) -> SSAValue:
    """Return an integer scalar as `index`.

    Args:
        b: the builder.
        value: the scalar.
        what: what it is, in an error's words.
        far: whether an unsigned one that is beyond `index` becomes the largest one there is, and not a negative one.

    Raises:
        TypeMismatchError: `bad-index` for anything else.
    """
    if isinstance(value, Dim):
        value = symbol(b, value)
    if isinstance(value, AnyView):
        value = operand(b, value, what)
    if isinstance(value, int) and not isinstance(value, bool):
        return constant(b, value, index)
    if isinstance(value, Scalar) and value.dtype.is_int:
        near = apply(b, "minimum", value, 2**63 - 1) if far and may_be_far(value) else value
        return cast_to(b, near.ssa, index)
    raise TypeMismatchError(
        f"{what} must be an integer scalar, got {show(value)}",
        code="bad-index",
        help="cast floats to an integer type first, divide integers with //; index tiles belong inside A[...]",
    )


def static_int(b: Builder, value: Any, what: str) -> int:
    """Return a compile-time integer, fixing dimensions it is made of.

    Raises:
        LanguageError: `not-static`, or `dim-not-static` when a dimension's size is not known.
    """
    if isinstance(value, Dim):
        value = symbol(b, value)
    known = b.static(value)
    if known is None:
        raise LanguageError(
            f"{what} must be an integer known at compile time, got {show(value)}",
            code="not-static",
            help="use a literal, a ts.constexpr parameter, ts.tile.context() or a dimension",
        )
    return known


def static_bool(value: Any, what: str) -> bool:
    """Return a compile-time truth value.

    Raises:
        TypeMismatchError: `bad-argument` for a value of run time, or one that is neither true nor false.
    """
    if isinstance(value, Value) or not isinstance(value, Integral | np.bool_):
        why = "is known at run time only" if isinstance(value, Value) else "is neither True nor False"
        raise TypeMismatchError(
            f"{what}: {show(value)} {why}",
            code="bad-argument",
            help="give True or False, or a compile-time value of either",
        )
    return bool(cast(Any, value))


def axis_of(b: Builder, axis: Any, source: Tile, what: str) -> int:
    """Return a dimension of a tile, counted from the start.

    Raises:
        TypeMismatchError: `bad-axis` where there is no such dimension.
    """
    rank = len(source.shape)
    of_two = {"max": "maximum", "min": "minimum"}.get(what)
    if of_two is not None and isinstance(axis, Value | AnyView):
        raise TypeMismatchError(
            f"{what}: the axis is {show(axis)}",
            code="bad-axis",
            help=f"ts.tile.{of_two}(a, b) compares two tiles element by element",
        )
    known = static_int(b, axis, f"{what}: the axis")
    if not -rank <= known < rank:
        raise TypeMismatchError(
            f"{what}: axis {known} of {describe(source.type)} does not exist",
            code="bad-axis",
            help=f"axes are {-rank} to {rank - 1}",
        )
    return known % rank


def places_along(b: Builder, shape: tuple[int, ...], axis: int) -> Tile:
    """Return an i32 tile of a shape whose elements are their indices along a dimension."""
    along = b.emit(ArangeOp(shape[axis], element_type(dtypes.i32))).result
    column = reshape_to(b, along, [size if i == axis else 1 for i, size in enumerate(shape)])
    return Tile(broadcast_to(b, column, shape))


def static_shape(b: Builder, value: Any, what: str) -> tuple[int, ...]:
    """Return compile-time sizes.

    Raises:
        LanguageError: `not-static`.
        TypeMismatchError: `bad-shape` for sizes below 1 or no sizes at all. Sizes of empty dimensions become 1.
    """
    parts = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
    shape = tuple(static_int(b, part, f"{what}: a size") for part in parts)
    if 0 in shape and 0 in (*b.dims.fixed.values(), *b.dims.wanted.values()):
        b.note_empty_tile(f"{what}: the shape {shape} has no elements, as a dimension is empty")
        shape = tuple(size or 1 for size in shape)
    if not shape or any(size < 1 for size in shape):
        raise TypeMismatchError(
            f"{what}: {shape} is not a shape",
            code="bad-shape",
            help="a tile has at least one dimension of size 1 or more",
        )
    return shape


def to_policy(value: Any, what: str) -> Policy:
    """Return a dtype, policy or their text as a policy.

    Raises:
        TypeMismatchError: `bad-dtype` for anything else.
        LanguageError: `unknown-dtype` or `bad-policy` for a text that names none.
    """
    if isinstance(value, DType | Policy | str):
        return as_policy(value)
    raise TypeMismatchError(
        f"{what}: {show(value)} is not a dtype",
        code="bad-dtype",
        help=dtype_help(value, 'write ts.f32 or "bf16 @accum(f32)"'),
    )


def check_rounding(policy: Policy) -> None:
    """Refuse a rounding rule that conversions do not have.

    Raises:
        LanguageError: `unsupported-policy`.
    """
    if policy.rounding != "nearest":
        raise LanguageError(
            f"{policy}: conversions in kernels round to nearest",
            code="unsupported-policy",
            help="drop @stochastic_round",
        )


def check_defined(name: str, value: Any) -> Any:
    """Return `value` unless it is unknown on some path.

    Raises:
        LanguageError: `undefined-name`.
    """
    if isinstance(value, Undefined):
        raise LanguageError(f"{name!r} is not defined here: {value.reason}", code="undefined-name", help=value.help)
    return value
