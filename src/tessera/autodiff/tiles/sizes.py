"""How large the parameters of an adjoint are, and into how many parts the axes of its grids are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tessera.autodiff.tiles.arguments import Added, Axis, Size
from tessera.target.extents import evaluate

MOST_PARTS = 256
"""Parts of a grid: enough to keep a large GPU busy."""
MOST_ELEMENTS = 1 << 24
"""Elements of partial sums, where they are more than twice those of the tensor."""


def shapes_of(
    added: Sequence[Added], axes: Sequence[Axis], shapes: Sequence[Sequence[int] | None], scalars: Sequence[Any]
) -> list[tuple[int, ...]]:
    """Return the shape of each parameter that an adjoint has more than its kernel.

    They depend on sizes and numbers of the call alone, and so do the bits of what is added up.

    Args:
        added: the parameters.
        axes: the axes that are split.
        shapes: the shape of each parameter of the kernel, None for scalars.
        scalars: the value of each, None for tensors.
    """
    parts = _parts(added, axes, shapes, scalars)
    found: list[tuple[int, ...]] = []
    for one in added:
        leading = [_size(size, parts, shapes, scalars) for size in one.leading]
        found.append((*leading, *(shapes[one.of] or () if one.of >= 0 else ()), *one.then))
    return found


def _size(size: Size, parts: Mapping[tuple[int, int], int], shapes: Sequence[Any], scalars: Sequence[Any]) -> int:
    match size:
        case ["chunks", grid, axis]:
            return parts[grid, axis]
        case _:
            return evaluate(size, shapes, scalars)


def _parts(
    added: Sequence[Added], axes: Sequence[Axis], shapes: Sequence[Sequence[int] | None], scalars: Sequence[Any]
) -> dict[tuple[int, int], int]:
    """Return into how many parts each axis is split: as many as it has programs, within bounds on what sums take."""
    parts = {(one.grid, one.axis): max(min(evaluate(one.programs, shapes, scalars), MOST_PARTS), 1) for one in axes}
    for one in added:
        split = [(size[1], size[2]) for size in one.leading if size[0] == "chunks"]
        if one.of < 0 or not split:
            continue
        elements = max(prod(shapes[one.of] or ()), 1)
        most = min(max(MOST_ELEMENTS // elements, 2), MOST_PARTS)
        while prod(parts[axis] for axis in split) > most:
            longest = max(split, key=parts.__getitem__)
            parts[longest] = -(-parts[longest] // 2)
    return parts
