"""The parameters that an adjoint kernel has after those of its kernel: what they are, and how large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from xdsl.ir import Attribute, BlockArgument, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.structure import ArgInfo, KernelOp
from tessera.ir.tile.types import DYNAMIC, TensorType
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType
from tessera.target.extents import Extent

Size = Extent
"""An extent of the kernel's arguments, or `["chunks", grid, axis]`: into how many parts an axis of a grid is split."""


@dataclass(frozen=True, slots=True)
class Added:
    """A parameter.

    Args:
        name: its name, such as `X.gradient`.
        role: `cotangent` is read, `gradient` is written, `scratch` is memory of the call's own.
        of: the tensor parameter that it belongs to, by its place; -1 for none.
        dtype: its elements.
        leading: sizes of the dimensions that it has before those of the tensor, or of all where there is none.
        then: sizes after them that are known.
    """

    name: str
    role: Literal["cotangent", "gradient", "scratch"]
    of: int
    dtype: DType
    leading: tuple[Size, ...] = ()
    then: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a grid that an adjoint goes along in a few long parts, one after the other in each.

    Args:
        grid: the number of the grid.
        axis: the number of the axis.
        programs: how many programs the grid has along it.
    """

    grid: int
    axis: int
    programs: Extent


class Arguments:
    """Adds parameters to an adjoint kernel.

    Args:
        kernel: the adjoint, with the parameters of its kernel.
    """

    def __init__(self, kernel: KernelOp) -> None:
        self._kernel = kernel
        self._infos: list[ArgInfo] = list(kernel.infos)
        self._own = len(self._infos)
        self.added: list[Added] = []

    def beside(self, tensor: int, role: Literal["cotangent", "gradient"]) -> SSAValue:
        """Return the cotangent or the gradient of a tensor parameter."""
        info, type_ = self._infos[tensor], self._kernel.body.block.args[tensor].type
        assert isinstance(type_, TensorType), "tensors have gradients"
        return self._add(Added(f"{info.name}.{role}", role, tensor, type_.dtype), type_, info.dims)

    def scratch(
        self,
        name: str,
        element: Attribute,
        leading: Sequence[Size],
        tensor: int = -1,
        then: Sequence[int] = (),
        names: Mapping[int, str] | None = None,
    ) -> SSAValue:
        """Return memory of the call's own.

        Args:
            name: its name.
            element: the type of its elements.
            leading: the sizes of its first dimensions.
            tensor: a tensor parameter whose dimensions follow.
            then: sizes that follow where there is none.
            names: names of some of the first dimensions, where these are sizes of the kernel.
        """
        number = len(self.added)
        own = [(names or {}).get(place, f"scratch{number}_{place}") for place in range(len(leading))]
        shape, dims = tuple(then), tuple(map(str, then))
        if tensor >= 0:
            type_ = self._kernel.body.block.args[tensor].type
            assert isinstance(type_, TensorType), "tensors have gradients"
            shape, dims = type_.shape, self._infos[tensor].dims
        added = Added(name, "scratch", tensor, dtype_of(element), tuple(leading), tuple(then))
        return self._add(added, TensorType.of([*[DYNAMIC] * len(own), *shape], element), (*own, *dims))

    def _add(self, added: Added, type_: TensorType, dims: Sequence[str]) -> SSAValue:
        while any(info.name == added.name for info in self._infos):
            added = Added(f"{added.name}_", added.role, added.of, added.dtype, added.leading, added.then)
        ones, rank = (1,) * type_.rank, type_.rank
        written = added.role != "cotangent"
        info = ArgInfo(
            added.name, tuple(dims), strides=(DYNAMIC,) * rank, stride_div=ones, dim_div=ones, written=written
        )
        self.added.append(added)
        self._infos.append(info)
        return self._kernel.body.block.insert_arg(type_, len(self._kernel.body.block.args))

    def is_read_only(self, tensor: SSAValue) -> bool:
        """Return whether the adjoint never stores to a parameter: those of its kernel, and cotangents."""
        if not isinstance(tensor, BlockArgument):
            return False
        return tensor.index < self._own or self.added[tensor.index - self._own].role == "cotangent"

    def size_of(self, tensor: SSAValue, axis: int) -> str:
        """Return the name of the size of a parameter's dimension: equal names are of equal sizes."""
        assert isinstance(tensor, BlockArgument), "tensors are parameters"
        return self._infos[tensor.index].dims[axis]

    def finish(self) -> None:
        """Write on the kernel what is known of its parameters."""
        old = self._infos[: self._own]
        plain = [ArgInfo(one.name, one.dims, 1, one.strides, one.stride_div, one.dim_div) for one in old]
        infos = [*plain, *self._infos[self._own :]]
        self._kernel.properties["arg_info"] = type(self._kernel.arg_info)([info.to_attr() for info in infos])
