"""What the copy engine can move: the conditions on a tensor and a box that a tensor map describes (TMA).

Source: CUDA Driver API, "Tensor Map Object Management" (`cuTensorMapEncodeTiled`).
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.ir.notes import Unfit
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import shape_of
from tessera.lower.facts import divisor
from tessera.numerics.dtypes import DType
from tessera.schedule.hopper.limits import why_no_box
from tessera.schedule.products import ALIGN_BYTES, why_not_fetched
from tessera.target.artifact import MOST_MAPPED


class Misplaced(Unfit):
    """The copy engine could fetch a tensor if it lay elsewhere: from a multiple of 16 bytes, or in padded rows."""


MOST_DIMENSIONS = 5
"""Most dimensions of a tensor that the copy engine reads or writes."""


def check_tensor(
    kernel: KernelOp,
    tensor: SSAValue,
    offsets: Sequence[SSAValue],
    kept: Sequence[int],
    sizes: Sequence[int],
    dtype: DType,
    *,
    plain: bool = False,
) -> int:
    """Return the contiguous dimension of a tensor whose boxes the copy engine can move.

    Args:
        kernel: the kernel whose argument the tensor is.
        tensor: the tensor.
        offsets: where the box begins, a place per tensor dimension.
        kept: the tensor dimensions that the tile has.
        sizes: the box, a size per tensor dimension.
        dtype: its elements.
        plain: whether rows of 16 bytes are accepted, which matrix instructions do not read.

    Raises:
        Misplaced: the address, or a stride, is not known to be a multiple of 16 bytes.
        Unfit: strides or sizes do not allow it: 16-byte address and strides, whole panels along the
            contiguous dimension, from multiples of 16 bytes on, sizes that are powers of two, boxes of at most 256,
            coordinates of 32 bits.
    """
    info = kernel.info_of(tensor)
    if (reason := why_not_fetched(info.name, 1 in info.strides, info.align % ALIGN_BYTES == 0)) is not None:
        raise Misplaced(reason) if 1 in info.strides else Unfit(reason)
    contiguous = info.strides.index(1)
    if contiguous not in kept:
        raise Unfit(f"the tile of {info.name} does not run along its contiguous dimension")
    if divisor({}, kernel, offsets[contiguous]) * dtype.bytes % ALIGN_BYTES:
        raise Unfit(f"the tile of {info.name} is not known to begin at a multiple of {ALIGN_BYTES} bytes of a row")
    if max(shape_of(tensor.type)) > MOST_MAPPED:
        raise Unfit(f"{info.name} has more than {MOST_MAPPED} elements in a dimension")
    if 0 in info.strides:
        raise Unfit(f"{info.name} repeats elements by a stride of 0")
    for axis in range(len(info.strides)):
        if axis != contiguous and info.stride_divisor(axis) * dtype.bytes % ALIGN_BYTES:
            raise Misplaced(f"stride {axis} of {info.name} is not known to be a multiple of 16 bytes")
    if len(info.strides) > MOST_DIMENSIONS:
        raise Unfit(f"{info.name} has more than {MOST_DIMENSIONS} dimensions")
    if (reason := why_no_box(info.name, sizes, sizes[contiguous], dtype, plain)) is not None:
        raise Unfit(reason)
    return contiguous
