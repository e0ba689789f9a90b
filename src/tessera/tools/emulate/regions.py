"""Where the threads of a warp part at a branch, and whether they meet again.

Assemblers let them meet where all paths from the branch do. They do so for regions that only their branch enters; where
branches of both sides of another one enter the same block, ptxas (CUDA 13) leaves threads apart, which PTX allows, and
`bar.sync` and its like then find half a warp. Where no such instruction follows, it does no harm.

Source: PTX ISA 9.2, "Parallel Synchronization and Communication Instructions: barrier", on `.aligned`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.text import Instruction, Number

_ENDS = ("ret", "exit", "trap")


class _Graph:
    """Blocks of a function and the ways between them; the last block is where all ends.

    Args:
        code: the instructions, with places for labels.
    """

    def __init__(self, code: Sequence[Instruction]) -> None:
        jumps = {place: _target(instruction) for place, instruction in enumerate(code) if instruction.name == "bra"}
        ends = [place for place, instruction in enumerate(code) if instruction.name in _ENDS]
        after = {place + 1 for place in [*jumps, *ends]}
        self.starts = sorted({0, *after, *jumps.values()} - {len(code)})
        number = {start: block for block, start in enumerate(self.starts)}
        self.end = number[len(code)] = len(self.starts)
        self.next: list[list[int]] = []
        self.block_of: dict[int, int] = {}
        for block, start in enumerate(self.starts):
            stop = self.starts[block + 1] if block + 1 < len(self.starts) else len(code)
            self.block_of.update(dict.fromkeys(range(start, stop), block))
            self.next.append(_ways(code[stop - 1], jumps.get(stop - 1), stop, number, self.end))
        self.next.append([])
        self.before: list[list[int]] = [[] for _ in self.next]
        for block, followers in enumerate(self.next):
            for follower in followers:
                self.before[follower].append(block)
        self.above = _dominators(self.before, 0)
        self.below = _dominators(self.next, self.end)

    def is_over(self, one: int, other: int) -> bool:
        """Return whether all ways to a block go through one."""
        return bool(self.above[other] >> one & 1)

    def meeting(self, block: int) -> int:
        """Return the first block that all ways from a block go through."""
        after = [b for b in range(len(self.next)) if b != block and self.below[block] >> b & 1]
        return max(after, key=lambda b: self.below[b].bit_count())

    def entered(self, block: int) -> int | None:
        """Return a block between a branch and where its ways meet that is also reached past the branch."""
        meeting, seen, ahead = self.meeting(block), {block}, list(self.next[block])
        while ahead:
            at = ahead.pop()
            if at in seen or at == meeting:
                continue
            if not self.is_over(block, at):
                return at
            seen.add(at)
            ahead += [follower for follower in self.next[at] if not self.is_over(follower, at)]
        return None

    def behind(self, block: int) -> set[int]:
        """Return the blocks that may follow one, itself among them where it is in a loop."""
        seen, ahead = set[int](), list(self.next[block])
        while ahead:
            at = ahead.pop()
            if at not in seen:
                seen.add(at)
                ahead += self.next[at]
        return seen


def _target(instruction: Instruction) -> int:
    (target,) = instruction.operands
    assert isinstance(target, Number)
    return target.value


def _is_collective(instruction: Instruction) -> bool:
    """Return whether all threads of a warp have to execute an instruction together."""
    return instruction.name == "bar" or instruction.has("sync") or instruction.has("aligned")


def _ways(last: Instruction, jump: int | None, stop: int, number: dict[int, int], end: int) -> list[int]:
    """Return the blocks that follow one that ends with an instruction."""
    if last.name in _ENDS and last.guard is None:
        return [end]
    if jump is not None and last.guard is None:
        return [number[jump]]
    other = [end] if last.name in _ENDS else [] if jump is None else [number[jump]]
    return [number[stop], *other]


def _dominators(before: Sequence[Sequence[int]], root: int) -> list[int]:
    """Return for each block those, as bits, that all ways from the root to it go through."""
    every = (1 << len(before)) - 1
    result = [every] * len(before)
    result[root] = 1 << root
    changed = True
    while changed:
        changed = False
        for block, sources in enumerate(before):
            if block == root:
                continue
            common = every
            for source in sources:
                common &= result[source]
            common |= 1 << block
            changed |= common != result[block]
            result[block] = common
    return result


def check_meetings(code: Sequence[Instruction], parted: Iterable[int]) -> None:
    """Refuse branches at which threads of a warp part to regions that others enter, before they have to be together.

    Args:
        code: the instructions of an entry.
        parted: places of branches at which they parted.

    Raises:
        Fault: there is one; names both lines.
    """
    places = sorted(parted)
    if not places:
        return
    graph = _Graph(code)
    together = {graph.block_of[place] for place, instruction in enumerate(code) if _is_collective(instruction)}
    for place in places:
        block = graph.block_of[place]
        entered = graph.entered(block)
        if entered is not None and not together.isdisjoint(graph.behind(block)):
            line = code[graph.starts[entered]].line
            raise Fault(
                f"threads of a warp part in line {code[place].line} and may not meet: other ways lead to line {line}"
            )
