"""Graphs compiled without a device: texts of the graph, and the artefacts of its groups' kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.driver.compile import DUMPS, compile, target_record
from tessera.driver.group_kernel import GroupKernel
from tessera.frontend.group.accesses import Access, Shape
from tessera.frontend.group.source import signature_of
from tessera.graph.kept import cut, graph_of
from tessera.graph.plan import Group, Multiplied, Step
from tessera.graph.products import Size, is_faster, together
from tessera.ir.graph.structure import GroupOp, ProductOp
from tessera.ir.graph.types import array_type, dims_of
from tessera.ir.graph.views import TransposeOp
from tessera.ir.text import text_of
from tessera.ops.linalg.gemm import gemm
from tessera.runtime.device import CPU
from tessera.runtime.views import ArrayView, row_major
from tessera.schedule.fuse.epilogues import divided
from tessera.schedule.fuse.places import NONE
from tessera.target.artifact import Artifact

GRAPH_DUMPS = ("graph", "groups", *DUMPS)
"""Names of the stages that `dump=` takes for graphs."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph that was compiled without running.

    Args:
        name: its name.
        target: what it was compiled for.
        dumps: what was asked for: `graph` and `groups` are texts, other stages have one text or code for each kernel.
        kernels: the artefacts of its groups by name; what is called beside them is not among them.
    """

    name: str
    target: str
    dumps: dict[str, Any]
    kernels: dict[str, Artifact]


def compiled_graph(
    module: ModuleOp, steps: Sequence[Step], sizes: Mapping[str, int], target: str | None, dump: Sequence[str]
) -> CompiledGraph:
    """Compile the groups of a graph, and the products that they are one kernel with, for some sizes.

    Args:
        module: holds the graph as it was traced.
        steps: what it does.
        sizes: the sizes of its symbols.
        target: as for `ts.compile`.
        dump: names of `GRAPH_DUMPS`.

    Raises:
        TesseraError: as `ts.compile`.
    """
    copy = cut(module)
    ops = [op for op in graph_of(copy).body.block.ops if isinstance(op, GroupOp | ProductOp)]
    stages = [name for name in dump if name in DUMPS]
    kernels: dict[str, Artifact] = {}
    known = (step for step in steps if isinstance(step, Group | Multiplied))
    for step, op in zip(known, ops, strict=True):
        fused = None
        if isinstance(step, Multiplied) and isinstance(op, ProductOp):
            fused = _product(step, op, sizes, target, stages)
            op = op.group
        group = step if isinstance(step, Group) else step.group
        assert isinstance(op, GroupOp), "steps are in the order of the ops"
        if fused is None or not isinstance(step, Multiplied):
            kernels[group.name] = _group(group, op, sizes, target, stages)
            continue
        kernels[group.name] = fused
        division = divided(op, op.inputs.index(_seen_by(op)))
        if division is not None and step.rest is not None:
            with division:
                assert division.rest is not None, "the step has one"
                kernels[step.rest.name] = _group(step.rest, division.rest, sizes, target, stages)
    dumps: dict[str, Any] = {}
    for name in dump:
        if name in stages:
            dumps[name] = {kernel: artifact.dumps[name] for kernel, artifact in kernels.items()}
        else:
            dumps[name] = text_of(module if name == "graph" else copy)
    return CompiledGraph(graph_of(module).sym_name.data, target_record(target).name, dumps, kernels)


def _group(group: Group, op: GroupOp, sizes: Mapping[str, int], target: str | None, stages: Sequence[str]) -> Artifact:
    """Return the kernel of a group."""
    shape = group.shape.at(sizes)
    kernel = GroupKernel(signature_of(group.name, group.text, shape, group.dtypes))
    return compile(kernel, target, stages, _dims(kernel, op, shape, sizes))


def _seen_by(op: GroupOp) -> SSAValue:
    """Return the product as its group reads it."""
    before = op.prev_op
    assert before is not None, "the product is before it"
    return before.results[0]


def _product(
    step: Multiplied, op: ProductOp, sizes: Mapping[str, int], target: str | None, stages: Sequence[str]
) -> Artifact | None:
    """Return the kernel of a product of contiguous matrices and its maps, None where there are two."""
    contract, group = next(iter(op.body.block.ops)), op.group
    division = divided(group, group.inputs.index(_seen_by(group)))
    assert division is not None, "else it is in no product"
    with division as maps:
        views = [_view(value, sizes) for value in maps.inputs]
    left, right = (op.inputs[op.body.block.args.index(value)] for value in contract.operands)
    found = together(step, views, sizes, None) if len(dims_of(left)) == 2 else ""
    if isinstance(found, str):
        return None
    turned = [isinstance(value.owner, TransposeOp) for value in (left, right)]
    (m, k), (_, n), dtype = _view(left, sizes).shape, _view(right, sizes).shape, _view(left, sizes).dtype
    record, options = target_record(target), dict(zip(("trans_a", "trans_b"), turned, strict=True))
    size = Size(m * n, k, dtype.bytes)
    alone = gemm.plan(m, n, k, dtype, target=record, **options)
    fused = gemm.plan(m, n, k, dtype, target=record, epilogue=found.epilogue(), **options)
    if not (is_faster(found, alone, fused, size, record) if record.simt else size.is_far(record)):
        return None
    return gemm.compile(m, n, k, dtype, target=target, dump=tuple(stages), epilogue=found.epilogue(), **options)


def _view(value: SSAValue, sizes: Mapping[str, int]) -> ArrayView:
    """Return an array whose elements lie in order."""
    shape = tuple(dim.value(sizes) or 0 for dim in dims_of(value))
    return ArrayView(shape, row_major(shape), array_type(value).dtype, CPU, readonly=False)


def _dims(kernel: GroupKernel, op: GroupOp, shape: Shape, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of a group's parameters by the names of their dimensions."""
    found: dict[str, int] = {}
    for param, access in zip(kernel.signature.tensors, shape.accesses, strict=True):
        value = (op.outputs if access.is_result else op.inputs)[access.number]
        for dim, size in zip(param.dims, _sizes_along(access, shape, value, sizes), strict=True):
            if not dim.is_static:
                found[str(dim)] = size
    return found


def _sizes_along(access: Access, shape: Shape, value: SSAValue, sizes: Mapping[str, int]) -> list[int]:
    """Return the sizes of an array along the axes of a kernel, or those of its dimensions; of one number, 1."""
    own = [dim.value(sizes) or 0 for dim in dims_of(value)]
    if access.rank:
        return own
    along = [shape.axes[axis].parts for axis in shape.along(access)]
    return [prod(own[d] for d, at in enumerate(access.place) if at != NONE and at in parts) for parts in along] or [1]
