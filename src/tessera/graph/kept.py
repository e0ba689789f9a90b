"""Plans of graphs that are kept between processes, so that a graph seen before is neither cut nor printed again.

A plan's key stands for all that decides it: the compiler, the graph, how its arguments lie, the sizes by which blocks
are chosen. The kernels of its groups have keys of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, SSAValue

from tessera.digest import sha256
from tessera.driver.cache import disk_cache
from tessera.frontend.group.accesses import Shape
from tessera.graph.plan import Applied, Called, Changed, Dims, Group, Multiplied, Output, Plan, Step, Written, plan_of
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.types import dim_of
from tessera.ir.passes import PassRunner, clone
from tessera.ir.verifying import verify
from tessera.numerics.dtypes import BY_NAME
from tessera.runtime.forking import compiling
from tessera.schedule.fuse.groups import GroupPass


def graph_of(module: ModuleOp) -> GraphOp:
    """Return the graph of a module."""
    return next(op for op in module.ops if isinstance(op, GraphOp))


def cut(module: ModuleOp) -> ModuleOp:
    """Return a copy of a graph that is cut into groups."""
    copy = clone(module)
    GroupPass().apply(copy)
    verify(copy)
    return copy


def planned(
    module: ModuleOp,
    contiguous: Sequence[bool],
    hints: Mapping[str, int],
    loose: Mapping[str, Sequence[bool]],
    changing: Mapping[str, int],
) -> tuple[Plan, str]:
    """Return what a graph does when it runs, and where that came from: `compiled` or `disk cache`.

    Args:
        module: holds the graph, which is left as it is.
        contiguous: as for `plan_of`, like the others.
        hints: sizes of the symbols at the first call.
        loose: how results of calls lie.
        changing: how many arrays calls overwrite.
    """
    folder = os.environ.get("TESSERA_DUMP_DIR")  # then the passes must run
    disk = None if folder else disk_cache()
    if disk is None:
        copy = _dumped(module, Path(folder)) if folder else cut(module)
        return plan_from(as_data(plan_of(graph_of(copy), contiguous, hints, loose, changing))), "compiled"
    key = key_of(disk.compiler_hash(), module, contiguous, hints, loose, changing)
    found = disk.find_graph(key)
    if found is not None:
        return plan_from(json.loads(found)), "disk cache"
    with compiling():
        made = as_data(plan_of(graph_of(cut(module)), contiguous, hints, loose, changing))
    disk.store_graph(key, json.dumps(made, separators=(",", ":")).encode())
    # As a later process reads it, so that the kernels have the keys that it looks for.
    return plan_from(made), "compiled"


def key_of(
    compiler: str,
    module: ModuleOp,
    contiguous: Sequence[bool],
    hints: Mapping[str, int],
    loose: Mapping[str, Sequence[bool]],
    changing: Mapping[str, int],
) -> str:
    """Return the key of a plan.

    Args:
        compiler: stands for the compiler.
        module: as for `planned`, like the others.
        contiguous: how the arguments lie.
        hints: sizes of the symbols.
        loose: how results of calls lie.
        changing: how many arrays calls overwrite.
    """
    lies = sorted((name, [*one]) for name, one in loose.items())
    facts = [[*map(bool, contiguous)], sorted(hints.items()), lies, sorted(changing.items())]
    return sha256("\0".join([compiler, json.dumps(facts), *_lines(graph_of(module))]).encode()).hexdigest()


def _dumped(module: ModuleOp, folder: Path) -> ModuleOp:
    """Return a graph that is cut, and write it as it was and is."""
    runner = PassRunner(dump=folder)
    copy = runner.transform(module, "graph", "trace", clone)
    runner.run(copy, "graph", [GroupPass()])
    return copy


def _lines(graph: GraphOp) -> Iterator[str]:
    """Yield texts that say all of a graph but where it was written and how its values are called."""
    numbers: dict[SSAValue, int] = {}
    types: dict[Attribute, str] = {}
    yield from _block(graph.sym_name.data, graph.body.block, numbers, types)


def _block(name: str, block: Block, numbers: dict[SSAValue, int], types: dict[Attribute, str]) -> Iterator[str]:
    def numbered(values: Sequence[SSAValue]) -> str:
        found: list[str] = []
        for value in values:
            numbers[value] = len(numbers)
            if value.type not in types:
                types[value.type] = str(value.type)
            found.append(types[value.type])
        return ";".join(found)

    yield f"{name}({numbered(block.args)})"
    for op in block.ops:
        facts = [f"{key}={value}" for each in (op.properties, op.attributes) for key, value in sorted(each.items())]
        operands = ",".join(str(numbers[value]) for value in op.operands)
        yield f"{op.name}({operands}) {' '.join(facts)} -> {numbered(op.results)}"
        for region in op.regions:
            for inner in region.blocks:
                yield from _block("block", inner, numbers, types)
        yield "end"


# Plans as JSON


def as_data(plan: Plan) -> Any:
    """Return a plan as lists, numbers and texts."""
    return [[_step(step) for step in plan.steps], plan.gone, plan.count, plan.results]


def plan_from(data: Any) -> Plan:
    """Return the plan that `as_data` was given."""
    steps, gone, count, results = data
    return Plan(tuple(map(_step_from, steps)), tuple(map(tuple, gone)), count, tuple(results))


def _texts(dims: Dims) -> list[str]:
    return [str(dim) for dim in dims]


def _dims(texts: Sequence[str]) -> Dims:
    return tuple(map(dim_of, texts))


def _step(step: Step) -> Any:
    match step:
        case Multiplied():
            whole, dims = _texts(step.whole), _texts(step.dims)
            numbers = step.left, step.right, step.product, whole, step.is_wanted, step.seen, dims, step.source
            rest = None if step.rest is None else _step(step.rest)
            maps = None if step.rest is None else _step(step.maps)
            return ["product", *numbers, str(step.terms), _step(step.group), maps, rest]
        case Group():
            outputs = [[o.number, _texts(o.whole), o.dtype.name, _texts(o.dims), str(o.first)] for o in step.outputs]
            dtypes = [dtype.name for dtype in step.dtypes]
            return ["group", step.name, step.text, step.shape.as_data(), dtypes, step.inputs, outputs]
        case Called():
            types = [[_texts(dims), dtype.name] for dims, dtype in step.types]
            return ["call", step.callee, step.operands, step.goals, step.lies, types]
        case Applied():
            sizes = _texts(step.dims), _texts(step.starts)
            return ["apply", step.kind, step.operands, step.goal, *sizes, step.numbers, step.fn]
        case Changed():
            return ["change", step.callee, step.operands, step.goals, step.in_place]
        case Written():
            return ["write", step.target, step.value]


def _group_from(data: Any) -> Group:
    _, name, text, shape, dtypes, inputs, outputs = data
    made = tuple(Output(n, _dims(whole), BY_NAME[t], _dims(dims), dim_of(at)) for n, whole, t, dims, at in outputs)
    return Group(name, text, Shape.from_data(shape), tuple(BY_NAME[t] for t in dtypes), tuple(inputs), made)


def _step_from(data: Any) -> Step:
    kind, *rest = data
    if kind == "group":
        return _group_from(data)
    if kind == "product":
        left, right, product, whole, is_wanted, seen, dims, source, terms, group, maps, rest = rest
        first = left, right, product, _dims(whole), is_wanted, seen, _dims(dims), source, dim_of(terms)
        own = _group_from(group)
        return Multiplied(*first, own, own if rest is None else _group_from(maps), rest and _group_from(rest))
    if kind == "call":
        callee, operands, goals, lies, types = rest
        made = tuple((_dims(dims), BY_NAME[dtype]) for dims, dtype in types)
        return Called(callee, tuple(operands), tuple(goals), tuple(lies), made)
    if kind == "change":
        callee, *places = rest
        return Changed(callee, *map(tuple, places))
    if kind == "write":
        return Written(*rest)
    name, operands, goal, dims, starts, numbers, fn = rest
    return Applied(name, tuple(operands), goal, _dims(dims), _dims(starts), tuple(numbers), fn)
