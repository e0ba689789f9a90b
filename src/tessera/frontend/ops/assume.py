"""Compiles `ts.assume`: what the host checks at each call, and what is known of sizes and scalars from then on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Any

from tessera.errors import CallError, LanguageError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import boolean
from tessera.frontend.expressions import is_runtime
from tessera.frontend.registry import compiles
from tessera.frontend.values import show
from tessera.ir.tile.extents import NotOnHost, host_extent
from tessera.ir.tile.structure import ArgInfo, AssumeOp, KernelOp
from tessera.target.extents import Extent

MOST_MULTIPLE = 1 << 31
"""Larger divisors say nothing more about accesses."""


@compiles(tile.assume)
def _assume(b: Builder, condition: Any) -> None:
    if b.in_loop or b.predicate is not None:
        raise LanguageError(
            "assume inside a loop or a branch",
            code="bad-assumption",
            help="it is said of the whole call: write it at the kernel's start",
        )
    if not is_runtime(condition):
        if not isinstance(condition, bool):
            raise LanguageError(
                f"assume of {show(condition)}, which is not bool",
                code="bad-assumption",
                help="compare it: ts.assume(n % 16 == 0)",
            )
        if not condition:
            raise CallError(
                f"{b.signature.name} assumes what does not hold for the constants and sizes it is compiled for",
                code="assumption",
                help="pass arguments for which it holds, or take ts.assume out of the kernel",
            )
        return
    try:
        extent = host_extent(boolean(b, condition, "the condition of assume"))
    except NotOnHost:
        raise LanguageError(
            "assume of what the host does not know before the kernel runs",
            code="bad-assumption",
            help="compute it from sizes, integer or bool arguments and constants; ts.tile.device_assert checks others",
        ) from None
    op = AssumeOp(extent)
    op.location = b.loc()
    b.assumptions.append(op)


def apply_assumptions(kernel: KernelOp, assumptions: Sequence[AssumeOp], contiguous: Sequence[bool]) -> None:
    """Write on a kernel's arguments what its assumptions say about divisors and bounds.

    Args:
        kernel: the kernel.
        assumptions: what it assumes.
        contiguous: whether the strides of each argument follow from its sizes.
    """
    if not assumptions:
        return
    infos = list(kernel.infos)
    for op in assumptions:
        for fn, leaf, number in _facts(op.extent):
            infos = _known_divisor(infos, leaf, number) if fn == "multiple" else _bounded(infos, leaf, fn, number)
    infos = [_with_strides(info) if follows else info for info, follows in zip(infos, contiguous, strict=True)]
    kernel.properties["arg_info"] = type(kernel.arg_info)([info.to_attr() for info in infos])


def _facts(extent: Extent) -> Iterator[tuple[str, Extent, int]]:
    """Yield what a condition says: `multiple`, `low` or `high` of a size or scalar, with a number."""
    match extent:
        case ["minimum", left, right]:  # `and`
            yield from _facts(left)
            yield from _facts(right)
        case ["eq", ["mod", leaf, ["const", divisor]], ["const", 0]] if _is_leaf(leaf) and divisor > 0:
            yield "multiple", leaf, divisor
        case ["eq", leaf, ["const", number]] if _is_leaf(leaf):
            yield "low", leaf, number
            yield "high", leaf, number
            yield "multiple", leaf, abs(number)
        case ["lt" | "le" as fn, leaf, ["const", number]] if _is_leaf(leaf):
            yield "high", leaf, number - (fn == "lt")
        case ["lt" | "le" as fn, ["const", number], leaf] if _is_leaf(leaf):
            yield "low", leaf, number + (fn == "lt")
        case _:
            pass


def _is_leaf(extent: Extent) -> bool:
    return extent[0] in ("size", "scalar")


def _known_divisor(infos: list[ArgInfo], leaf: Extent, number: int) -> list[ArgInfo]:
    if not 0 < number <= MOST_MULTIPLE:
        return infos
    arg: int = leaf[1]
    if leaf[0] == "scalar":
        return _changed(infos, arg, multiple=_both(infos[arg].multiple, number))
    axis: int = leaf[2]
    name = infos[arg].dims[axis]
    return [
        replace(
            info,
            dim_div=tuple(
                _both(known, number) if dim == name else known
                for dim, known in zip(info.dims, info.dim_div, strict=True)
            ),
        )
        for info in infos
    ]


def _with_strides(info: ArgInfo) -> ArgInfo:
    """Return what is known of a contiguous tensor once divisors of its sizes are."""
    following = [prod(info.dim_div[axis + 1 :]) for axis in range(len(info.dims))]
    return replace(info, stride_div=tuple(map(_both, info.stride_div, following)))


def _both(known: int, number: int) -> int:
    """Return what numbers are multiples of that are multiples of both, or the old one where that is very large."""
    found = known * number // gcd(known, number)
    return found if found <= MOST_MULTIPLE else known


def _bounded(infos: list[ArgInfo], leaf: Extent, end: str, number: int) -> list[ArgInfo]:
    if leaf[0] == "size" or not -(2**63) <= number < 2**63:
        return infos  # bounds of sizes make no code better
    arg: int = leaf[1]
    known = infos[arg].low if end == "low" else infos[arg].high
    better = max if end == "low" else min
    return _changed(infos, arg, **{end: number if known is None else better(known, number)})


def _changed(infos: list[ArgInfo], arg: int, **fields: Any) -> list[ArgInfo]:
    return [replace(info, **fields) if place == arg else info for place, info in enumerate(infos)]
