"""Looks at each value that the interpreter computes: it has the dtype and shape that its op's result says."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from xdsl.ir import Operation, SSAValue

from tessera.interp.machine import Machine
from tessera.interp.values import dtype_at
from tessera.ir.tile.types import TileType


@contextmanager
def of_their_types() -> Generator[None]:
    """Refuse values of other types."""
    step = Machine.step

    def checked(machine: Machine, op: Operation) -> None:
        step(machine, op)
        for result in op.results:
            _check(op, result, machine.values.get(result))

    with mock.patch.object(Machine, "step", checked):
        yield


def _check(op: Operation, result: SSAValue, value: object) -> None:
    if isinstance(result.type, TileType):
        assert isinstance(value, np.ndarray), f"{op.name} gives {type(value).__name__} for {result.type}"
        assert value.shape == result.type.shape, f"{op.name} gives {value.shape} for {result.type}"
    if isinstance(value, np.ndarray | np.generic):
        assert value.dtype == dtype_at(result.type).numpy(), f"{op.name} gives {value.dtype} for {result.type}"
