"""Checks PTX for registers of warpgroup products that are used while the products still run.

LLVM does not know that `wgmma` goes on after its instruction: where it copies accumulators before the wait for them,
for whatever reason, they are not what the product gives.

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

    What a block of instructions without branches shows is checked, no path through several.

    Raises:
        CompilerFault: `products-in-flight`, with the instruction.
    """
    use = next(_uses(ptx), None)
    if use is not None:
        raise CompilerFault(f"accumulators are used while their product runs: {use}", code="products-in-flight")


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
