"""Places shared buffers: bytes are used again once their buffer is dead.

Transient buffers of two groups of consumers are pairs, which all meet at one place: the first group's lie before it,
the second group's after it, so that no buffer of one group shares bytes with any of the other. Those of more groups
share bytes with none.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.target.memory import AllocOp, ViewOp
from tessera.ir.target.roles import RolesOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.types import BufferType
from tessera.ir.walking import ops_in

ALIGN = 1024
"""Bytes: the alignment of swizzled panels (eight rows of 128)."""


@dataclass
class _Life:
    """A buffer and the span of top-level ops in which it is used.

    A buffer that is not transient may be written without a barrier before, so that its bytes must be its own from the
    start; a transient one has a barrier before its first use, and transient ones are never in use together.
    """

    op: AllocOp
    first: int
    last: int
    offset: int = 0

    @property
    def size(self) -> int:
        assert isinstance(self.op.result.type, BufferType)
        return self.op.result.type.size_bytes

    @property
    def transient(self) -> bool:
        return self.op.transient is not None

    @property
    def groups(self) -> int:
        """For how many groups of consumers it is a transient buffer."""
        roles = self.op.parent_op()
        while roles is not None and not isinstance(roles, RolesOp):
            roles = roles.parent_op()
        return roles.groups.data if self.transient and roles is not None else 1

    def meets(self, other: _Life) -> bool:
        """Return whether the two may hold data at the same time."""
        if self.transient and other.transient and max(self.groups, other.groups) <= 2:
            return False
        return self.first <= other.last and other.first <= self.last


def place_shared(func: FuncOp) -> tuple[int, list[AllocOp]]:
    """Give each shared buffer its byte offset; return the bytes a program needs and the buffers."""
    lives = _lives(func)
    placed: list[_Life] = []
    largest: _Life | None = None
    for life in sorted(lives, key=lambda life: (life.transient, -life.size)):
        if life.groups == 2:
            if largest is not None:
                life.op.offset = IntAttr(largest.offset + (largest.size - life.size) // 2)
                continue
            largest = life
        taken = sorted((o.offset, o.offset + o.size) for o in placed if o.meets(life))
        for start, end in taken:
            if life.offset + life.size <= start:
                break
            life.offset = max(life.offset, -(-end // ALIGN) * ALIGN)
        life.op.offset = IntAttr(life.offset)
        placed.append(life)
    return max((life.offset + life.size for life in placed), default=0), [life.op for life in lives]


def _lives(func: FuncOp) -> list[_Life]:
    block = func.body.block
    position: dict[Operation, int] = {op: number for number, op in enumerate(block.ops)}

    def top(op: Operation) -> int:
        while op.parent_block() is not block:
            parent = op.parent_op()
            assert parent is not None
            op = parent
        return position[op]

    lives: list[_Life] = []
    for op in ops_in(func):
        if isinstance(op, AllocOp):
            uses = [top(use) for use in _uses(op.result)]
            first = top(op) if op.transient is not None else 0
            lives.append(_Life(op, first, max(uses, default=first)))
    return lives


def _uses(buffer: SSAValue) -> list[Operation]:
    """Return the ops that use a buffer or a view of it."""
    found: list[Operation] = []
    for use in buffer.uses:
        found.append(use.operation)
        if isinstance(use.operation, ViewOp):
            found += _uses(use.operation.result)
    return found
