"""Sizes of arguments and values of data that a check runs a kernel with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from random import Random
from typing import Any

from xdsl.dialects.scf import ForOp
from xdsl.ir import Attribute, Operation, SSAValue

from tessera.data import dataclass
from tessera.interp.elementwise import scalar
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.tile.shared import AllocSharedOp, SharedViewOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp, static_size
from tessera.ir.tile.types import TensorType
from tessera.ir.types import dtype_of, i1
from tessera.ir.walking import ops_in

_MOST_STAGES = 8
_USUAL_BLOCK = 64
_MOST_DRAWS = 32


@dataclass(eq=False, slots=True)
class Samples:
    """The sizes of a kernel's dimensions, such that its loops run for a few iterations, and values of data.

    Args:
        sizes: by the text of a dimension, else by the tensor's name and the axis.
        steps: how many iterations a loop over a dimension has at least: those in which a ring comes round.
    """

    kernel: KernelOp
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    steps: int = 0
    _pool: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        ops = ops_in(self.kernel)
        self.steps = _stages(ops) + 3
        near = {c + d for c in _compared(ops) for d in (-1.0, 0.0, 1.0)}
        self._pool = [0.0, 1.0, float(self.steps), *sorted(near - {0.0, 1.0})]
        for value, step in _stepped(ops):
            for dim, divisor in _dims_behind(value):
                name = self.name_of(dim)
                self.sizes[name] = max(self.sizes.get(name, 0), step * divisor * self.steps)

    def name_of(self, op: DimOp) -> str:
        """Return the name that sizes of one dimension share."""
        arguments = self.kernel.body.block.args
        info = self.kernel.infos[arguments.index(op.tensor)] if op.tensor in arguments else None
        text = info.dims[op.axis.data] if info is not None and op.axis.data < len(info.dims) else "?"
        return text if text != "?" else f"{info.name if info else ''}[{op.axis.data}]"

    def size(self, op: DimOp) -> int:
        """Return the size of a dimension."""
        assert isinstance(op.tensor.type, TensorType)
        known = static_size(op.tensor.type, op.axis.data)
        return self.sizes.get(self.name_of(op), _USUAL_BLOCK * self.steps) if known is None else known

    @property
    def draws(self) -> int:
        """How many values of data are worth drawing: each of the pool alone, then mixed."""
        return min(2 * len(self._pool), _MOST_DRAWS)

    def draw(self, type_: Attribute, draw: int, random: Random) -> Any:
        """Return a value of data: small, or near a number that the kernel compares with.

        Args:
            type_: its type.
            draw: which of the `draws` it is; the values of one run are alike, as one of them decides most often.
            random: draws one that differs, now and then, once each value has been had alone.
        """
        dtype = dtype_of(type_)
        if dtype.name == "bool":
            return scalar((draw + (random.random() < 0.25)) % 2, dtype)
        mixed = draw >= len(self._pool) and random.random() < 0.25
        drawn = random.choice(self._pool) if mixed else self._pool[draw % len(self._pool)]
        if dtype.is_float:
            return scalar(drawn, dtype)
        least = -(2.0 ** min(dtype.bits - 1, 31)) if dtype.kind == "int" else 0.0
        return scalar(int(min(max(drawn, least), 2.0 ** min(dtype.bits - 1, 31) - 1)), dtype)


def _stages(ops: list[Operation]) -> int:
    """Return how many stages the longest ring has."""
    viewed = {op.source for op in ops if isinstance(op, SharedViewOp)}
    rings = [op.result.type.shape[0] for op in ops if isinstance(op, AllocSharedOp) and op.result in viewed]
    return min(max(rings, default=1), _MOST_STAGES)


def _stepped(ops: list[Operation]) -> Iterator[tuple[SSAValue, int]]:
    """Return the ends that loops and grids run to, with their steps."""
    for op in ops:
        if isinstance(op, GridOp):
            yield from zip(op.extents, op.block_sizes, strict=True)
        elif isinstance(op, ForOp):
            step = constant_value(op.step)
            yield op.ub, int(step) if step is not None and step > 0 else _USUAL_BLOCK


def _dims_behind(value: SSAValue) -> Iterator[tuple[DimOp, int]]:
    """Return the sizes that a value is computed of, each with the number that they are divided by on the way."""
    seen: set[SSAValue] = set()
    work = [(value, 1)]
    while work:
        value, divisor = work.pop()
        op = value.owner
        if value in seen or not isinstance(op, Operation) or op.regions:
            continue
        seen.add(value)
        if isinstance(op, DimOp):
            yield op, divisor
        elif isinstance(op, ElementwiseOp) and op.fn.data == "floordiv":
            work.append((op.args[0], divisor * int(abs(constant_value(op.args[1]) or 1))))
        else:
            work += [(operand, divisor) for operand in op.operands]


def _compared(ops: list[Operation]) -> list[float]:
    """Return the constants that scalars are compared with."""
    found: set[float] = set()
    for op in ops:
        if isinstance(op, ElementwiseOp) and op.result.type == i1:
            numbers = (constant_value(arg.owner.source if isinstance(arg.owner, CastOp) else arg) for arg in op.args)
            found.update(float(number) for number in numbers if number is not None)
    return sorted(found)
