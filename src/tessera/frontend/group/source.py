"""The kernel of a group: its parameters, and how it is built."""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from tessera.data import dataclass
from tessera.frontend.build import BuiltKernel, argument_infos, argument_types
from tessera.frontend.generated import Generated
from tessera.frontend.group.accesses import Access, Shape
from tessera.frontend.group.emit import Emitter
from tessera.frontend.signature import ScalarParam, Signature, TensorParam
from tessera.frontend.specialize import Specialization
from tessera.ir.graph.structure import GraphOp, GroupOp
from tessera.ir.graph.structure import ReturnOp as GraphReturnOp
from tessera.ir.graph.types import array_type
from tessera.ir.text import parse_module, text_of
from tessera.ir.tile.structure import KernelOp, ReturnOp
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, Policy
from tessera.target.dims import Dim


@dataclass(frozen=True, slots=True)
class GroupSource(Generated):
    """What the kernel of a group is made from.

    Args:
        name: the kernel's name.
        text: the group's ops, in a group without operands' names.
        shape: the kernel's form.
    """

    name: str
    text: str
    shape: Shape

    def build(self, signature: Signature, spec: Specialization) -> BuiltKernel:
        """Return the kernel in TIR-H."""
        group = next(op for op in parse_module(self.text).walk() if isinstance(op, GroupOp))
        fixed = self._fixed(signature, spec)
        infos = argument_infos(signature, spec)
        infos = [replace(info, written=info.name.startswith("y")) for info in infos]
        types = argument_types(signature, lambda dim: dim.scale if dim.is_static else fixed.get(str(dim)))
        kernel = KernelOp(self.name, infos, types, spec.profile)
        kernel.location = group.location
        sizes = [self._elements(number, fixed) for number in range(len(self.shape.axes))]
        Emitter(group, self.shape, kernel.body.block.args, sizes, group.location).write(kernel.body.block)
        kernel.body.block.add_op(ReturnOp())
        return BuiltKernel(ModuleOp([kernel]), fixed, ())

    def _fixed(self, signature: Signature, spec: Specialization) -> dict[str, int]:
        """Return the sizes of the axes that a program takes whole and that parameters have."""
        found: dict[str, int] = {}
        for param, facts in zip(signature.runtime_params, spec.args, strict=True):
            if isinstance(param, TensorParam):
                found |= {str(dim): size for dim, size in zip(param.dims, facts.sizes, strict=True) if size is not None}
        whole = [f"d{number}" for number, axis in enumerate(self.shape.axes) if not axis.block and axis.size is None]
        return {name: found[name] for name in whole}

    def _elements(self, number: int, fixed: dict[str, int]) -> int:
        """Return how many elements of an axis a program takes."""
        axis = self.shape.axes[number]
        return axis.block or (fixed[f"d{number}"] if axis.size is None else axis.size.scale)


def signature_of(name: str, group: GroupOp, shape: Shape, text: str) -> Signature:
    """Return the parameters of a group's kernel: what it reads, `x0` …, what it writes, `y0` …, and sizes, `n0` ….

    Args:
        name: the kernel's name.
        group: the group.
        shape: the kernel's form.
        text: the group's, as `text_of_group` gives it.
    """
    params = [_tensor(number, access, group, shape) for number, access in enumerate(shape.accesses)]
    sizes = [ScalarParam(f"n{number}", dtypes.i64) for number in range(len(shape.sizes))]
    return Signature(GroupSource(name, text, shape), (*params, *sizes), known_as=name)


def text_of_group(group: GroupOp) -> str:
    """Return a group's ops as text, the same for groups that differ in their operands only."""
    return text_of(_alone(group))


def _tensor(number: int, access: Access, group: GroupOp, shape: Shape) -> TensorParam:
    whole = shape.whole_along(access)
    names = [f"{'d' if axis in whole else 'p'}{axis}" for axis in shape.along(access)]
    names += [f"q{number}_{axis}" for axis in range(access.rank)]
    dims = tuple(Dim((each,)) for each in names) or (Dim(),)
    return TensorParam(f"{'y' if access.is_result else 'x'}{number}", dims, Policy(_dtype(access, group)))


def _dtype(access: Access, group: GroupOp) -> DType:
    values = group.outputs if access.is_result else group.inputs
    return array_type(values[access.number]).dtype


def _alone(group: GroupOp) -> ModuleOp:
    """Return a module with a group whose operands are those of a graph around it."""
    graph = GraphOp("group", [value.type for value in group.inputs])
    clone = group.clone(dict(zip(group.inputs, graph.body.block.args, strict=False)))
    graph.body.block.add_ops([clone, GraphReturnOp(clone.results)])
    return ModuleOp([graph])
