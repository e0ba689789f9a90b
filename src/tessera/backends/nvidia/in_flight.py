"""Finds registers of warpgroup products in PTX that are used while the products still run.

LLVM does not know that `wgmma` goes on after its instruction. Where a wait's results have other registers than the
product, as those of sums that change places in a loop do, LLVM copies them before the wait, which is told to give what
it is given: then they are not what the product gives. Such kernels are written again, with copies behind all waits.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", `wgmma.mma_async`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tessera.errors import CompilerFault

_STARTS = "wgmma.mma_async"
_SUMS = re.compile(r"wgmma\.mma_async[.\w]*\s+\{([^}]*)\}")
_WAITS = re.compile(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)")
_REGISTER = re.compile(r"%\w+")


def check_products(ptx: str) -> None:
    """Check that no instruction uses accumulators between their product and the wait for it.

    Raises:
        CompilerFault: `products-in-flight`, with the instruction.
    """
    use = used_in_flight(ptx)
    if use:
        raise CompilerFault(f"accumulators are used while their product runs: {use}", code="products-in-flight")


def used_in_flight(ptx: str) -> str:
    """Return an instruction that uses accumulators between their product and the wait for it, empty if none does.

    What a block of instructions without branches shows is seen, no path through several.
    """
    return next(_uses(ptx), "")


def _uses(ptx: str) -> Iterator[str]:
    start = ptx.find(_STARTS)
    if start < 0:
        return
    committed, issued = list[set[str]](), set[str]()
    for line in ptx[ptx.rfind("\n", 0, start) + 1 :].splitlines():
        if _STARTS in line:
            for sums in _SUMS.findall(line):
                issued |= set(_REGISTER.findall(sums))
        elif "wgmma.commit_group" in line:
            committed.append(issued)
            issued = set[str]()
        elif (wait := _WAITS.search(line)) is not None:
            kept = int(wait[1])
            committed = committed[-kept:] if kept else []
        elif "$L" in line:  # a branch, or where one goes
            committed, issued = [], set[str]()
        elif (committed or issued) and not issued.union(*committed).isdisjoint(_REGISTER.findall(line)):
            yield line.strip()
