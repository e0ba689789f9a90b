"""The place of a tile in shared memory on its way from one layout of threads to another.

A tile that is written as one layout holds it and read as another asks two things of where its elements lie: threads
move several at once, and the lanes of a warp meet in no bank, on either side. An element's offset is an index of bits:
those of a vector, those of a line that spreads over all banks, and those of a line's number. Lanes meet where the
difference of their elements is a line's number alone, up to the bytes that an access moves anyway. So there are no
conflicts where the directions in which only the line changes lie neither among those of the writing lanes nor among
those of the reading ones: a common complement of two spaces over F2, which always exists.

Source: Zhou et al., "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2",
    arXiv:2505.23819, "Optimal Swizzling".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from tessera.ir.layouts.f2 import Span
from tessera.ir.layouts.linear import LANE, REGISTER, LinearLayout
from tessera.ir.layouts.shared import OFFSET, bank_conflicts, vector_width

_WORD_BYTES, _ACCESS_BYTES, _LINE_BYTES = 4, 16, 128
_LANE_BITS = 5


def wavefronts(registers: LinearLayout, shared: LinearLayout, elem_bytes: int) -> int:
    """Return how many turns of shared memory a warp needs to move a tile: a line each, where lanes meet in no bank.

    Args:
        registers: layout of the tile over threads, without replicas in a thread.
        shared: layout of the tile in shared memory.
        elem_bytes: bytes of an element.
    """
    width = vector_width(registers, shared, elem_bytes)
    fewest = max(1, registers.lanes * width * elem_bytes // _LINE_BYTES)
    return registers.registers // width * (fewest + bank_conflicts(registers, shared, elem_bytes, width))


@cache
def exchange_layout(written: LinearLayout, read: LinearLayout, elem_bytes: int) -> LinearLayout:
    """Return the layout in shared memory, from offsets in elements, that takes the fewest turns to write and to read.

    Args:
        written: the layout that writes the tile, without replicas in a thread.
        read: the layout that reads it, likewise.
        elem_bytes: bytes of an element, a power of two.
    """
    found = [_with_vector(vector, written, read, elem_bytes) for vector in _vectors(written, read, elem_bytes)]
    return min(found, key=lambda shared: sum(wavefronts(side, shared, elem_bytes) for side in (written, read)))


def _vectors(written: LinearLayout, read: LinearLayout, elem_bytes: int) -> Iterator[list[int]]:
    """Yield directions for the lowest bits of offsets: those that threads hold on both sides, or on one.

    Where threads hold fewer elements than a word has, lanes share it.
    """
    most = max(1, _ACCESS_BYTES // elem_bytes).bit_length() - 1
    least = max(1, _WORD_BYTES // elem_bytes).bit_length() - 1
    sides = [side.columns(REGISTER) for side in (written, read)]
    both = [column for column in sides[1] if column in set(sides[0])]
    others = [column for side in (read, written) for column in side.columns(LANE)]
    for own in ((), *sides):
        held = _independent([*both, *own])
        for size in range(least, max(least, min(most, len(held))) + 1):
            yield _independent([*held, *others])[:size]


def _with_vector(vector: Sequence[int], written: LinearLayout, read: LinearLayout, elem_bytes: int) -> LinearLayout:
    """Return a layout with given lowest bits whose lines lie across the lanes of both sides, as far as they can."""
    sides = [_side(vector, side, elem_bytes) for side in (written, read)]
    units = [1 << bit for bit in range(written.out_bits)]
    size = min(len(units), max(1, _LINE_BYTES // elem_bytes).bit_length() - 1)
    first, second = (_independent([*sides[n], *sides[1 - n], *units])[:size] for n in (0, 1))
    lines = _common_complement(first, second, units)
    in_line = _independent([*lines, *vector, *second, *first, *units])[len(lines) + len(vector) :]
    offsets = [*vector, *in_line, *lines]
    return LinearLayout.make({OFFSET: [written.unflatten(column) for column in offsets]}, written.out_sizes)


def _side(vector: Sequence[int], side: LinearLayout, elem_bytes: int) -> list[int]:
    """Return the directions in which a side's lanes that are served together, and what each moves, are apart."""
    held = Span(side.columns(REGISTER))
    width = next((bit for bit, column in enumerate(vector) if column not in held), len(vector))
    word = max(1, _WORD_BYTES // elem_bytes).bit_length() - 1
    words = max(0, (elem_bytes << width) // _WORD_BYTES).bit_length() - 1
    return [*vector[: max(width, word)], *side.columns(LANE)[: _LANE_BITS - max(0, words)]]


def _independent(vectors: Iterable[int]) -> list[int]:
    """Return the vectors that do not depend on those before them."""
    span = Span()
    return [vector for vector in vectors if span.add(vector)]


def _common_complement(first: Sequence[int], second: Sequence[int], units: Sequence[int]) -> list[int]:
    """Return a basis of a space that completes two of one dimension to the whole one.

    What neither has is in it, and the sum of a direction that only the first one has and one that only the second has.
    """
    common = _intersection(first, second)
    only_first = _independent([*second, *first])[len(second) :]
    only_second = _independent([*common, *second])[len(common) :]
    neither = _independent([*second, *only_first, *units])[len(second) + len(only_first) :]
    return [*(one ^ other for one, other in zip(only_first, only_second, strict=True)), *neither]


def _intersection(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return a basis of what two spaces have in common."""
    span, found = Span(first), list[int]()
    for vector in second:
        if (combination := span.solve(vector)) is not None:
            found.append(_sum_of(one for place, one in enumerate(first) if combination >> place & 1))
        span.add(vector)
    return found


def _sum_of(vectors: Iterable[int]) -> int:
    total = 0
    for vector in vectors:
        total ^= vector
    return total
