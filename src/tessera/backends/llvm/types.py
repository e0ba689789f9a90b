"""LLVM types and literals of Tessera's dtypes."""

from __future__ import annotations

import struct

from tessera.data import dataclass
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

_ELEMENTS = {"f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat", "bool": "i1"}
_MANGLED = {"double": "f64", "float": "f32", "half": "f16", "bfloat": "bf16", "ptr": "p0"}


@dataclass(frozen=True, slots=True)
class LLVMType:
    """An LLVM scalar (`width` 1) or vector type.

    Args:
        element: LLVM name of the element, such as `float` or `i32`.
        width: number of lanes; 1 is a scalar.
    """

    element: str
    width: int = 1

    def __str__(self) -> str:
        return self.element if self.width == 1 else f"<{self.width} x {self.element}>"

    @property
    def mangled(self) -> str:
        """The type's part in the name of an overloaded intrinsic."""
        element = _MANGLED.get(self.element, self.element)
        return element if self.width == 1 else f"v{self.width}{element}"

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.element in ("double", "float", "half", "bfloat")

    def of(self, element: str) -> LLVMType:
        """Return the type of as many lanes of another element."""
        return LLVMType(element, self.width)

    def splat(self, literal: str) -> str:
        """Return a constant of this type whose lanes all are `literal`."""
        return literal if self.width == 1 else f"splat ({self.element} {literal})"


def llvm_element(dtype: DType) -> str:
    """Return the LLVM type of a value of `dtype` in registers (bool is i1, floats of 8 bits or fewer i8)."""
    dtype = dtype.storage
    if dtype.name in _ELEMENTS:
        return _ELEMENTS[dtype.name]
    return "i8" if dtype.is_float else f"i{dtype.bits}"


def memory_element(dtype: DType) -> str:
    """Return the LLVM type of an element of `dtype` in memory (bool is a byte)."""
    return "i8" if dtype.kind == "bool" else llvm_element(dtype)


def of_dtype(dtype: DType, width: int = 1) -> LLVMType:
    """Return the LLVM type of `width` values of `dtype` in registers."""
    return LLVMType(llvm_element(dtype), width)


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype that arithmetic on `dtype` is done in: f32 for every float narrower than that."""
    return dtypes.f32 if dtype.is_float and dtype.bits < 64 else dtype


def float_literal(value: float, element: str) -> str:
    """Return a float as LLVM writes it exactly; rounds to the element type first."""
    if element == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if element == "bfloat":
        import ml_dtypes
        import numpy as np

        return f"0xR{int(np.array(value, dtype=ml_dtypes.bfloat16).view(np.uint16)):04X}"
    if element == "float":
        value = struct.unpack("<f", _pack_f32(value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _pack_f32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # beyond the largest f32: rounds to infinity
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def literal(value: int | float, dtype: DType) -> str:
    """Return a scalar constant of `dtype` as LLVM writes it."""
    element = llvm_element(dtype)
    if dtype.kind == "bool":
        return "true" if value else "false"
    if element in ("double", "float", "half", "bfloat"):
        return float_literal(float(value), element)
    if dtype.is_float:
        import numpy as np

        return str(int(np.array(value, dtype=dtype.numpy()).view(np.uint8)))
    return str(int(value))
