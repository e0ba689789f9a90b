"""Tensor maps: the 128-byte descriptors of arrays that a GPU's copy engine reads boxes through.

Source: CUDA Driver API, "Tensor Map Object Management" (`cuTensorMapEncodeTiled`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tessera.errors import DeviceError
from tessera.numerics.dtypes import dtype_named
from tessera.runtime import cuda
from tessera.target.artifact import Parameter

MAP_BYTES = 128
_TYPES = {
    "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32", "i64": "INT64",
    "u16": "UINT16", "u32": "UINT32", "u64": "UINT64",
}  # fmt: skip


def encode(param: Parameter, pointer: int, sizes: Sequence[int], strides: Sequence[int]) -> bytes:
    """Return the descriptor of an array for copies of `param.box`, swizzled like `panels` buffers, zeros outside.

    Rows of 128 bytes, 64 or 32 have the swizzle of that width, shorter ones none.

    Args:
        param: which array, the order of its dimensions and the box.
        pointer: address, a multiple of 16.
        sizes: size of each dimension; an empty array is described as one element, as no copy from it starts.
        strides: stride of each dimension in elements, multiples of 16 bytes but for the contiguous one.

    Raises:
        DeviceError: `tensor-map` when the driver refuses the description.
    """
    cu = cuda.driver()
    dtype = dtype_named(param.dtype)
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES.get(dtype.name, 'UINT8')}")
    dims = [max(sizes[axis], 1) for axis in param.order]
    steps = [strides[axis] * dtype.bytes for axis in param.order[1:]]
    # The stride of a dimension of one element is never used, but must be a multiple of 16 all the same.
    steps = [
        step if step % 16 == 0 and step > 0 else 16 * -(-max(step, 1) // 16) if size == 1 else step
        for step, size in zip(steps, dims[1:], strict=True)
    ]
    swizzles = cu.CUtensorMapSwizzle
    row_bytes = param.box[0] * dtype.bytes
    named = (
        f"CU_TENSOR_MAP_SWIZZLE_{row_bytes}B" if row_bytes in (32, 64, 128) else "CU_TENSOR_MAP_SWIZZLE_NONE"
    )
    status, made = cu.cuTensorMapEncodeTiled(
        kind,
        len(dims),
        pointer or MAP_BYTES,
        [cu.cuuint64_t(size) for size in dims],
        [cu.cuuint64_t(step) for step in steps],
        [cu.cuuint32_t(size) for size in param.box],
        [cu.cuuint32_t(1)] * len(dims),
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(swizzles, named),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status) != 0:
        raise DeviceError(
            f"the driver cannot describe an array of sizes {list(sizes)} and strides {list(strides)} "
            f"at {pointer:#x}: {status.name}",
            code="tensor-map",
            help="pass a 16-byte aligned array whose strides are multiples of 16 bytes",
        )
    return ctypes.string_at(int(made.getPtr()), MAP_BYTES)
