"""Lists the ops inside others, several times faster than xDSL's walks, which make three generators for each op."""

from __future__ import annotations

from xdsl.ir import Operation, Region


def ops_in(op: Operation) -> list[Operation]:
    """Return an op and those inside it, in program order."""
    found = [op]
    for region in op.regions:
        _collect(region, found)
    return found


def ops_inside(region: Region) -> list[Operation]:
    """Return the ops of a region and of the regions inside it, in program order."""
    found: list[Operation] = []
    _collect(region, found)
    return found


def _collect(region: Region, found: list[Operation]) -> None:
    block = region.first_block
    while block is not None:
        op = block.first_op
        while op is not None:
            found.append(op)
            for inner in op.regions:
                _collect(inner, found)
            op = op._next_op  # pyright: ignore[reportPrivateUsage]
        block = block.next_block
