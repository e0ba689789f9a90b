"""Finds registers of warpgroup products in PTX that are used while the products still run.

LLVM does not know that `wgmma` goes on after its instruction. Where a wait's results have other registers than the
product, as those of sums that change places in a loop do, LLVM copies them before the wait, which is told to give what
it is given: then they are not what the product gives. Such kernels are written again, with copies behind all waits.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", `wgmma.mma_async`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import zip_longest

from tessera.data import dataclass
from tessera.errors import CompilerFault

_STARTS = "wgmma.mma_async"
_SUMS = re.compile(r"wgmma\.mma_async[.\w]*\s+\{([^}]*)\}")
_WAITS = re.compile(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)")
_REGISTER = re.compile(r"%\w+")
_LABEL = re.compile(r"(\$L\w+):")
_BRANCH = re.compile(r"(@\S+\s+)?bra(?:\.uni)?\s+(\$L\w+);")
_MOST_GROUPS = 8
"""Groups of products that are told apart: waits leave fewer."""

Flight = tuple[frozenset[str], ...]
"""Registers of products that run: those of each group, the oldest first, and last those of no group yet."""
_NONE: Flight = (frozenset(),)


@dataclass
class _Block:
    """Instructions without branches.

    Args:
        lines: the instructions.
        next: labels of the blocks that may follow, also of none in the function.
    """

    lines: list[str] = field(default_factory=list[str])
    next: list[str] = field(default_factory=list[str])


def check_products(ptx: str) -> None:
    """Check that no instruction uses accumulators between their product and the wait for it, in one block.

    Raises:
        CompilerFault: `products-in-flight`, with the instruction.
    """
    for block in _blocks(ptx).values():
        use = next(_uses(block, _NONE), "")
        if use:
            raise CompilerFault(f"accumulators are used while their product runs: {use}", code="products-in-flight")


def used_in_flight(ptx: str) -> str:
    """Return an instruction that uses accumulators between their product and the wait for it, empty if none does.

    Every path through a function counts, also those that its conditions exclude.
    """
    if _STARTS not in ptx:
        return ""
    blocks = _blocks(ptx)
    before = _before(blocks)
    return next((use for label, block in blocks.items() for use in _uses(block, before[label])), "")


def _blocks(text: str) -> dict[str, _Block]:
    """Return the blocks of all functions by label, which names its function too."""
    current = _Block()
    found = {"": current}
    open_ = True  # whether the next line can follow the one before it
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label is not None or not open_:
            name = label[1] if label is not None else f"behind {len(found)}"
            if open_:
                current.next.append(name)
            current = found[name] = _Block()
            open_ = True
        if (branch := _BRANCH.match(line.strip())) is not None:
            current.next.append(branch[2])
            if branch[1] is None:
                open_ = False
            else:  # where it does not branch, another block begins
                name = f"behind {len(found)}"
                current.next.append(name)
                current = found[name] = _Block()
        elif line.strip() in ("ret;", "exit;", "trap;", "}"):
            open_ = False
        else:
            current.lines.append(line)
    return found


def _before(blocks: dict[str, _Block]) -> dict[str, Flight]:
    """Return what may run where each block begins."""
    before, waiting = dict.fromkeys(blocks, _NONE), list(blocks)
    while waiting:
        label = waiting.pop()
        flight = before[label]
        for line in blocks[label].lines:
            flight = _after(line, flight)
        for following in (name for name in blocks[label].next if name in blocks):
            new = _either(before[following], flight)
            if new != before[following]:
                before[following] = new
                waiting.append(following)
    return before


def _either(one: Flight, other: Flight) -> Flight:
    """Return what runs if one or the other does: groups are told apart by how many are newer."""
    pairs = zip_longest(reversed(one), reversed(other), fillvalue=frozenset[str]())
    return tuple(left | right for left, right in pairs)[::-1]


def _uses(block: _Block, flight: Flight) -> Iterator[str]:
    """Yield the instructions of a block that use registers of products that run."""
    for line in block.lines:
        if "wgmma." in line:
            flight = _after(line, flight)
        elif flight != _NONE and not frozenset[str]().union(*flight).isdisjoint(_REGISTER.findall(line)):
            yield line.strip()


def _after(line: str, flight: Flight) -> Flight:
    """Return what runs after an instruction."""
    if _STARTS in line:
        started = (name for sums in _SUMS.findall(line) for name in _REGISTER.findall(sums))
        return (*flight[:-1], flight[-1].union(started))
    if "wgmma.commit_group" in line:
        return (*_newest(flight, _MOST_GROUPS), frozenset())
    wait = _WAITS.search(line)
    return flight if wait is None else (*_newest(flight[:-1], int(wait[1])), flight[-1])


def _newest(groups: Sequence[frozenset[str]], count: int) -> Sequence[frozenset[str]]:
    return groups[max(len(groups) - count, 0) :]
