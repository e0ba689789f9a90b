"""Kernel structure: the kernel itself, its grid loops and the sizes of its arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from tessera.data import dataclass
from tessera.ir.attributes import integer, ints, number, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Int, Ints
from tessera.ir.tile.types import DYNAMIC, TensorType
from tessera.ir.types import i1, index, is_scalar
from tessera.target.extents import Extent, extent_of, leaves
from tessera.target.schema import ArtifactError


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
        alias: the first argument that starts at the same address, -1 when none before it does. Such arguments are one
            memory; two others of which the kernel stores to one have no element in common.
        order: dimensions by their strides, the longest first; empty where that is their own order. It only makes code
            faster: arrays of any strides may be passed.
        multiple: a number that divides a scalar.
        low: the least that a scalar is, None where nothing is known.
        high: the most that a scalar is, None likewise.
    """

    name: str
    dims: tuple[str, ...] = ()
    align: int = 1
    strides: tuple[int, ...] = ()
    stride_div: tuple[int, ...] = ()
    dim_div: tuple[int, ...] = ()
    written: bool = False
    alias: int = -1
    order: tuple[int, ...] = ()
    multiple: int = 1
    low: int | None = None
    high: int | None = None

    def stride_divisor(self, axis: int) -> int:
        """Return a number that divides the stride of a dimension, in elements: the stride itself where it is known."""
        stride = self.strides[axis]
        return self.stride_div[axis] if stride == DYNAMIC else stride

    def to_attr(self) -> DictionaryAttr:
        """Return the record as an IR attribute."""
        return _attr_of(self)

    @classmethod
    def from_attr(cls, attr: DictionaryAttr) -> ArgInfo:
        """Read the record back from an IR attribute."""
        return _info_of(attr)

    def to_text(self) -> str:
        """Return the record as `as "A" dims ["M", "K"] strides [-1, 1] align 16`; defaults are left out."""
        parts = [f"as {json.dumps(self.name, ensure_ascii=False)}"]
        if self.dims:
            parts.append(f"dims {json.dumps(self.dims, ensure_ascii=False)} strides {list(self.strides)}")
            parts.append(f"stride_div {list(self.stride_div)} dim_div {list(self.dim_div)}")
        if self.order:
            parts.append(f"order {list(self.order)}")
        if self.align != 1:
            parts.append(f"align {self.align}")
        if self.written:
            parts.append("written")
        if self.alias >= 0:
            parts.append(f"alias {self.alias}")
        if self.multiple != 1:
            parts.append(f"multiple {self.multiple}")
        if self.low is not None:
            parts.append(f"low {self.low}")
        if self.high is not None:
            parts.append(f"high {self.high}")
        return " ".join(parts)


@lru_cache(maxsize=1024)
def _attr_of(info: ArgInfo) -> DictionaryAttr:
    return DictionaryAttr(
        {
            "name": text(info.name),
            "dims": ArrayAttr([text(d) for d in info.dims]),
            "align": number(info.align),
            "strides": ints(info.strides),
            "stride_div": ints(info.stride_div),
            "dim_div": ints(info.dim_div),
            "written": integer(int(info.written), i1),
            "alias": number(info.alias),
            "order": ints(info.order),
            "multiple": number(info.multiple),
            **{key: number(end) for key, end in (("low", info.low), ("high", info.high)) if end is not None},
        }
    )


@lru_cache(maxsize=1024)
def _info_of(attr: DictionaryAttr) -> ArgInfo:
    data: dict[str, Any] = dict(attr.data)

    def ints(key: str) -> tuple[int, ...]:
        return tuple(v.data for v in data[key].data)

    return ArgInfo(
        data["name"].data,
        tuple(d.data for d in data["dims"].data),
        data["align"].data,
        ints("strides"),
        ints("stride_div"),
        ints("dim_div"),
        bool(data["written"].value.data),
        data["alias"].data,
        ints("order"),
        data["multiple"].data,
        *(data[end].data if end in data else None for end in ("low", "high")),
    )


def _parse_argument(parser: Parser) -> Parser.Argument:
    argument = parser.parse_argument()
    argument.location = parser.parse_optional_location()
    return argument


def _parse_info(parser: Parser) -> ArgInfo:
    def numbers() -> tuple[int, ...]:
        return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer))

    def ints(keyword: str) -> tuple[int, ...]:
        parser.parse_keyword(keyword)
        return numbers()

    parser.parse_keyword("as")
    info = ArgInfo(parser.parse_str_literal())
    if parser.parse_optional_keyword("dims"):
        dims = tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal))
        info = replace(info, dims=dims, strides=ints("strides"), stride_div=ints("stride_div"), dim_div=ints("dim_div"))
    if parser.parse_optional_keyword("order"):
        info = replace(info, order=numbers())
    if parser.parse_optional_keyword("align"):
        info = replace(info, align=parser.parse_integer())
    if parser.parse_optional_keyword("written"):
        info = replace(info, written=True)
    for name in ("alias", "multiple", "low", "high"):
        if parser.parse_optional_keyword(name):
            info = replace(info, **{name: parser.parse_integer()})
    return info


@op_definition
class KernelOp(TesseraOp):
    """A kernel: block arguments are its tensors and scalars, in the order of the source.

    With `divides_exactly`, quotients are rounded once under every profile.
    """

    name = "tessera_tile.kernel"
    sym_name = prop_def(StringAttr)
    arg_info = prop_def(ArrayAttr[DictionaryAttr])
    profile = prop_def(StringAttr)
    divides_exactly = opt_prop_def(UnitAttr)
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), IsolatedFromAbove())

    def __init__(
        self,
        name: str,
        infos: Sequence[ArgInfo],
        types: Sequence[Attribute],
        profile: str = "fast",
        divides_exactly: bool = False,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "arg_info": ArrayAttr([info.to_attr() for info in infos]),
                "profile": StringAttr(profile),
                "divides_exactly": UnitAttr() if divides_exactly else None,
            },
            regions=[Region(Block(arg_types=types))],
        )

    @property
    def infos(self) -> tuple[ArgInfo, ...]:
        """What is known of each argument."""
        return tuple(ArgInfo.from_attr(attr) for attr in self.arg_info.data)

    def info_of(self, tensor: SSAValue) -> ArgInfo:
        """Return what is known of the argument that a value is."""
        assert isinstance(tensor, BlockArgument), "arguments of the kernel are its block's"
        return ArgInfo.from_attr(self.arg_info.data[tensor.index])

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        """Parse `@saxpy profile "fast" (%x : !tessera_tile.tensor<?xf32> as "x" dims ["N"] …) { … }`."""
        name = parser.parse_symbol_name().data
        parser.parse_keyword("profile")
        profile = parser.parse_str_literal()
        exactly = parser.parse_optional_keyword("divides_exactly") is not None
        parsed = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: (_parse_argument(parser), _parse_info(parser))
        )
        body = parser.parse_region([argument for argument, _ in parsed])
        op = cls(name, [info for _, info in parsed], [], profile, exactly)
        op.detach_region(op.body)
        op.add_region(body)
        op.attributes |= parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        """Print what `parse` reads."""
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        exactly = "" if self.divides_exactly is None else " divides_exactly"
        printer.print_string(f' profile "{self.profile.data}"{exactly} (')
        for position, (argument, info) in enumerate(zip(self.body.block.args, self.infos, strict=True)):
            printer.print_string(",\n    " if position else "\n    ")
            printer.print_block_argument(argument)
            printer.print_string(f" {info.to_text()}")
        printer.print_string(") ")
        printer.print_region(self.body, print_entry_block_args=False)
        if self.attributes:
            printer.print_op_attributes(self.attributes)

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
                if info.order and sorted(info.order) != list(range(arg.type.rank)):
                    raise VerifyException(f"argument {info.name}: {list(info.order)} is no order of its dimensions")
            elif not is_scalar(arg.type):
                raise VerifyException(f"argument {info.name} is neither tensor nor scalar: {arg.type}")
        self._verify_aliases()

    def _verify_aliases(self) -> None:
        """Check that an alias names the first tensor of its memory."""
        infos, types = self.infos, self.body.block.arg_types
        for place, info in enumerate(infos):
            first = info.alias
            if first < 0:
                continue
            known = first < place and infos[first].alias < 0
            if not known or not all(isinstance(types[at], TensorType) for at in (first, place)):
                raise VerifyException(
                    f"argument {info.name}: alias {first} is not a tensor before it, or an alias itself"
                )


def memory_of(tensor: SSAValue) -> SSAValue:
    """Return the memory that a tensor argument is: the first argument that starts at its address.

    Accesses to one memory happen in program order. Whoever asks whether two accesses may touch the same elements
    compares this, never the tensors themselves.
    """
    assert isinstance(tensor, BlockArgument), "tensors are arguments of the kernel"
    kernel = tensor.block.parent_op()
    assert isinstance(kernel, KernelOp), "tensors are arguments of the kernel"
    alias: Any = kernel.arg_info.data[tensor.index].data["alias"]  # asked often: the rest of the record is not read
    first: int = alias.data
    return tensor if first < 0 else tensor.block.args[first]


def profile_of(op: Operation) -> str:
    """Return the numerics profile of the kernel that holds an op; `fast` where none does."""
    kernel = _kernel_of(op)
    return "fast" if kernel is None else kernel.profile.data


def divides_exactly(op: Operation) -> bool:
    """Return whether the kernel that holds an op rounds quotients once."""
    kernel = _kernel_of(op)
    return kernel is not None and kernel.divides_exactly is not None


def _kernel_of(op: Operation) -> KernelOp | None:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, KernelOp):
        parent = parent.parent_op()
    return parent


@op_definition
class ReturnOp(TesseraOp):
    """Ends a kernel and names the tensors it returns to the caller."""

    name = "tessera_tile.return"
    tensors = var_operand_def(TensorType)
    traits = traits_def(IsTerminator(), HasParent(KernelOp))
    assembly_format = "($tensors^ `:` type($tensors))? attr-dict"

    def __init__(self, tensors: Sequence[SSAValue] = ()):
        super().__init__(operands=[list(tensors)])


def _is_there(types: list[Attribute], arg: int, axis: int | None = None) -> bool:
    """Return whether a kernel with arguments of these types has a scalar, or (with `axis`) a dimension of a tensor."""
    type_ = types[arg] if arg < len(types) else None
    if axis is None:
        return type_ is not None and is_scalar(type_)
    return isinstance(type_, TensorType) and axis < type_.rank


@op_definition
class AssumeOp(TesseraOp):
    """Says what holds in every call; the host checks it before the first launch.

    The condition is an extent (`target/extents.py`) that is not 0.
    """

    name = "tessera_tile.assume"
    condition = prop_def(StringAttr)
    traits = traits_def(HasParent(KernelOp), *effect(Effect.IO))
    assembly_format = "$condition attr-dict"

    def __init__(self, condition: Extent):
        super().__init__(properties={"condition": text(json.dumps(condition))})

    @property
    def extent(self) -> Extent:
        """The condition, as data."""
        return json.loads(self.condition.data)

    def verify_(self) -> None:
        """Check that the condition is an extent of the kernel's arguments."""
        kernel = self.parent_op()
        assert isinstance(kernel, KernelOp), "its parent is a kernel"
        try:
            extent = extent_of("the condition", json.loads(self.condition.data))
        except ValueError as error:
            raise VerifyException(f"the condition is no JSON: {error}") from None
        except ArtifactError as error:
            raise VerifyException(error.what) from None
        for kind, arg, *axis in leaves(extent):
            if not _is_there(list(kernel.body.block.arg_types), arg, *axis):
                raise VerifyException(f"the condition names a {kind} that the kernel has not")


@op_definition
class GridOp(TesseraOp):
    """The parallel loop over tiles: one program per point, given the offset of its tile in each dimension.

    Two grids in one kernel are two launches, in order. One `when` its number is 0 has no programs.
    """

    name = "tessera_tile.grid"
    extents = var_operand_def(index)
    guard = opt_operand_def(index)
    blocks = prop_def(ArrayAttr[IntAttr])
    body = region_def("single_block")
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(NoTerminator())
    custom_directives = (Ints,)
    assembly_format = "`(` $extents `)` `by` custom<Ints>($blocks) (`when` $guard^)? $body attr-dict"

    def __init__(self, extents: Sequence[SSAValue | Operation], blocks: Sequence[int], guard: SSAValue | None = None):
        super().__init__(
            operands=[list(extents), guard],
            properties={"blocks": ints(blocks)},
            regions=[Region(Block(arg_types=[index] * len(blocks)))],
        )

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The tile size of each dimension."""
        return tuple(block.data for block in self.blocks.data)

    def when(self, guard: SSAValue) -> GridOp:
        """Move the body to a launch with a guard, which is returned; neither is in a block."""
        new = GridOp(list(self.extents), self.block_sizes, guard)
        new.location = self.location
        new.attributes.update(self.attributes)
        new.body.detach_block(0)
        new.body.add_block(self.body.detach_block(0))
        self.erase()
        return new

    def verify_(self) -> None:
        """Check that there is one extent, block size and offset per dimension."""
        if not len(self.extents) == len(self.block_sizes) == len(self.body.block.args):
            raise VerifyException("a grid has one extent, one block size and one offset per dimension")
        if any(block < 1 for block in self.block_sizes):
            raise VerifyException("block sizes are positive")


class OfDimension(TesseraOp):
    """A number that belongs to one dimension of a tensor argument."""

    tensor = operand_def(TensorType)
    axis = prop_def(IntAttr)
    result = result_def(index)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "$tensor `[` custom<Int>($axis) `]` attr-dict `:` type($tensor)"

    def __init__(self, tensor: SSAValue, axis: int):
        super().__init__(operands=[tensor], properties={"axis": IntAttr(axis)}, result_types=[index])

    def verify_(self) -> None:
        """Check that the axis exists."""
        if not isinstance(self.tensor.type, TensorType) or not 0 <= self.axis.data < self.tensor.type.rank:
            raise VerifyException(f"axis {self.axis.data} does not exist")


@op_definition
class DimOp(OfDimension):
    """The size of one dimension of a tensor argument."""

    name = "tessera_tile.dim"


@op_definition
class StrideOp(OfDimension):
    """How far apart neighbours along one dimension of a tensor argument lie, in elements.

    Of a dimension with one element it is what it would be in an array without gaps.
    """

    name = "tessera_tile.stride"


@op_definition
class MisalignmentOp(TesseraOp):
    """How many elements an element of a tensor lies behind a multiple of 16 bytes; 0 of elements of 16 bytes."""

    name = "tessera_tile.misalignment"
    tensor = operand_def(TensorType)
    offsets = var_operand_def(index)
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "$tensor `[` $offsets `]` attr-dict `:` type($tensor)"

    def __init__(self, tensor: SSAValue, offsets: Sequence[SSAValue]):
        super().__init__(operands=[tensor, list(offsets)], result_types=[index])

    def verify_(self) -> None:
        """Check that there is an offset for each dimension."""
        assert isinstance(self.tensor.type, TensorType)
        if len(self.offsets) != self.tensor.type.rank:
            raise VerifyException("an element has one offset per dimension")


def static_size(tensor: TensorType, axis: int) -> int | None:
    """Return a tensor's size along `axis` when it is known at compile time."""
    size = tensor.shape[axis]
    return None if size == DYNAMIC else size
