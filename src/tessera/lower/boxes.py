"""Boxes of tensors in machine terms: offsets, strides, bounds, and how wide an access may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value
from tessera.ir.tile.memory import LoadOp, Slice, StoreOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import DYNAMIC, element_of
from tessera.ir.types import dtype_of
from tessera.lower.facts import lies_inside, near, nonnegative, stays_inside
from tessera.lower.launch import Parameters
from tessera.lower.scalars import Scalars
from tessera.target.divisors import WIDEST

WORD_BYTES, CUT_BYTES = 4, 8
"""Largest element of an access that the end of a tensor may cut, and the bytes that smaller accesses which it never
cuts have to move to be as good."""


@dataclass(frozen=True)
class BoxOperands:
    """The operands and attributes of a TIR-T memory op.

    Args:
        pointer: base address.
        offsets: offset of the box in each tensor dimension.
        strides: stride of each tensor dimension, in elements.
        sizes: bound of each tensor dimension.
        axes: the tensor dimension of each tile axis.
        checked: dimensions whose bounds must be tested.
        vector: elements one access may move.
        unit_axis: the tile axis with stride 1, if any.
        seen: whether the launch looks if the box is aligned for such an access.
        cut: whether the tensor may end within such an access.
        behind: how many elements the box begins behind the first of such accesses, which are those around it.
        early: how many elements before the tensor the box begins at most, where it reaches to its end.
    """

    pointer: SSAValue
    offsets: list[SSAValue]
    strides: list[SSAValue]
    sizes: list[SSAValue]
    axes: tuple[int, ...]
    checked: tuple[int, ...]
    vector: int
    unit_axis: int | None
    seen: bool
    cut: bool
    behind: int = 0
    early: int = 0


def box_operands(
    params: Parameters,
    scalars: Scalars,
    op: Slice,
    scalar: Callable[[SSAValue], SSAValue],
    divisor: Callable[[SSAValue], int],
    padded: Sequence[int],
) -> BoxOperands:
    """Describe the box of a slice.

    Args:
        params: the function's parameters.
        scalars: builds index arithmetic.
        op: a load, store or copy of a bounded slice.
        scalar: what a TIR-H index has become.
        divisor: a number that divides a TIR-H index.
        padded: size of each tile axis as the fragment or buffer has it (at least the slice's own).
    """
    arg = params.position(op.tensor)
    rank, kept = len(op.size_list), op.kept
    physical = dict(zip(kept, padded, strict=True))
    unit = next((i for i, axis in enumerate(kept) if params.known_stride(arg, axis) == 1), None)
    early = _early(op) if unit is not None else 0
    before = kept[unit] if unit is not None and early else None
    offsets = [scalar(offset) for offset in op.offsets]
    checked = _checked(params, op, divisor, physical)
    sizes: list[SSAValue] = []
    for axis in range(rank):
        known = params.known_size(arg, axis)
        size = scalars.constant(known) if known is not None else params.size(arg, axis) if axis in checked else None
        if size is None:
            size = scalars.constant(0)
        if axis in checked and axis != before:
            offsets[axis] = kept_near(scalars, op.offsets[axis], offsets[axis], op.size_list[axis], size)
        if physical.get(axis, 1) != op.size_list[axis] and axis != before:
            end = scalars.add(offsets[axis], op.size_list[axis])
            if not nonnegative(op.offsets[axis]):
                # Bounds are compared unsigned: that of a box that ends before the tensor begins is not a large number.
                end = scalars.binary("maximum", end, 0)
            size = scalars.binary("minimum", size, end)
        sizes.append(size)
    strides = [_stride(params, scalars, arg, axis) for axis in range(rank)]
    vector, cut = _vector(params, op, arg, kept[unit], divisor, checked) if unit is not None else (1, False)
    seen = isinstance(op, Operation) and decisions.ALIGNED.of(op) == decisions.LOOKED_AT and vector > 1
    pointer = params.pointer(arg)
    return BoxOperands(pointer, offsets, strides, sizes, kept, checked, vector, unit, seen, cut, early=early)


def _early(op: Slice) -> int:
    """Return how many elements before its tensor a box of whole rows begins at most."""
    return (decisions.EARLY.of(op) or 0) if isinstance(op, Operation) else 0


def around(
    params: Parameters,
    scalars: Scalars,
    op: LoadOp,
    box: BoxOperands,
    scalar: Callable[[SSAValue], SSAValue],
    divisor: Callable[[SSAValue], int],
    padded: Sequence[int],
) -> BoxOperands:
    """Return a box whose accesses are those around it where it begins a known distance behind an aligned place.

    Stencils load such boxes: `x[t - 3 : t + 253]`, where rows begin and end at multiples of 16 bytes. Other boxes, and
    those that accesses from their beginning on load as well, stay as they are.

    Args:
        params: the kernel's arguments.
        scalars: builds index arithmetic.
        op: a load.
        box: its box.
        scalar: what a TIR-H index has become.
        divisor: a number that divides a TIR-H index.
        padded: size of each tile axis as the fragment has it.
    """
    if box.unit_axis is None or op.mask is not None or op.fill is not None or decisions.ALIGNED.on(op):
        return box
    unit, arg = op.kept[box.unit_axis], params.position(op.tensor)
    length, known = op.size_list[unit], params.known_size(arg, unit)
    if padded[box.unit_axis] != length:
        return box
    root, apart = _apart(op.offsets[unit])
    count = gcd(
        aligned_elements(params, arg, unit, len(op.size_list), dtype_of(element_of(op.tensor.type)).bytes),
        divisor(root) if root is not None else 0,
        length,
        params.infos[arg].dim_div[unit] if known is None else known,
    )
    behind = apart % count
    if count <= 2 * gcd(count, behind):
        return box
    offsets = list(box.offsets)
    if root is not None and unit in box.checked and not near(op.offsets[unit]):
        # What is moved towards the tensor, by multiples of an access, still lies outside of it as a whole.
        margin = -(-abs(apart) // count) * count
        least = scalars.binary("maximum", scalar(root), -length - margin)
        most = scalars.add(box.sizes[unit], margin)
        offsets[unit] = scalars.add(scalars.binary("minimum", least, most), apart)
    return replace(box, offsets=offsets, vector=count, cut=False, behind=behind)


def _apart(offset: SSAValue) -> tuple[SSAValue | None, int]:
    """Return what a constant is added to, None where there is nothing else, and the constant."""
    whole, owner = constant_value(offset), offset.owner
    if whole is not None:
        return None, int(whole)
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "add":
        constant = constant_value(owner.args[1])
        if constant is not None:
            return owner.args[0], int(constant)
    return offset, 0


def access_elements(params: Parameters, op: Slice, divisor: Callable[[SSAValue], int], padded: Sequence[int]) -> int:
    """Return how many neighbouring elements of a slice one access moves; 1 where none are neighbours.

    Args:
        params: the kernel's arguments.
        op: a load or store of a bounded slice.
        divisor: a number that divides a TIR-H index.
        padded: size of each tile axis as the fragment has it.
    """
    arg = params.position(op.tensor)
    unit = next((axis for axis in op.kept if params.known_stride(arg, axis) == 1), None)
    if unit is None:
        return 1
    checked = _checked(params, op, divisor, dict(zip(op.kept, padded, strict=True)))
    return _vector(params, op, arg, unit, divisor, checked)[0]


def _checked(
    params: Parameters, op: Slice, divisor: Callable[[SSAValue], int], physical: Mapping[int, int]
) -> tuple[int, ...]:
    """Return the axes along which a box, or what its tile is padded to, may reach past the tensor."""
    arg = params.position(op.tensor)
    inside = (decisions.INSIDE.of(op) or 0) if isinstance(op, Operation) else 0
    # What the tiles of boxes along chunks are padded to has bounds of its own (`tile`).
    along = isinstance(op, LoadOp | StoreOp) and decisions.ALIGNED.on(op)
    return tuple(
        axis
        for axis in range(len(op.size_list))
        if not (inside >> axis & 1 and (along or physical.get(axis, 1) == op.size_list[axis]))
        and not _inside(params.kernel, params, op, arg, axis, physical.get(axis, 1), divisor)
    )


def stays_in_tensor(kernel: KernelOp, op: Slice, axis: int, divisor: Callable[[SSAValue], int]) -> bool:
    """Return whether a box of a CPU's tile is known not to leave its tensor along an axis.

    Args:
        kernel: the kernel.
        op: a load or store of a bounded slice.
        axis: a dimension of the tensor.
        divisor: a number that divides a TIR-H index.
    """
    if not stays_inside(kernel, op.offsets[axis], op.tensor, axis):
        return False
    size = op.tensor.type.shape[axis]
    divides = kernel.info_of(op.tensor).dim_div[axis] if size == DYNAMIC else size
    length = op.size_list[axis]
    return length == 1 or (divides % length == 0 and divisor(op.offsets[axis]) % length == 0)


def kept_near(scalars: Scalars, offset: SSAValue, lowered: SSAValue, length: int, bound: SSAValue) -> SSAValue:
    """Return where a box starts, moved towards its tensor where sums with sizes could wrap around.

    What is moved lies outside as a whole, and still does.

    Args:
        scalars: builds index arithmetic.
        offset: where the box starts, in TIR-H.
        lowered: what that has become.
        length: size of the box.
        bound: size of the tensor.
    """
    if near(offset):
        return lowered
    return scalars.binary("minimum", scalars.binary("maximum", lowered, -length), bound)


def _stride(params: Parameters, scalars: Scalars, arg: int, axis: int) -> SSAValue:
    known = params.known_stride(arg, axis)
    return params.stride(arg, axis) if known is None else scalars.constant(known)


def _inside(
    kernel: KernelOp,
    params: Parameters,
    op: Slice,
    arg: int,
    axis: int,
    physical: int,
    divisor: Callable[[SSAValue], int],
) -> bool:
    """Return whether the box cannot reach past the tensor along `axis`."""
    if physical != op.size_list[axis]:
        return False
    size = params.known_size(arg, axis)
    if size is not None and lies_inside(op.offsets[axis], physical, size):
        return True
    if not stays_inside(kernel, op.offsets[axis], op.tensor, axis):
        return False
    size_divisor = params.infos[arg].dim_div[axis] if size is None else size
    return size_divisor % physical == 0 and divisor(op.offsets[axis]) % physical == 0


def aligned_elements(params: Parameters, arg: int, unit: int, rank: int, element_bytes: int) -> int:
    """Return how many elements along dimension `unit` one access may move, from the first of each row on."""
    info = params.infos[arg]
    limit = max(gcd(WIDEST, info.align) // element_bytes, 1)
    for axis in range(rank):
        if axis != unit:
            known = params.known_stride(arg, axis)
            limit = gcd(limit, info.stride_div[axis] if known is None else known)
    return limit


def _vector(
    params: Parameters,
    op: Slice,
    arg: int,
    unit: int,
    divisor: Callable[[SSAValue], int],
    checked: Sequence[int],
) -> tuple[int, bool]:
    """Return how many elements along dimension `unit` one access may move, and whether the tensor may end within it."""
    info, element_bytes = params.infos[arg], dtype_of(element_of(op.tensor.type)).bytes
    looked_at = isinstance(op, Operation) and decisions.ALIGNED.on(op)
    if looked_at:
        limit = WIDEST // element_bytes
    else:
        limit = aligned_elements(params, arg, unit, len(op.size_list), element_bytes)
        limit = gcd(limit, divisor(op.offsets[unit]))
    if _early(op):
        return max(limit, 1), False
    if unit not in checked:
        return max(gcd(limit, op.size_list[unit]) if looked_at else limit, 1), False
    known = params.known_size(arg, unit)
    limit = max(gcd(limit, op.size_list[unit]), 1)
    whole = max(gcd(limit, info.dim_div[unit] if known is None else known), 1)
    if looked_at or not _may_cut(op, limit * element_bytes, whole * element_bytes):
        return whole, False
    return limit, True


def _may_cut(op: Slice, bytes_: int, whole_bytes: int) -> bool:
    """Return whether accesses of so many bytes, in which the tensor may end, are worth it beside smaller whole ones."""
    small = dtype_of(element_of(op.tensor.type)).bytes <= WORD_BYTES
    return isinstance(op, LoadOp | StoreOp) and op.mask is None and small and whole_bytes < min(bytes_, CUT_BYTES)
