"""What is known at compile time of index values: divisors, and that they stay inside a dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from xdsl.dialects import scf
from xdsl.ir import Block, OpResult, SSAValue

from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp, constant_value
from tessera.ir.tile.memory import Slice
from tessera.ir.tile.roles import MOST_GROUPS, RoleGroupOp
from tessera.ir.tile.stream import ShareOp
from tessera.ir.tile.structure import ArgInfo, DimOp, GridOp, KernelOp, MisalignmentOp
from tessera.ir.tile.types import DYNAMIC, TensorType, element_of
from tessera.ir.types import dtype_of, index
from tessera.target.divisors import WIDEST

Range = tuple[int, int]

MOST_SIZE = 1 << 57
"""No dimension is larger: addresses have 57 bits at most."""

MOST_INDEX = 1 << 61
"""Indices up to this may be added to sizes, and to one another, without wrapping around."""

MOST_STEPS = (1 << 32) - 1
"""Steps of a tile that programs share are counted by 32 bits."""

DEPTH = 24
"""Steps of arithmetic that ranges are followed through."""


def nearest(kernel: KernelOp, op: Slice) -> list[int]:
    """Return the axes of a box's tile, those first whose elements lie nearest to one another as far as is known."""
    info, axes = kernel.info_of(op.tensor), list(reversed(range(len(op.kept))))
    if info.order:
        axes.sort(key=lambda axis: -info.order.index(op.kept[axis]))
    return sorted(axes, key=lambda axis: info.strides[op.kept[axis]] != 1)


def divisor(known: dict[SSAValue, int], kernel: KernelOp, value: SSAValue) -> int:
    """Return a number that divides an index of TIR-H (0 when the index is 0 itself).

    Args:
        known: results found before, extended as it goes.
        kernel: the kernel, for the divisors of its dimensions.
        value: an index.
    """
    work = [value]
    while work:
        missing = [part for part in _parts(work[-1]) if part not in known]
        if work[-1] in known or not missing:
            part = work.pop()
            known[part] = known[part] if part in known else _divisor(known, kernel, part)
        else:
            work += missing
    return known[value]


def _parts(value: SSAValue) -> Sequence[SSAValue]:
    """Return the values that the divisor of a value depends on."""
    owner = value.owner
    if isinstance(owner, CastOp):
        return (owner.source,)
    if isinstance(owner, ElementwiseOp):
        return owner.args
    parent = owner.parent_op() if isinstance(owner, Block) else None
    if isinstance(owner, Block) and isinstance(parent, scf.ForOp) and owner.args[0] is value:
        return (parent.lb, parent.step)
    return ()


def _divisor(known: dict[SSAValue, int], kernel: KernelOp, value: SSAValue) -> int:
    owner = value.owner
    if isinstance(owner, ConstantOp):
        return abs(int(owner.python_value))
    if isinstance(owner, DimOp):
        return _dim_divisor(kernel, owner)
    if isinstance(owner, CastOp):
        return _of_any_size(known[owner.source])
    if isinstance(owner, ElementwiseOp):
        return _arithmetic_divisor(known, owner)
    if isinstance(owner, Block):
        return _argument_divisor(known, owner, value)
    return 1


def _dim_divisor(kernel: KernelOp, op: DimOp) -> int:
    type_ = op.tensor.type
    assert isinstance(type_, TensorType)
    size = type_.shape[op.axis.data]
    arg = list(kernel.body.block.args).index(op.tensor)  # pyright: ignore[reportArgumentType]
    return kernel.infos[arg].dim_div[op.axis.data] if size == DYNAMIC else size


def _of_any_size(number: int) -> int:
    """Return what divides a number that is divided by this one also after it has wrapped around: a power of two."""
    return number & -number


def _arithmetic_divisor(known: dict[SSAValue, int], op: ElementwiseOp) -> int:
    parts = [known[arg] for arg in op.args]
    fn = op.fn.data
    if fn in ("minimum", "maximum", "mod"):
        return gcd(*parts)
    if fn == "select":
        return gcd(parts[1], parts[2])
    found = parts[0] * parts[1] if fn == "mul" else gcd(*parts) if fn in ("add", "sub") else 1
    low, high = value_range(op.result)
    return found if -MOST_INDEX <= low and high <= MOST_INDEX else _of_any_size(found)


def _argument_divisor(known: dict[SSAValue, int], block: Block, value: SSAValue) -> int:
    parent = block.parent_op()
    position = list(block.args).index(value)  # pyright: ignore[reportArgumentType]
    if isinstance(parent, KernelOp):
        return parent.infos[position].multiple
    if isinstance(parent, GridOp):
        return parent.block_sizes[position]
    if isinstance(parent, scf.ForOp) and position == 0:
        return gcd(known[parent.lb], known[parent.step])
    return 1


def stays_inside(kernel: KernelOp, offset: SSAValue, tensor: SSAValue, axis: int) -> bool:
    """Return whether an offset is known to lie in `[0, size)` of a tensor's dimension.

    True for the offset of a grid or of a loop from a constant that ends at that dimension (or one of its name).
    """
    owner = offset.owner
    size = _size_name(kernel, tensor, axis)
    constant = constant_value(offset)
    if constant is not None:
        type_ = tensor.type
        assert isinstance(type_, TensorType)
        return 0 <= constant < type_.shape[axis]
    if not isinstance(owner, Block):
        return False
    parent = owner.parent_op()
    position = list(owner.args).index(offset)  # pyright: ignore[reportArgumentType]
    if isinstance(parent, GridOp):
        return _extent_name(kernel, parent.extents[position]) == size
    if isinstance(parent, scf.ForOp) and position == 0:
        low = constant_value(parent.lb)
        return low is not None and low >= 0 and _extent_name(kernel, parent.ub) == size
    return False


def ends_by(kernel: KernelOp, end: SSAValue, tensor: SSAValue, axis: int) -> bool:
    """Return whether an index is known to be no more than the size of a tensor's dimension (or one of its name)."""
    owner = end.owner
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "minimum":
        return any(ends_by(kernel, each, tensor, axis) for each in owner.args)
    name, size = _extent_name(kernel, end), _size_name(kernel, tensor, axis)
    return name == size or (isinstance(name, int) and isinstance(size, int) and name <= size)


def is_size_of(kernel: KernelOp, value: SSAValue, tensor: SSAValue, axis: int) -> bool:
    """Return whether an index is known to be the size of a tensor's dimension (or one of its name)."""
    return _extent_name(kernel, value) == _size_name(kernel, tensor, axis)


def same_size(kernel: KernelOp, one: tuple[SSAValue, int], other: tuple[SSAValue, int]) -> bool:
    """Return whether dimensions of two tensors, each with its axis, are known to have one size."""
    return _size_name(kernel, *one) == _size_name(kernel, *other)


def _size_name(kernel: KernelOp, tensor: SSAValue, axis: int) -> str | int:
    type_ = tensor.type
    assert isinstance(type_, TensorType)
    if type_.shape[axis] != DYNAMIC:
        return type_.shape[axis]
    return kernel.info_of(tensor).dims[axis]


def _extent_name(kernel: KernelOp, extent: SSAValue) -> str | int | None:
    owner = extent.owner
    if isinstance(owner, DimOp):
        return _size_name(kernel, owner.tensor, owner.axis.data)
    known = constant_value(extent)
    return None if known is None else int(known)


def lies_inside(offset: SSAValue, length: int, size: int) -> bool:
    """Return whether a box is known to lie in `[0, size)`."""
    low, high = value_range(offset)
    return low >= 0 and high + length <= size


def nonnegative(value: SSAValue) -> bool:
    """Return whether an index of TIR-H is known not to be negative."""
    return value_range(value)[0] >= 0


def near(value: SSAValue) -> bool:
    """Return whether an index of TIR-H is known to be so small that sums with sizes do not wrap around."""
    low, high = value_range(value)
    return -MOST_INDEX <= low and high <= MOST_INDEX


def value_range(value: SSAValue, known: dict[SSAValue, Range] | None = None) -> Range:
    """Return the smallest and the largest integer that a scalar of TIR-H can be; `known` are ranges to start from."""
    return _range(value, {} if known is None else known, DEPTH)


def _range(value: SSAValue, known: dict[SSAValue, Range], depth: int) -> Range:
    if value not in known:
        low, high = whole = known[value] = _whole(value)  # what a cycle through a loop sees
        found = _range_of(value, known, depth - 1) if depth else whole
        known[value] = found if low <= found[0] and found[1] <= high else whole  # it may have wrapped around
    return known[value]


def _whole(value: SSAValue) -> Range:
    """Return what a type can hold."""
    element = element_of(value.type)
    if element == index:
        return -(1 << 63), (1 << 63) - 1
    dtype = dtype_of(element)
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return (0, 1) if dtype.kind == "bool" else (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)


def _range_of(value: SSAValue, known: dict[SSAValue, Range], depth: int) -> Range:
    owner, whole = value.owner, _whole(value)
    if isinstance(owner, ConstantOp) and isinstance(owner.python_value, int):
        return owner.python_value, owner.python_value
    if isinstance(owner, DimOp):
        return 0, MOST_SIZE
    if isinstance(owner, MisalignmentOp):
        return 0, WIDEST - 1
    if isinstance(owner, ShareOp) and element_of(value.type) == index:
        return 0, MOST_STEPS
    if isinstance(owner, RoleGroupOp):
        return 0, MOST_GROUPS - 1
    if isinstance(owner, CastOp):
        source = element_of(owner.source.type)
        return whole if source != index and dtype_of(source).is_float else _range(owner.source, known, depth)
    if isinstance(owner, ElementwiseOp) and owner.fn.data in _RANGES and _is_integer(owner.args[-1]):
        first, second = (_range(arg, known, depth) for arg in owner.args[-2:])  # without a select's condition
        return _RANGES[owner.fn.data](first, second)
    if isinstance(value, OpResult) and isinstance(owner, scf.ForOp):
        return _carried_range(owner, value.index, known, depth)
    return _argument_range(owner, value, known, depth) if isinstance(owner, Block) else whole


def _is_integer(value: SSAValue) -> bool:
    element = element_of(value.type)
    return element == index or not dtype_of(element).is_float


def _argument_range(block: Block, value: SSAValue, known: dict[SSAValue, Range], depth: int) -> Range:
    """Return the range of a loop's or grid's counter, or of what a loop carries."""
    parent = block.parent_op()
    if isinstance(parent, GridOp):
        position = list(block.args).index(value)  # pyright: ignore[reportArgumentType]
        return 0, max(_range(parent.extents[position], known, depth)[1], 0)
    if isinstance(parent, scf.ForOp) and block.args[0] is value:
        (low, highest), (_, end) = _range(parent.lb, known, depth), _range(parent.ub, known, depth)
        step = constant_value(parent.step)
        if step is not None and low == highest:
            end -= (end - 1 - low) % int(step)
        return low, max(end - 1, low)  # the language's steps are positive
    if isinstance(parent, scf.ForOp):
        return _carried_range(parent, list(block.args).index(value) - 1, known, depth)  # pyright: ignore[reportArgumentType]
    return _assumed(parent.info_of(value), _whole(value)) if isinstance(parent, KernelOp) else _whole(value)


def _assumed(info: ArgInfo, whole: Range) -> Range:
    low, high = whole
    return low if info.low is None else max(info.low, low), high if info.high is None else min(info.high, high)


def _carried_range(loop: scf.ForOp, number: int, known: dict[SSAValue, Range], depth: int) -> Range:
    end = loop.body.block.last_op
    assert end is not None
    parts = [_range(value, known, depth) for value in (loop.iter_args[number], end.operands[number])]
    return min(low for low, _ in parts), max(high for _, high in parts)


def _product(a: Range, b: Range) -> Range:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _quotient(a: Range, b: Range) -> Range:
    if b[0] <= 0:
        return FAR
    ends = [x // y for x in a for y in b]
    return min(ends), max(ends)


def _remainder(a: Range, b: Range) -> Range:
    return (0, b[1] - 1) if b[0] > 0 else FAR


FAR = (-(1 << 64), 1 << 64)
"""More than any type holds: nothing is known."""

_RANGES: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "floordiv": _quotient,
    "mod": _remainder,
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "select": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
}
