"""Splits a kernel into launches: one TIR-T function per grid, with its parameters and host-side grid size.

Both models (SIMT and vector) start here. What comes before a grid in the kernel's body is pure scalar code and
is recomputed in each function that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import LanguageError
from tessera.ir import decisions
from tessera.ir.locations import location_of
from tessera.ir.target.structure import FuncOp, parameter_attr
from tessera.ir.target.types import PointerType
from tessera.ir.tile.extents import NotOnHost, host_extent
from tessera.ir.tile.stream import ShareOp
from tessera.ir.tile.structure import ArgInfo, AssumeOp, GridOp, KernelOp, ReturnOp
from tessera.ir.tile.types import DYNAMIC, TensorType
from tessera.ir.types import dtype_of, element_type, index
from tessera.lower.entries import entry_name
from tessera.numerics import dtypes
from tessera.target.artifact import ArgSpec, Parameter
from tessera.target.extents import Extent


@dataclass
class LaunchPlan:
    """One launch of a kernel: the ops that belong to it.

    Args:
        name: entry name.
        prologue: ops of the kernel's body before the grid.
        grid: the grid, or None for a kernel that runs one program.
        body: the ops each program runs.
    """

    name: str
    prologue: list[Operation]
    grid: GridOp | None
    body: list[Operation]


def plan_launches(kernel: KernelOp) -> Iterator[LaunchPlan]:
    """Yield the launches of a kernel, in order.

    Raises:
        LanguageError: `statement-outside-grid` when the body mixes grids with stores outside any grid.
    """
    ops = [op for op in kernel.body.block.ops if not isinstance(op, ReturnOp | AssumeOp)]
    grids = [op for op in ops if isinstance(op, GridOp)]
    name = entry_name(kernel.sym_name.data)
    if not grids:
        yield LaunchPlan(name, [], None, ops)
        return
    scalars = [op for op in ops if not isinstance(op, GridOp)]
    for op in scalars:
        if not op.results:
            raise LanguageError(
                "a kernel with a grid does its work inside the grid",
                code="statement-outside-grid",
                location=location_of(op),
                help="move the statement into the grid loop",
            )
    for number, grid in enumerate(grids):
        before = [op for op in ops[: ops.index(grid)] if not isinstance(op, GridOp)]
        entry = name if len(grids) == 1 else f"{name}_{number}"
        yield LaunchPlan(entry, before, grid, list(grid.body.block.ops))


def grid_extent(value: SSAValue) -> Extent:
    """Return how the host computes a grid extent from the call's sizes and scalars.

    Raises:
        LanguageError: `grid-extent` when the extent depends on anything else.
    """
    try:
        return host_extent(value)
    except NotOnHost as error:
        owner = error.value.owner
        raise LanguageError(
            "a grid extent is computed from dims, integer arguments and constants only",
            code="grid-extent",
            location=location_of(owner) if isinstance(owner, Operation) else None,
            help="the host must know the extent before the launch",
        ) from None


@dataclass
class Parameters:
    """The machine-level parameters of a function, added as they are first asked for.

    Args:
        kernel: the kernel whose arguments they come from.
        func: the function they are added to.
    """

    kernel: KernelOp
    func: FuncOp
    _made: dict[tuple[str, int, int], SSAValue] = field(default_factory=dict[tuple[str, int, int], SSAValue])

    @cached_property
    def infos(self) -> tuple[ArgInfo, ...]:
        """What is known of each kernel argument."""
        return self.kernel.infos

    def position(self, tensor: SSAValue) -> int:
        """Return which kernel argument a TIR-H value is."""
        assert isinstance(tensor, BlockArgument), "tensors are arguments of the kernel"
        return tensor.index

    def memory(self, arg: int) -> int:
        """Return the first of the tensor arguments that are the same memory as this one, see `memory_of`."""
        first = self.infos[arg].alias
        return arg if first < 0 else first

    def _get(self, record: Parameter, type_: Attribute, key: tuple[str, int, int] | None = None) -> SSAValue:
        key = key or (record.kind, record.arg, record.axis)
        if key not in self._made:
            block = self.func.body.block
            self._made[key] = block.insert_arg(type_, len(block.args))
            self.func.params = ArrayAttr([*self.func.params.data, parameter_attr(record)])
        return self._made[key]

    def pointer(self, arg: int) -> SSAValue:
        """Return the base address of a tensor argument."""
        type_ = self.kernel.body.block.args[arg].type
        assert isinstance(type_, TensorType)
        record = Parameter("pointer", arg, align=self.infos[arg].align, dtype=type_.dtype.name)
        return self._get(record, PointerType.of(type_.element))

    def tensor_map(self, arg: int, order: Sequence[int], box: Sequence[int], dtype: str | None = None) -> SSAValue:
        """Return the address of a tensor argument's map for copies of `box` elements, to `dtype` if not as they are."""
        type_ = self.kernel.body.block.args[arg].type
        assert isinstance(type_, TensorType)
        name = dtype or type_.dtype.name
        record = Parameter("tensor_map", arg, dtype=name, order=tuple(order), box=tuple(box))
        key = (f"tensor_map {name} {record.order} {record.box}", arg, 0)
        return self._get(record, PointerType.of(type_.element, "param"), key)

    def workspace(self, slot_bytes: int, parts: int = 0, sharing: int = 0) -> SSAValue:
        """Return the address of the launch's workspace, with a slot of the given bytes for each program.

        Args:
            slot_bytes: of a program.
            parts: see `Parameter.parts`.
            sharing: see `Parameter.sharing`.
        """
        record = Parameter("workspace", -1, align=16, dtype="u32", slot_bytes=slot_bytes, parts=parts, sharing=sharing)
        return self._get(record, PointerType.of(element_type(dtypes.u32)))

    @property
    def tensor_maps(self) -> list[SSAValue]:
        """The addresses of all tensor maps asked for so far."""
        return [value for (kind, _, _), value in self._made.items() if kind.startswith("tensor_map")]

    def scalar(self, arg: int) -> SSAValue:
        """Return a scalar argument."""
        type_ = self.kernel.body.block.args[arg].type
        return self._get(Parameter("scalar", arg, dtype=dtype_of(type_).name), type_)

    def known_size(self, arg: int, axis: int) -> int | None:
        """Return the size of a dimension when it is fixed."""
        type_ = self.kernel.body.block.args[arg].type
        assert isinstance(type_, TensorType)
        size = type_.shape[axis]
        return None if size == DYNAMIC else size

    def size(self, arg: int, axis: int) -> SSAValue:
        """Return a dimension's size; dims of one name share one parameter. Ask `known_size` first."""
        name = self.infos[arg].dims[axis]
        for other, info in enumerate(self.infos[: arg + 1]):
            if name.isidentifier() and name in info.dims:
                arg, axis = other, info.dims.index(name)
                break
        return self._get(Parameter("size", arg, axis), index)

    def known_stride(self, arg: int, axis: int) -> int | None:
        """Return the stride of a dimension, in elements, when it is fixed."""
        stride = self.infos[arg].strides[axis]
        return None if stride == DYNAMIC else stride

    def stride(self, arg: int, axis: int) -> SSAValue:
        """Return a dimension's stride in elements. Ask `known_stride` first."""
        return self._get(Parameter("stride", arg, axis), index)


def new_function(kernel: KernelOp, plan: LaunchPlan, num_warps: int = 1) -> FuncOp:
    """Return the empty function of a launch, its grid described for the host."""
    grid: list[tuple[Extent, int]] = []
    if plan.grid is not None:
        grid = [
            (grid_extent(extent), block) for extent, block in zip(plan.grid.extents, plan.grid.block_sizes, strict=True)
        ]
        if plan.grid.guard is not None:
            grid.append((grid_extent(plan.grid.guard), 1))
        if (sharing := decisions.SHARING_PROGRAMS.of(plan.grid)) is not None:
            grid.append((_sharers(plan.grid, sharing, 32 * num_warps), 1))
    programs = (decisions.CLUSTER.of(plan.grid) if plan.grid is not None else None) or 1
    if programs > 1:
        grid.append((["const", programs], 1))
    resident = (decisions.RESIDENT.of(plan.grid) if plan.grid is not None else None) or 1
    exactly = kernel.divides_exactly is not None
    func = FuncOp(plan.name, [], [], json.dumps(grid), num_warps, kernel.profile.data, programs, resident, exactly)
    func.location = kernel.location
    return func


def _sharers(grid: GridOp, sharing: int, most: int) -> Extent:
    """Return how many programs share each tile: as many as run at once, and have steps enough.

    Args:
        grid: the launch.
        sharing: programs that run at once.
        most: programs that share a tile at most.
    """
    tiles: Extent = ["const", 1]
    for extent, block in zip(grid.extents, grid.block_sizes, strict=True):
        around: Extent = ["add", grid_extent(extent), ["const", block - 1]]
        tiles = ["mul", tiles, ["floordiv", around, ["const", block]]]
    each: Extent = ["floordiv", ["const", sharing], ["maximum", tiles, ["const", 1]]]
    each = ["minimum", each, ["const", min(decisions.SPLIT_SUMS.of(grid) or 1, most)]]
    share = next(op for op in grid.body.block.ops if isinstance(op, ShareOp))
    try:
        steps = grid_extent(share.steps)
    except LanguageError:  # the program knows, not the host
        return ["maximum", each, ["const", 1]]
    enough: Extent = ["floordiv", steps, ["const", decisions.PART_STEPS.of(grid) or 1]]
    return ["maximum", ["minimum", each, enough], ["const", 1]]


def arg_specs(kernel: KernelOp) -> tuple[ArgSpec, ...]:
    """Return what the compiled kernel requires of each argument."""
    specs: list[ArgSpec] = []
    for arg, info in zip(kernel.body.block.args, kernel.infos, strict=True):
        if not isinstance(arg.type, TensorType):
            specs.append(ArgSpec(info.name, "scalar", dtype_of(arg.type).name))
            continue
        specs.append(
            ArgSpec(
                info.name,
                "tensor",
                arg.type.dtype.name,
                info.dims,
                arg.type.shape,
                info.strides,
                info.align,
                info.stride_div,
                info.dim_div,
                info.written,
            )
        )
    return tuple(specs)
