"""The kernel of a group: its parameters, and how it is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation

from tessera.data import dataclass
from tessera.digest import sha256
from tessera.frontend.build import BuiltKernel, argument_infos, argument_types
from tessera.frontend.generated import Generated
from tessera.frontend.group.accesses import Access, Shape
from tessera.frontend.group.emit import Emitter
from tessera.frontend.signature import ScalarParam, Signature, TensorParam
from tessera.frontend.specialize import Specialization
from tessera.ir.graph.compact import block_of
from tessera.ir.graph.deciding import compares, makes_whole, maps_before
from tessera.ir.graph.points import MapOp
from tessera.ir.graph.structure import GroupOp
from tessera.ir.graph.types import array_type
from tessera.ir.tile.structure import ArgInfo, KernelOp, ReturnOp
from tessera.ir.tile.types import TensorType
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType, Policy, i64
from tessera.target.dims import Dim


@dataclass(frozen=True, slots=True)
class GroupSource(Generated):
    """What the kernel of a group is made from.

    Args:
        name: the kernel's name.
        text: the group's ops, as `compact_text` gives them.
        shape: the kernel's form.
    """

    name: str
    text: str
    shape: Shape

    @property
    def digest(self) -> str:
        """What stands for it in the keys of caches."""
        return sha256(f"{self.name}\0{self.shape.as_data()}\0{self.text}".encode()).hexdigest()

    def build(self, signature: Signature, spec: Specialization) -> BuiltKernel:
        """Return the kernel in TIR-H."""
        fixed = self._fixed(signature, spec)
        infos = argument_infos(signature, spec)
        infos = [replace(info, written=info.name.startswith("y")) for info in infos]
        types = argument_types(signature, lambda dim: dim.scale if dim.is_static else fixed.get(str(dim)))
        block = block_of(self.text)
        exactly = _keeps_quotients(infos, types) or any(map(_follows_from_quotient, block.ops))
        kernel = KernelOp(self.name, infos, types, spec.profile, exactly)
        sizes = [self._elements(number, fixed) for number in range(len(self.shape.axes))]
        emitter = Emitter(block, self.shape, kernel.body.block.args, sizes, spec.profile)
        emitter.write(kernel.body.block)
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


def _keeps_quotients(infos: Sequence[ArgInfo], types: Sequence[Attribute]) -> bool:
    """Return whether a group stores floats in which the error of a quotient shows: others are rounded again.

    What libraries compute for the same op is rounded once.
    """
    pairs = zip(infos, types, strict=True)
    stored = [dtype_of(type_.element) for info, type_ in pairs if info.written and isinstance(type_, TensorType)]
    return any(dtype.is_float and dtype.bits >= 32 for dtype in stored)


def _follows_from_quotient(op: Operation) -> bool:
    """Return whether the last bit of a quotient decides what an op gives."""
    if not makes_whole(op) and not compares(op):
        return False
    return any(isinstance(one, MapOp) and one.fn.data == "div" for one in maps_before(op))


def signature_of(name: str, text: str, shape: Shape, dtypes: Sequence[DType]) -> Signature:
    """Return the parameters of a group's kernel: what it reads, `x0` …, what it writes, `y0` …, and sizes, `n0` ….

    Args:
        name: the kernel's name.
        text: as `compact_text` gives it.
        shape: the kernel's form.
        dtypes: as `dtypes_of` gives them.
    """
    params = [_tensor(number, access, shape, dtypes[number]) for number, access in enumerate(shape.accesses)]
    sizes = [ScalarParam(f"n{number}", i64) for number in range(len(shape.sizes))]
    return Signature(GroupSource(name, text, shape), (*params, *sizes), known_as=name)


def _tensor(number: int, access: Access, shape: Shape, dtype: DType) -> TensorParam:
    whole = shape.whole_along(access)
    names = [f"{'d' if axis in whole else 'p'}{axis}" for axis in shape.along(access)]
    names += [f"q{number}_{axis}" for axis in range(access.rank)]
    dims = tuple(Dim((each,)) for each in names) or (Dim(),)
    return TensorParam(f"{'y' if access.is_result else 'x'}{number}", dims, Policy(dtype))


def dtypes_of(group: GroupOp, shape: Shape) -> tuple[DType, ...]:
    """Return the dtype of each array that a group reads or writes, in the order of its kernel's form."""
    values = [(group.outputs if access.is_result else group.inputs)[access.number] for access in shape.accesses]
    return tuple(array_type(value).dtype for value in values)
