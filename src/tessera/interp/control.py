"""Kernels, grids, sizes and structured control flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, product
from typing import Any

import numpy as np
from xdsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp

from tessera.interp.between import watched
from tessera.interp.machine import Machine, handles
from tessera.interp.stream import run_shared
from tessera.interp.turns import Turns, run_program, waiting_loops
from tessera.interp.values import Cluster, Program, Role, Tensor
from tessera.ir import decisions
from tessera.ir.locations import location_of
from tessera.ir.tile.cluster import ClusterWaitOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.stream import ShareOp
from tessera.ir.tile.structure import AssumeOp, DimOp, GridOp, KernelOp, MisalignmentOp, ReturnOp, StrideOp
from tessera.ir.walking import ops_in
from tessera.target.assumptions import check_assumption
from tessera.target.divisors import WIDEST

TILES = 5
"""Tiles that a program has where groups of consumers share them: an odd number, and more than one for each."""


@handles(DimOp)
def _dim(op: DimOp, machine: Machine) -> Any:
    tensor: Tensor = machine.get(op.tensor)
    return np.int64(tensor.array.shape[op.axis.data])


@handles(StrideOp)
def _stride(op: StrideOp, machine: Machine) -> Any:
    tensor: Tensor = machine.get(op.tensor)
    array, axis = tensor.array, op.axis.data
    while axis < array.ndim - 1 and array.shape[axis] == 1:  # as in an array without gaps
        axis += 1
    if array.shape[axis] == 1:
        return np.int64(1)
    behind = array.shape[axis] if axis > op.axis.data else 1
    return np.int64(array.strides[axis] // array.itemsize * behind)


@handles(AssumeOp)
def _assume(op: AssumeOp, machine: Machine) -> None:
    kernel = op.parent_op()
    assert isinstance(kernel, KernelOp)
    values = machine.all(kernel.body.block.args)
    sizes = [value.array.shape if isinstance(value, Tensor) else () for value in values]
    names = [(info.name, info.dims) for info in kernel.infos]
    check_assumption(machine.kernel, op.extent, location_of(op), names, sizes, values)


@handles(MisalignmentOp)
def _misalignment(op: MisalignmentOp, machine: Machine) -> Any:
    """Compute as if the tensor began at a multiple of 16 bytes: no result depends on it."""
    tensor: Tensor = machine.get(op.tensor)
    array = tensor.array
    at = sum(int(offset) * stride for offset, stride in zip(machine.all(op.offsets), array.strides, strict=True))
    return np.int64(at % WIDEST // array.itemsize)


@handles(ReturnOp)
def _return(op: ReturnOp, machine: Machine) -> None:
    machine.returned = machine.all(op.tensors)


@handles(GridOp)
def _grid(op: GridOp, machine: Machine) -> None:
    if op.guard is not None and int(machine.get(op.guard)) == 0:
        return
    extents = [int(extent) for extent in machine.all(op.extents)]
    axes = [range(0, extent, block) for extent, block in zip(extents, op.block_sizes, strict=True)]
    programs = list(product(*axes))
    share = next((inner for inner in op.body.block.ops if isinstance(inner, ShareOp)), None)
    if share is not None:
        run_shared(op, machine, programs, share)
        return
    if machine.order is not None:
        machine.order.shuffle(programs)
    outer = machine.program
    ranks = decisions.CLUSTER.of(op) or 1
    groups = _groups(op)
    started = _started(_shares(op, programs, machine), ranks, groups)
    inner = ops_in(op)
    loops, meets = waiting_loops(inner), any(isinstance(one, ClusterWaitOp) for one in inner)
    with watched(op, inner, machine, len(programs) * ranks * groups):
        if loops or meets:
            machine.turns = Turns(machine, loops, meets)
            machine.turns.run(op, started)
            machine.turns = None
        else:
            for program in started:
                machine.program = program
                run_program(op, machine)
    machine.program = outer


def _started(shares: Sequence[Sequence[tuple[int, ...]]], ranks: int, groups: int) -> Iterator[Program]:
    """Yield the programs of a grid, each before it runs, in the order in which they start."""
    number = count()
    for tiles, group in product(shares, range(groups)):
        partials: dict[int, tuple[Any, ...]] = {}
        cluster = Cluster(ranks)
        for rank in reversed(range(ranks)):  # the first of a cluster needs the others' partial sums
            role = Role(group=group)
            yield Program(
                tiles[0], tiles, rank=rank, partials=partials, cluster=cluster, number=next(number), role=role
            )


def _groups(op: GridOp) -> int:
    """Return how many programs divide the rows of a tile: as many as groups of consumers, before there are roles."""
    parted = any(isinstance(inner, RolesOp) for inner in op.body.block.ops)
    return 1 if parted else decisions.ROW_GROUPS.of(op) or 1


def _shares(op: GridOp, tiles: list[tuple[int, ...]], machine: Machine) -> list[list[tuple[int, ...]]]:
    """Return the tiles of each program: one, or several where groups of consumers take them in turn."""
    if not any(isinstance(inner, RolesOp) and inner.groups.data > 1 for inner in op.body.block.ops):
        return [[tile] for tile in tiles]
    shares: list[list[tuple[int, ...]]] = []
    while tiles:
        count = TILES if machine.order is None else int(machine.order.integers(1, TILES + 1))
        shares.append(tiles[:count])
        tiles = tiles[count:]
    return shares


@handles(ForOp)
def _for(op: ForOp, machine: Machine) -> Any:
    lower, upper, step = (machine.get(value) for value in (op.lb, op.ub, op.step))
    if step <= 0:
        raise machine.fault(op, "bad-step", f"a loop's step is positive, got {step}")
    carried = machine.all(op.iter_args)
    for position in range(int(lower), int(upper), int(step)):
        end = machine.run(op.body.block, (type(lower)(position), *carried))
        carried = machine.all(end.operands) if end is not None else ()
    return _results(carried)


@handles(IfOp)
def _if(op: IfOp, machine: Machine) -> Any:
    region = op.true_region if machine.get(op.cond) else op.false_region
    block = region.first_block
    end = None if block is None else machine.run(block, ())
    return _results(machine.all(end.operands) if end is not None else ())


@handles(WhileOp)
def _while(op: WhileOp, machine: Machine) -> Any:
    carried = machine.all(op.arguments)
    for turn in count():
        condition = machine.run(op.before_region.block, carried)
        assert isinstance(condition, ConditionOp)
        passed = machine.all(condition.args)
        if not machine.get(condition.condition):
            return _results(passed)
        end = machine.run(op.after_region.block, passed)
        before, carried = carried, machine.all(end.operands) if end is not None else ()
        if machine.turns is not None:
            machine.turns.after_iteration(op, turn, before, carried)


def _results(values: tuple[Any, ...]) -> Any:
    """Return the values as a handler gives them: alone when there is one."""
    return values[0] if len(values) == 1 else values
