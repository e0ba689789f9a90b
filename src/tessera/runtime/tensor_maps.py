"""Tensor maps: the 128-byte descriptors of arrays that a GPU's copy engine reads boxes through.

Source: CUDA Driver API, "Tensor Map Object Management" (`cuTensorMapEncodeTiled`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tessera.entry.tables import MapPlan
from tessera.errors import DeviceError
from tessera.numerics.dtypes import dtype_named
from tessera.runtime import cuda
from tessera.runtime.cuda_entry import MAP_CONSTANTS
from tessera.target.artifact import MOST_MAPPED, Parameter

MAP_BYTES = 128
_TYPES = {"i32": 3, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11}
"""`CUtensorMapDataType`; other types are moved as unsigned integers. `tf32` is f32, rounded to nearest even."""
_UNSIGNED = {1: 0, 2: 1, 4: 2, 8: 4}
"""`CUtensorMapDataType` of unsigned integers, by their bytes."""
_NO_INTERLEAVE, _PROMOTE_128, _FILL_ZEROS = 0, 2, 0
_SWIZZLES = {32: 1, 64: 2, 128: 3}
"""`CUtensorMapSwizzle` by the bytes of a box's row; rows of other sizes are not swizzled."""


def _constants(param: Parameter) -> dict[str, int]:
    """Return the driver's numbers for what no call changes, under their names in `MAP_CONSTANTS`."""
    dtype = dtype_named(param.dtype)
    return {
        "kind": _TYPES.get(dtype.name, _UNSIGNED[dtype.bytes]),
        "interleave": _NO_INTERLEAVE,
        "swizzle": _SWIZZLES.get(param.box[0] * dtype.bytes, 0),
        "promotion": _PROMOTE_128,
        "fill": _FILL_ZEROS,
    }


def plan(param: Parameter) -> MapPlan:
    """Return what the compiled entry needs to describe arrays that are not empty as `encode` does."""
    found = _constants(param)
    constants = tuple(found[name] for name in MAP_CONSTANTS)
    return MapPlan(constants, dtype_named(param.dtype).bytes, param.box, param.order)


def encode(
    param: Parameter,
    pointer: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    index: int = 0,
    written: bool = False,
) -> bytes:
    """Return the descriptor of an array for copies of `param.box`, swizzled like `panels` buffers, zeros outside.

    Rows of 128 bytes, 64 or 32 have the swizzle of that width, shorter ones none.

    Args:
        param: which array, the order of its dimensions and the box.
        pointer: address, a multiple of 16.
        sizes: size of each dimension; an empty array is described as one element, a zero: copies of it may start.
        strides: stride of each dimension in elements, positive multiples of 16 bytes but for the contiguous one.
        index: which GPU.
        written: whether the kernel stores to the array.

    Raises:
        DeviceError: `tensor-map` when the driver refuses the description.
    """
    dtype = dtype_named(param.dtype)
    dims = [sizes[axis] for axis in param.order]
    steps = [strides[axis] * dtype.bytes for axis in param.order[1:]]
    if 0 in sizes:
        pointer, dims, steps = cuda.zero_page(index, written), [1] * len(dims), [16] * len(steps)
    if any(step < 0 and size > 1 for step, size in zip(steps, dims[1:], strict=True)):
        raise _refused(pointer, sizes, strides, "strides run backwards")
    if max(dims) > MOST_MAPPED:
        raise _refused(pointer, sizes, strides, f"sizes are {MOST_MAPPED} at most")
    status, made = _by_driver(param, pointer, dims, [_usable(*one) for one in zip(steps, dims[1:], strict=True)])
    if int(status) != 0:
        raise _refused(pointer, sizes, strides, status.name)
    return ctypes.string_at(int(made.getPtr()), MAP_BYTES)


def _usable(step: int, size: int) -> int:
    """Return a stride in bytes; that of one element is never used, but must be a multiple of 16 all the same."""
    return 16 * -(-max(step, 1) // 16) if size == 1 else step


def _by_driver(param: Parameter, pointer: int, dims: list[int], steps: list[int]) -> Any:
    """Return the driver's status and the descriptor that it makes."""
    fixed, cu = _constants(param), cuda.driver()
    return cu.cuTensorMapEncodeTiled(
        cu.CUtensorMapDataType(fixed["kind"]),
        len(dims),
        pointer,
        [cu.cuuint64_t(size) for size in dims],
        [cu.cuuint64_t(step) for step in steps],
        [cu.cuuint32_t(size) for size in param.box],
        [cu.cuuint32_t(1)] * len(dims),
        cu.CUtensorMapInterleave(fixed["interleave"]),
        cu.CUtensorMapSwizzle(fixed["swizzle"]),
        cu.CUtensorMapL2promotion(fixed["promotion"]),
        cu.CUtensorMapFloatOOBfill(fixed["fill"]),
    )


def _refused(pointer: int, sizes: Sequence[int], strides: Sequence[int], reason: str) -> DeviceError:
    return DeviceError(
        f"no tensor map describes an array of sizes {list(sizes)} and strides {list(strides)} at {pointer:#x}: "
        f"{reason}",
        code="tensor-map",
        help="pass a 16-byte aligned array whose strides are positive multiples of 16 bytes",
    )
