"""Tiles whose steps the programs of a launch share out, and the partial sums that they leave for each other.

What leaves partial sums waits for nothing, so that it runs first; whatever is missing by the time that the owners of
tiles ask for it would never come. What is left in the end, the next launch would take for its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.interp.elementwise import apply
from tessera.interp.machine import Machine, handles
from tessera.interp.values import Part, Program, Share, dtype_at
from tessera.ir import decisions
from tessera.ir.tile.stream import CollectSumsOp, LeaveSumsOp, ShareOp, sharers_of
from tessera.ir.tile.structure import GridOp


@dataclass(frozen=True, slots=True)
class _Item:
    """The part of a tile that a program does."""

    tile: int
    number: int
    share: Share | Part


def run_shared(op: GridOp, machine: Machine, tiles: list[tuple[int, ...]], share: ShareOp) -> None:
    """Run the programs of a launch that share out steps; `tiles` are the places of its tiles, in order."""
    most = decisions.SPLIT_SUMS.of(op)
    if most is None:
        steps = max(int(_evaluated(share.steps, op.body.block, machine)), 1)
        items = _items(len(tiles), machine.programs, steps, sharers_of(op))
    else:
        items = _parts(len(tiles), _sharers(most, machine))
    if machine.order is not None:
        machine.order.shuffle(items)  # pyright: ignore[reportArgumentType]
    outer = machine.program
    slots: dict[int, tuple[Any, ...]] = {}
    for item in sorted(items, key=lambda item: item.share.owner):
        place = tiles[item.tile]
        machine.program = Program(place, rank=item.number, partials=slots, share=item.share)
        machine.run(op.body.block, [np.int64(offset) for offset in place])
    machine.program = outer
    if slots:
        names = ", ".join(map(str, sorted(slots)))
        message = f"nobody collects the partial sums of program {names}: the next launch takes them for its own"
        raise machine.fault(op, "race", message)


def _items(tiles: int, programs: int, steps: int, sharers: int) -> list[_Item]:
    """Return what each program does: whole tiles in all full rounds but the last, then equal parts of the others.

    Where there are two programs or more for each tile, equally many share it.
    """
    rounds, more = divmod(tiles, programs)
    whole = tiles if more == 0 else max(rounds - 1, 0) * programs
    items = [_Item(tile, tile % programs, Share(0, steps, True, 0)) for tile in range(whole)]
    # Position by position who does it: the reference for the arithmetic that GPUs do.
    left = tiles - whole
    crews, crew = (left, min(programs // left, sharers)) if 0 < 2 * left <= programs else (1, programs)
    each, extra = divmod(left * steps // crews, crew)
    doers = [
        number * crew + place for number in range(crews) for place in range(crew) for _ in range(each + (place < extra))
    ]
    for tile in range(whole, tiles):
        row = doers[(tile - whole) * steps : (tile - whole + 1) * steps]
        names = sorted(set(row))
        for name in names:
            first, last = row.index(name), steps - row[::-1].index(name)
            owner = last == steps
            items.append(_Item(tile, name, Share(first, last, owner, len(names) - 1 if owner else 0)))
    return items


def _sharers(most: int, machine: Machine) -> int:
    """Return how many programs share each tile: any number is right."""
    return min(most, machine.programs) if machine.order is None else int(machine.order.integers(1, most + 1))


def _parts(tiles: int, sharers: int) -> list[_Item]:
    """Return what each program does where equally many share each tile."""
    return [
        _Item(tile, tile * sharers + number, Part(number, sharers))
        for tile in range(tiles)
        for number in range(sharers)
    ]


def _share_of(part: Part, steps: int) -> Share:
    """Return a program's part of a loop; all steps in order, dealt out as evenly as can be."""
    doers = sorted(step % part.parts for step in range(max(steps, 0)))
    own = [step for step, doer in enumerate(doers) if doer == part.number]
    first, last = (own[0], own[-1] + 1) if own else (0, 0)
    return Share(first, last, part.owner, part.parts - 1 if part.owner else 0)


def _evaluated(value: SSAValue, block: Block, machine: Machine) -> Any:
    """Return what all programs compute alike, before any runs."""
    owner = value.owner
    if isinstance(owner, Operation) and owner.parent_block() is block:
        for operand in owner.operands:
            _evaluated(operand, block, machine)
        machine.step(owner)
    return machine.get(value)


@handles(ShareOp)
def _share(op: ShareOp, machine: Machine) -> Any:
    steps = int(machine.get(op.steps))
    share = machine.program.share or Share(0, max(steps, 1), True, 0)
    if isinstance(share, Part):
        share = _share_of(share, steps)
    return np.int64(share.first), np.int64(share.last), np.bool_(share.owner), np.int64(share.others)


@handles(LeaveSumsOp)
def _leave(op: LeaveSumsOp, machine: Machine) -> None:
    program = machine.program
    if program.rank in program.partials:
        raise machine.fault(op, "race", f"program {program.rank} leaves partial sums twice in one launch")
    program.partials[program.rank] = machine.all(op.partials)


@handles(CollectSumsOp)
def _collect(op: CollectSumsOp, machine: Machine) -> Any:
    program = machine.program
    totals = list(machine.all(op.partials))
    for back in range(1, int(machine.get(op.others)) + 1):
        number = program.rank - back
        if number not in program.partials:
            message = f"program {program.rank} waits for ever for the partial sums of program {number}"
            raise machine.fault(op, "deadlock", message)
        left = program.partials.pop(number)
        totals = [
            apply(fn, (total, part), dtype_at(value.type), machine.profile)
            for fn, total, part, value in zip(op.combining, totals, left, op.partials, strict=True)
        ]
    return totals[0] if len(totals) == 1 else totals
