"""What is known at compile time of index values: divisors, and that they stay inside a dimension."""

from __future__ import annotations

from math import gcd

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp, constant_value
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import DYNAMIC, TensorType


def divisor(known: dict[SSAValue, int], kernel: KernelOp, value: SSAValue) -> int:
    """Return a number that divides an index of TIR-H (0 when the index is 0 itself).

    Args:
        known: results found before, extended as it goes.
        kernel: the kernel, for the divisors of its dimensions.
        value: an index.
    """
    if value not in known:
        known[value] = 1  # what a cycle through a loop sees
        known[value] = _divisor(known, kernel, value)
    return known[value]


def _divisor(known: dict[SSAValue, int], kernel: KernelOp, value: SSAValue) -> int:
    owner = value.owner
    if isinstance(owner, ConstantOp):
        return abs(int(owner.python_value))
    if isinstance(owner, DimOp):
        return _dim_divisor(kernel, owner)
    if isinstance(owner, CastOp):
        return divisor(known, kernel, owner.source)
    if isinstance(owner, ElementwiseOp):
        return _arithmetic_divisor(known, kernel, owner)
    if isinstance(owner, Block):
        return _argument_divisor(known, kernel, owner, value)
    return 1


def _dim_divisor(kernel: KernelOp, op: DimOp) -> int:
    type_ = op.tensor.type
    assert isinstance(type_, TensorType)
    size = type_.shape[op.axis.data]
    arg = list(kernel.body.block.args).index(op.tensor)  # pyright: ignore[reportArgumentType]
    return kernel.infos[arg].dim_div[op.axis.data] if size == DYNAMIC else size


def _arithmetic_divisor(known: dict[SSAValue, int], kernel: KernelOp, op: ElementwiseOp) -> int:
    parts = [divisor(known, kernel, arg) for arg in op.args]
    fn = op.fn.data
    if fn == "mul":
        return parts[0] * parts[1]
    if fn in ("add", "sub", "minimum", "maximum"):
        return gcd(*parts)
    if fn == "mod":
        return gcd(*parts)
    if fn == "select":
        return gcd(parts[1], parts[2])
    return 1


def _argument_divisor(known: dict[SSAValue, int], kernel: KernelOp, block: Block, value: SSAValue) -> int:
    parent = block.parent_op()
    position = list(block.args).index(value)  # pyright: ignore[reportArgumentType]
    if isinstance(parent, GridOp):
        return parent.block_sizes[position]
    if isinstance(parent, scf.ForOp) and position == 0:
        return gcd(divisor(known, kernel, parent.lb), divisor(known, kernel, parent.step))
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


def is_last(condition: SSAValue, loop: scf.ForOp) -> bool:
    """Return whether a condition in a loop is that no iteration follows: `counter + step >= end`."""
    owner = condition.owner
    if not isinstance(owner, ElementwiseOp) or owner.fn.data != "ge" or owner.args[1] is not loop.ub:
        return False
    following = owner.args[0].owner
    counter = loop.body.block.args[0]
    return (
        isinstance(following, ElementwiseOp)
        and following.fn.data == "add"
        and tuple(following.args) == (counter, loop.step)
    )


def _size_name(kernel: KernelOp, tensor: SSAValue, axis: int) -> str | int:
    type_ = tensor.type
    assert isinstance(type_, TensorType)
    if type_.shape[axis] != DYNAMIC:
        return type_.shape[axis]
    arg = list(kernel.body.block.args).index(tensor)  # pyright: ignore[reportArgumentType]
    return kernel.infos[arg].dims[axis]


def _extent_name(kernel: KernelOp, extent: SSAValue) -> str | int | None:
    owner = extent.owner
    if isinstance(owner, DimOp):
        return _size_name(kernel, owner.tensor, owner.axis.data)
    known = constant_value(extent)
    return None if known is None else int(known)


def nonnegative(value: SSAValue) -> bool:
    """Return whether an index of TIR-H is known not to be negative."""
    constant = constant_value(value)
    if constant is not None:
        return constant >= 0
    owner = value.owner
    if isinstance(owner, DimOp):
        return True
    if isinstance(owner, CastOp):
        return nonnegative(owner.source)
    if isinstance(owner, ElementwiseOp):
        kept = owner.fn.data in ("add", "mul", "floordiv", "mod", "minimum")
        return kept and all(nonnegative(arg) for arg in owner.args)
    if not isinstance(owner, Block):
        return False
    parent = owner.parent_op()
    if isinstance(parent, scf.ForOp):
        first = list(owner.args).index(value) == 0  # pyright: ignore[reportArgumentType]
        return first and nonnegative(parent.lb)  # the language's steps are positive
    return isinstance(parent, GridOp)
