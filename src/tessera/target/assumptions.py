"""What a kernel's `ts.assume` says, checked at each call before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tessera.errors import CallError, Frame, Location
from tessera.target.extents import Extent, evaluate, leaves
from tessera.target.schema import anything, many, text, whole, wrong


def check_assumption(
    kernel: str,
    condition: Extent,
    location: Location | None,
    names: Sequence[tuple[str, Sequence[str]]],
    sizes: Any,
    scalars: Any,
) -> None:
    """Check a condition for the arguments of one call.

    Args:
        kernel: the kernel's name.
        condition: an extent, not 0 where the assumption holds.
        location: where it stands in the source.
        names: `names[arg]` is the name of an argument, and the texts of its dimensions.
        sizes: as for `evaluate`.
        scalars: likewise.

    Raises:
        CallError: `assumption` where it does not hold, naming the sizes and scalars it depends on.
        ArtifactError: as `evaluate`.
    """
    if evaluate(condition, sizes, scalars):
        return
    found: dict[str, int] = {}
    for kind, arg, *axis in leaves(condition):
        if kind == "scalar":
            found[names[arg][0]] = int(scalars[arg])
        else:
            found[names[arg][1][axis[0]]] = int(sizes[arg][axis[0]])
    raise CallError(
        f"{kernel} assumes what does not hold for {', '.join(f'{name} = {value}' for name, value in found.items())}",
        code="assumption",
        location=location,
        help="pass arguments for which it holds, or take ts.assume out of the kernel",
    )


_PLACE = (text, whole(1), whole(0), whole(0), text)


def place_of(where: str, value: Any) -> Sequence[Any]:
    """Check that a value from a file is what `recorded` writes."""
    parts = cast("list[Any]", many(anything)(where, value))
    if parts and len(parts) != len(_PLACE):
        raise wrong(where, f"is {value!r:.60}, no place in a file")
    return [check(where, part) for check, part in zip(_PLACE, parts, strict=False)]


def recorded(location: Location | None) -> list[Any]:
    """Return a place in the source as data; its callers are left out."""
    if location is None:
        return []
    frame = location.frame
    return [frame.file, frame.line, frame.column, frame.end_column, frame.function]


def location_of_record(data: Sequence[Any]) -> Location | None:
    """Return the place that `recorded` wrote down."""
    return Location(Frame(*data)) if data else None
