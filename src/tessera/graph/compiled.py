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
from tessera.graph.products import compile_product, laid_out
from tessera.ir.graph.structure import GroupOp, ProductOp
from tessera.ir.graph.types import dims_of
from tessera.ir.text import text_of
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
        fused = laid_out(step, op, sizes, target_record(target)) if isinstance(step, Multiplied) else None
        group, inner = (step.group, op.group) if isinstance(step, Multiplied) else (step, op)
        if fused is not None:
            kernels[group.name] = compile_product(fused, target, stages)
            continue
        assert isinstance(inner, GroupOp), "a group's kernel is that of its ops"
        shape = group.shape.at(sizes)
        kernel = GroupKernel(signature_of(group.name, group.text, shape, group.dtypes))
        kernels[group.name] = compile(kernel, target, stages, _dims(kernel, inner, shape, sizes))
    dumps: dict[str, Any] = {}
    for name in dump:
        if name in stages:
            dumps[name] = {kernel: artifact.dumps[name] for kernel, artifact in kernels.items()}
        else:
            dumps[name] = text_of(module if name == "graph" else copy)
    return CompiledGraph(graph_of(module).sym_name.data, target_record(target).name, dumps, kernels)


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
