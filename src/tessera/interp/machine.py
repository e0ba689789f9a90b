"""The machine that executes ops: a table of handlers by op class, and the values of the running program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import numpy as np
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from tessera.data import dataclass
from tessera.errors import CompilerFault, DeviceError
from tessera.interp.values import Program
from tessera.ir.locations import location_of
from tessera.ir.traits import has_trait

if TYPE_CHECKING:
    from tessera.interp.turns import Turns

OpT = TypeVar("OpT", bound=Operation)
Handler = Callable[[Any, "Machine"], Any]
"""Executes one op: returns its only result, a tuple of its results, or None when it has none."""

HANDLERS: dict[type[Operation], Handler] = {}


def handles(
    *classes: type[Operation],
) -> Callable[[Callable[[OpT, Machine], Any]], Callable[[OpT, Machine], Any]]:
    """Register the decorated function as the handler of op classes."""

    def register(function: Callable[[OpT, Machine], Any]) -> Callable[[OpT, Machine], Any]:
        for cls in classes:
            if cls in HANDLERS:
                raise CompilerFault(f"two handlers for {cls.name}")
            HANDLERS[cls] = function
        return function

    return register


@dataclass(eq=False, slots=True)
class Machine:
    """Executes blocks of ops.

    Args:
        kernel: name of the kernel, for messages.
        checks: whether initialisation and races are checked.
        out: where device prints go.
        order: gives the order in which a grid's programs run, from their number; None for ascending.
        programs: how many programs a launch starts that shares out the steps of its tiles.
        profile: the numerics profile.
        values: the value of every SSA value computed so far.
        program: the running program.
        returned: the tensors that the kernel returned.
        turns: the programs of the grid that runs, where they may wait for each other.
    """

    kernel: str
    checks: bool
    out: TextIO
    order: np.random.Generator | None = None
    programs: int = 4
    profile: str = "fast"
    values: dict[SSAValue, Any] = field(default_factory=dict[SSAValue, Any])
    program: Program = field(default_factory=Program)
    returned: tuple[Any, ...] = ()
    turns: Turns | None = None

    def get(self, value: SSAValue) -> Any:
        """Return the run-time value of `value`."""
        return self.values[value]

    def all(self, values: Sequence[SSAValue]) -> tuple[Any, ...]:
        """Return the run-time value of each of `values`."""
        return tuple(self.values[value] for value in values)

    def maybe(self, value: SSAValue | None) -> Any:
        """Return the run-time value of an optional operand, or None."""
        return None if value is None else self.values[value]

    def run(self, block: Block, arguments: Sequence[Any]) -> Operation | None:
        """Execute a block and return its terminator (not executed), if it has one."""
        self.values.update(zip(block.args, arguments, strict=True))
        for op in block.ops:
            if type(op) not in HANDLERS and has_trait(op, IsTerminator):
                return op
            self.step(op)
        return None

    def step(self, op: Operation) -> None:
        """Execute one op."""
        handler = HANDLERS.get(type(op))
        if handler is None:
            raise CompilerFault(f"the interpreter has no handler for {op.name}", location=location_of(op))
        results = handler(op, self)
        if len(op.results) == 1:
            self.values[op.results[0]] = results
        elif op.results:
            self.values.update(zip(op.results, results, strict=True))

    def fault(
        self, op: Operation, code: str, message: str, element: Sequence[int] = (), help: str | None = None
    ) -> DeviceError:
        """Return the error of a kernel that misbehaved at `op`, in `element` of its tile."""
        where = [f"kernel {self.kernel}"]
        if self.program.offsets:
            where.append(f"program at {_numbers(self.program.offsets)}")
        if self.program.role.name:
            where.append(self.program.role.name)
        if len(element):
            where.append(f"element {_numbers(element)}")
        text = f"{op.name.rsplit('.', 1)[-1]}: {message} ({', '.join(where)})"
        return DeviceError(text, code=code, location=location_of(op), help=help)


def _numbers(values: Sequence[int]) -> str:
    return f"({', '.join(str(int(v)) for v in values)})"
