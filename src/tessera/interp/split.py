"""Sums that are split over the programs of a cluster.

The programs of a tile run one after the other, the first last: it alone waits for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.machine import Machine, handles
from tessera.ir.tile.cluster import ClusterRankOp
from tessera.ir.tile.split import AllocLinksOp, PartialSendOp, PartialSumOp


@handles(ClusterRankOp)
def _rank(_op: ClusterRankOp, machine: Machine) -> Any:
    return np.int64(machine.program.rank)


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
