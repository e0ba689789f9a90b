"""Scratch memory of a program: buffers never alive together share bytes."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Attribute, SSAValue

from tessera.data import dataclass
from tessera.errors import ResourceError
from tessera.ir.locations import from_loc
from tessera.ir.target.memory import AllocOp
from tessera.ir.target.types import BufferType
from tessera.ir.types import dtype_of
from tessera.lower.vector.nodes import Stored
from tessera.lower.vector.writer import Writer

ALIGNMENT = 64
CONFLICT_BYTES = 1024
"""Rows at a multiple of this distance fall into few cache sets; one more vector between them avoids it."""


LIMIT_BYTES = 256 << 20
"""Scratch memory that one worker may need; a tile that takes more is a mistake, and would exhaust the machine."""


@dataclass
class _Lifetime:
    op: AllocOp
    start: int
    end: int
    size: int


class Scratch:
    """Makes buffers and, at the end, gives them their offsets.

    Args:
        writer: where the allocations go.
        lanes: elements of a chunk, to which rows are padded.
    """

    def __init__(self, writer: Writer, lanes: int):
        self._writer = writer
        self._lanes = lanes
        self._lifetimes: dict[SSAValue, _Lifetime] = {}

    def new(self, shape: Sequence[int], element: Attribute, start: int, *, dense: bool = False) -> Stored:
        """Return a new buffer; rows are padded to whole chunks unless `dense`."""
        pitch = shape[-1] if dense else self._pitch(shape, element)
        op = AllocOp(BufferType.of(shape, element, "scratch", pitch=pitch))
        root = self._writer.at_entry(op)
        # A chunk may reach past the last row of a dense buffer, hence one more chunk.
        size = op.result.type.size_bytes + self._lanes * dtype_of(element).bytes  # pyright: ignore
        size = -(-size // ALIGNMENT) * ALIGNMENT
        self._lifetimes[root] = _Lifetime(op, start, start, size)
        return Stored(tuple(shape), element, root, root)

    def _pitch(self, shape: Sequence[int], element: Attribute) -> int:
        pitch = -(-shape[-1] // self._lanes) * self._lanes
        rows = len(shape) > 1 and shape[-2] > 1
        if rows and pitch * dtype_of(element).bytes % CONFLICT_BYTES == 0:
            pitch += self._lanes
        return pitch

    def start_of(self, root: SSAValue) -> int:
        """Return the position at which a buffer came to life."""
        return self._lifetimes[root].start

    def touch(self, root: SSAValue, end: int) -> None:
        """Note that a buffer is in use up to a position."""
        lifetime = self._lifetimes[root]
        lifetime.end = max(lifetime.end, end)

    def keep(self, root: SSAValue) -> None:
        """Keep a buffer for the program's whole life."""
        lifetime = self._lifetimes[root]
        lifetime.start, lifetime.end = 0, 1 << 60

    def place(self) -> None:
        """Give every buffer its offset: largest first, at the lowest place free during its life.

        Raises:
            ResourceError: `scratch-limit` when the tiles kept at one time take too much memory.
        """
        placed: list[_Lifetime] = []
        for lifetime in sorted(self._lifetimes.values(), key=lambda each: (-each.size, each.start)):
            rivals = [p for p in placed if p.start <= lifetime.end and lifetime.start <= p.end]
            offset = 0
            for rival in sorted(rivals, key=lambda each: each.op.offset.data):
                if rival.op.offset.data >= offset + lifetime.size:
                    break
                offset = max(offset, rival.op.offset.data + rival.size)
            if offset + lifetime.size > LIMIT_BYTES:
                raise _too_large(lifetime)
            lifetime.op.offset = IntAttr(offset)
            placed.append(lifetime)


def _too_large(lifetime: _Lifetime) -> ResourceError:
    type_ = lifetime.op.result.type
    assert isinstance(type_, BufferType)
    shape = "x".join(str(size) for size in type_.shape)
    return ResourceError(
        f"the tiles of one program take more than {LIMIT_BYTES >> 20} MiB of scratch memory; one of them is "
        f"{shape} x {type_.dtype}, {lifetime.size >> 20} MiB",
        code="scratch-limit",
        location=from_loc(lifetime.op.location),
        help="use smaller tiles",
    )
