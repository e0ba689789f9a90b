"""What the programs of a cluster do together: they meet, put scalars into each other's buffers, and split sums.

The programs of a split sum run one after the other, the first last: it alone waits for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.machine import Machine, handles
from tessera.interp.values import Shared, State
from tessera.ir.tile.cluster import ClusterArriveOp, ClusterPutOp, ClusterRankOp, ClusterWaitOp
from tessera.ir.tile.split import AllocLinksOp, PartialSendOp, PartialSumOp


@handles(ClusterRankOp)
def _rank(_op: ClusterRankOp, machine: Machine) -> Any:
    return np.int64(machine.program.rank)


@handles(ClusterArriveOp)
def _arrive(_op: ClusterArriveOp, machine: Machine) -> None:
    machine.program.arrivals += 1
    machine.program.cluster.arrived += 1
    if machine.turns is not None:
        machine.turns.changes += 1


@handles(ClusterWaitOp)
def _wait(op: ClusterWaitOp, machine: Machine) -> None:
    program = machine.program
    cluster = program.cluster
    while cluster.arrived < program.arrivals * cluster.programs:
        if machine.turns is None:
            raise machine.fault(op, "deadlock", "a program waits outside of a grid whose programs have clusters")
        machine.turns.wait(op)
    for (buffer, rank), value in cluster.put.items():
        shared: Shared = machine.get(buffer)
        shared.data[rank], shared.state[rank] = value, State.DEFINED


@handles(ClusterPutOp)
def _put(op: ClusterPutOp, machine: Machine) -> None:
    machine.program.cluster.put[op.buffer, machine.program.rank] = machine.get(op.value)


@handles(AllocLinksOp)
def _links(op: AllocLinksOp, _machine: Machine) -> Any:
    return op.ranks.data


@handles(PartialSendOp)
def _send(op: PartialSendOp, machine: Machine) -> None:
    program = machine.program
    if program.rank == 0 or program.rank in program.partials:
        raise machine.fault(op, "deadlock", f"program {program.rank} of the cluster waits for ever to be read")
    program.partials[program.rank] = machine.all(op.partials)


@handles(PartialSumOp)
def _sum(op: PartialSumOp, machine: Machine) -> Any:
    program, ranks = machine.program, machine.get(op.links)
    missing = [rank for rank in range(1, ranks) if rank not in program.partials]
    if program.rank or missing:
        names = ", ".join(map(str, missing or [program.rank]))
        raise machine.fault(op, "deadlock", f"no partial sum comes from program {names} of the cluster")
    totals = list(machine.all(op.partials))
    for rank in range(1, ranks):
        totals = [total + part for total, part in zip(totals, program.partials[rank], strict=True)]
    return totals[0] if len(totals) == 1 else totals
