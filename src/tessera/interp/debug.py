"""Device print and assert."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from tessera.interp.machine import Machine, handles
from tessera.interp.values import dtype_at
from tessera.ir.tile.debug import AssemblyOp, AssertOp, PrintOp


def _texts(value: Any, operand: SSAValue) -> list[str]:
    """Return the text of each element: `%g` for floats and `%d` for the others, which any backend can."""
    flat = np.asarray(value).ravel()
    is_float = dtype_at(operand.type).is_float
    return [f"{float(x):g}" if is_float else str(int(x)) for x in flat]


@handles(PrintOp)
def _print(op: PrintOp, machine: Machine) -> None:
    columns = [_texts(machine.get(arg), arg) for arg in op.args]
    lines = max((len(column) for column in columns), default=1)
    parts = op.format.data.split("{}")
    for line in range(lines):
        values = [column[line % len(column)] for column in columns]
        text = parts[0] + "".join(value + part for value, part in zip(values, parts[1:], strict=True))
        machine.out.write(text + "\n")


@handles(AssemblyOp)
def _assembly(op: AssemblyOp, machine: Machine) -> None:
    """Do nothing: it acts on a machine that this is not."""


@handles(AssertOp)
def _assert(op: AssertOp, machine: Machine) -> None:
    failed = ~np.asarray(machine.get(op.condition))
    if failed.any():
        raise machine.fault(op, "assertion-failed", op.message.data, np.argwhere(failed)[0])
