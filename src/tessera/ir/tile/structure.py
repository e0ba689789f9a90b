"""Kernel structure: the kernel itself, its grid loops and the sizes of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from tessera.ir.effects import PURE
from tessera.ir.tile.types import DYNAMIC, TensorType
from tessera.ir.types import i1, index, is_scalar


@dataclass(frozen=True, slots=True)
class ArgInfo:
    """What is known of one kernel argument when it is compiled.

    Args:
        name: the parameter's name in the source.
        dims: the text of each dimension (`"M"`, `"B*H"`, `"128"`); empty for a scalar.
        align: known alignment of the base address, in bytes.
        strides: stride of each dimension in elements, `DYNAMIC` when known only at run time.
        stride_div: a number that divides each stride, in elements.
        dim_div: a number that divides each size.
        written: whether the kernel stores to it.
    """

    name: str
    dims: tuple[str, ...] = ()
    align: int = 1
    strides: tuple[int, ...] = ()
    stride_div: tuple[int, ...] = ()
    dim_div: tuple[int, ...] = ()
    written: bool = False

    def to_attr(self) -> DictionaryAttr:
        """Return the record as an IR attribute."""

        def ints(values: Sequence[int]) -> ArrayAttr[IntAttr]:
            return ArrayAttr([IntAttr(v) for v in values])

        return DictionaryAttr(
            {
                "name": StringAttr(self.name),
                "dims": ArrayAttr([StringAttr(d) for d in self.dims]),
                "align": IntAttr(self.align),
                "strides": ints(self.strides),
                "stride_div": ints(self.stride_div),
                "dim_div": ints(self.dim_div),
                "written": IntegerAttr(int(self.written), i1),
            }
        )

    @classmethod
    def from_attr(cls, attr: DictionaryAttr) -> ArgInfo:
        """Read the record back from an IR attribute."""
        data: dict[str, Any] = dict(attr.data)

        def ints(key: str) -> tuple[int, ...]:
            return tuple(v.data for v in data[key].data)

        return cls(
            data["name"].data,
            tuple(d.data for d in data["dims"].data),
            data["align"].data,
            ints("strides"),
            ints("stride_div"),
            ints("dim_div"),
            bool(data["written"].value.data),
        )

    def with_written(self) -> ArgInfo:
        """Return the record marked as stored to."""
        return replace(self, written=True)


@irdl_op_definition
class KernelOp(IRDLOperation):
    """A kernel: block arguments are its tensors and scalars, in the order of the source."""

    name = "tessera_tile.kernel"
    sym_name = prop_def(StringAttr)
    arg_info = prop_def(ArrayAttr[DictionaryAttr])
    profile = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), IsolatedFromAbove())

    def __init__(self, name: str, infos: Sequence[ArgInfo], types: Sequence[Attribute], profile: str = "fast"):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "arg_info": ArrayAttr([info.to_attr() for info in infos]),
                "profile": StringAttr(profile),
            },
            regions=[Region(Block(arg_types=types))],
        )

    @property
    def infos(self) -> tuple[ArgInfo, ...]:
        """What is known of each argument."""
        return tuple(ArgInfo.from_attr(attr) for attr in self.arg_info.data)

    def verify_(self) -> None:
        """Check that there is a record for every argument and that it fits its type."""
        args = self.body.block.args
        if len(args) != len(self.arg_info.data):
            raise VerifyException(f"{len(args)} arguments but {len(self.arg_info.data)} records")
        for arg, info in zip(args, self.infos, strict=True):
            if isinstance(arg.type, TensorType):
                for part in (info.dims, info.strides, info.stride_div, info.dim_div):
                    if len(part) != arg.type.rank:
                        raise VerifyException(f"argument {info.name}: record of rank {len(part)}, not {arg.type.rank}")
            elif not is_scalar(arg.type):
                raise VerifyException(f"argument {info.name} is neither tensor nor scalar: {arg.type}")


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends a kernel and names the tensors it returns to the caller."""

    name = "tessera_tile.return"
    tensors = var_operand_def(TensorType)
    traits = traits_def(IsTerminator(), HasParent(KernelOp))
    assembly_format = "($tensors^ `:` type($tensors))? attr-dict"

    def __init__(self, tensors: Sequence[SSAValue] = ()):
        super().__init__(operands=[list(tensors)])


@irdl_op_definition
class GridOp(IRDLOperation):
    """The parallel loop over tiles: one program per point, which sees the offset of its tile in each dimension.

    Two grids in one kernel are two launches, in order.
    """

    name = "tessera_tile.grid"
    extents = var_operand_def(index)
    blocks = prop_def(ArrayAttr[IntAttr])
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def __init__(self, extents: Sequence[SSAValue | Operation], blocks: Sequence[int]):
        super().__init__(
            operands=[list(extents)],
            properties={"blocks": ArrayAttr([IntAttr(b) for b in blocks])},
            regions=[Region(Block(arg_types=[index] * len(blocks)))],
        )

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The tile size of each dimension."""
        return tuple(block.data for block in self.blocks.data)

    def verify_(self) -> None:
        """Check that there is one extent, block size and offset per dimension."""
        if not len(self.extents) == len(self.block_sizes) == len(self.body.block.args):
            raise VerifyException("a grid has one extent, one block size and one offset per dimension")
        if any(block < 1 for block in self.block_sizes):
            raise VerifyException("block sizes are positive")


@irdl_op_definition
class DimOp(IRDLOperation):
    """The size of one dimension of a tensor argument."""

    name = "tessera_tile.dim"
    tensor = operand_def(TensorType)
    axis = prop_def(IntAttr)
    result = result_def(index)
    traits = traits_def(*PURE)

    def __init__(self, tensor: SSAValue, axis: int):
        super().__init__(operands=[tensor], properties={"axis": IntAttr(axis)}, result_types=[index])

    def verify_(self) -> None:
        """Check that the axis exists."""
        if not isinstance(self.tensor.type, TensorType) or not 0 <= self.axis.data < self.tensor.type.rank:
            raise VerifyException(f"axis {self.axis.data} does not exist")


def static_size(tensor: TensorType, axis: int) -> int | None:
    """Return a tensor's size along `axis` when it is known at compile time."""
    size = tensor.shape[axis]
    return None if size == DYNAMIC else size
