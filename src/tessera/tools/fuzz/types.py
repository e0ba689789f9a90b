"""Dtypes, shapes and the types of operations, as docs/numerics.md states them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

FLOATS: Final = ("f64", "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1")
SIGNED: Final = ("i8", "i16", "i32", "i64")
UNSIGNED: Final = ("u8", "u16", "u32", "u64")
INTS: Final = SIGNED + UNSIGNED
DTYPES: Final = (*FLOATS, *INTS, "bool")
OPERANDS: Final = ("f32", "f64", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "i8", "u8")
"""What matrix products multiply."""

_BITS: Final = {
    **{"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "bool": 1},
    **{name: int(name[1:]) for name in INTS},
    **{name: int(name[2]) for name in FLOATS if name.startswith("fp")},
}

Shape = tuple[int, ...]


class TreeError(Exception):
    """A tree that is not a program of the language."""


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an expression.

    Args:
        dtype: element type.
        shape: size of each dimension; empty for a scalar.
        weak: whether it is a number in the source, which adapts to the other operands.
        policy: the numeric policy of the tensor it was loaded from, such as `tf32`; empty for none.
    """

    dtype: str
    shape: Shape = ()
    weak: bool = False
    policy: str = ""

    @property
    def size(self) -> int:
        """The number of elements."""
        return elements(self.shape)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'}:{self.dtype}"


def elements(shape: Shape) -> int:
    """Return the number of elements of a shape."""
    return reduce(lambda total, size: total * size, shape, 1)


def bits(dtype: str) -> int:
    """Return the width of a dtype's values."""
    return _BITS[dtype]


def is_float(dtype: str) -> bool:
    """Return whether a dtype is a floating-point type."""
    return dtype in FLOATS


def is_int(dtype: str) -> bool:
    """Return whether a dtype is a signed or unsigned integer."""
    return dtype in INTS


def is_signed(dtype: str) -> bool:
    """Return whether a dtype is a signed integer."""
    return dtype in SIGNED


def int_range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest integer of a dtype."""
    if is_signed(dtype):
        return -(2 ** (bits(dtype) - 1)), 2 ** (bits(dtype) - 1) - 1
    return 0, 2 ** bits(dtype) - 1


def promote(a: str, b: str) -> str:
    """Return the dtype of `a ⊕ b` for two tiles or scalars."""
    if a == b:
        return a
    if is_float(a) != is_float(b):
        return a if is_float(a) else b
    if is_float(a):
        return _promote_floats(a, b)
    if "bool" in (a, b):
        return b if a == "bool" else a
    if is_signed(a) == is_signed(b):
        return a if bits(a) >= bits(b) else b
    signed, unsigned = (a, b) if is_signed(a) else (b, a)
    return signed if bits(signed) > bits(unsigned) else f"i{min(2 * bits(unsigned), 64)}"


def _promote_floats(a: str, b: str) -> str:
    """The wider; two formats of one width, or a narrow one with a 16-bit one, meet in the next wider type."""
    if bits(a) != bits(b):
        return a if bits(a) > bits(b) else b
    return "f32" if bits(a) == 16 else "f16" if bits(a) <= 8 else a


def accumulator(dtype: str) -> str:
    """Return the type that reductions and products of a dtype accumulate in."""
    if is_float(dtype):
        return "f64" if dtype == "f64" else "f32"
    if dtype == "bool":
        return "i32"
    return dtype if bits(dtype) == 64 else "i32" if is_signed(dtype) else "u32"


def common(types: Sequence[Type]) -> str:
    """Return the dtype that operands are promoted to; numbers in the source adapt to the others."""
    strong = [type_.dtype for type_ in types if not type_.weak]
    if not strong:
        raise TreeError("an operation on numbers of the source alone")
    dtype = reduce(promote, strong)
    weak = {type_.dtype for type_ in types if type_.weak}
    if "f32" in weak and not is_float(dtype):
        return "f32"
    return "i32" if dtype == "bool" and "i64" in weak else dtype


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that NumPy's rules give."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate((1,) * (rank - len(shape)) + shape):
            if size != 1 and result[axis] not in (1, size):
                raise TreeError(f"{shapes} do not broadcast")
            result[axis] = max(result[axis], size)
    return tuple(result)


def fits(shape: Shape, target: Shape) -> bool:
    """Return whether a shape broadcasts to another."""
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))
