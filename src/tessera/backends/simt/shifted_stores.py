"""Stores of runs that begin behind aligned places: lanes pass on what belongs to their neighbour's 16 bytes.

A row may begin at any element, and a thread then holds 16 bytes of it that no instruction stores at once. Where the
lanes of a warp hold runs that follow each other, each stores the aligned 16 bytes that begin in its own run and end in
the next one::

    held     |  lane 0  |  lane 1  | ... |  lane 31 |
    stored   ...|  lane 0  |  lane 1  | ...  30 |.....

What lies before the first and behind the last of them is stored element by element, by the first and the last lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tessera.backends.llvm.ops import I32, I64
from tessera.backends.llvm.types import LLVMType
from tessera.backends.simt.emitter import SimtEmitter
from tessera.ir.layouts import LANE, LinearLayout
from tessera.numerics.dtypes import DType
from tessera.target.divisors import WIDEST

if TYPE_CHECKING:
    from tessera.backends.simt.memory import BoxAddresses

WORD_BYTES = 4
I1 = LLVMType("i1")


def access_behind(emitter: SimtEmitter, words: Sequence[str], behind: str, dtype: DType) -> list[str]:
    """Return the words of the 16 bytes that begin so many bytes, fewer than 16, behind the first of 32.

    Args:
        emitter: the emitter.
        words: 32 bytes.
        behind: an i64, a multiple of an element.
        dtype: the elements.
    """
    ops, left = emitter.ops, list(words)
    for size in (8, 4):
        moved = ops.compare("ne", I64, ops.binary("and", I64, behind, str(size)), "0")
        step = size // WORD_BYTES
        left = [ops.select(I32, moved, left[n + step], left[n]) for n in range(len(left) - step)]
    if dtype.bytes < WORD_BYTES:
        bits = ops.binary("shl", I32, ops.binary("and", I32, ops.convert("trunc", I64, behind, I32), "3"), "3")
        left = [ops.intrinsic("fshr", I32, high, low, bits) for low, high in pairwise(left)]
    return left[: WIDEST // WORD_BYTES]


def passes_on(layout: LinearLayout, axis: int, count: int, dtype: DType) -> bool:
    """Return whether the lanes of a warp hold runs of 16 bytes that follow each other along an axis."""
    steps = [[count << bit if at == axis else 0 for at in range(len(layout.out_sizes))] for bit in range(16)]
    lanes = [list(step) for step in layout.in_bases(LANE)]
    return dtype.bytes <= WORD_BYTES and count * dtype.bytes == WIDEST and lanes == steps[: len(lanes)]


def store_shifted(
    emitter: SimtEmitter,
    box: BoxAddresses,
    layout: LinearLayout,
    at: Sequence[int],
    values: Sequence[str],
    dtype: DType,
    inside: str | None,
) -> None:
    """Store the run of each lane, none of which begins at a multiple of 16 bytes.

    Args:
        emitter: the emitter.
        box: where the elements go; all of the runs that it has are inside, or none.
        layout: of the fragment.
        at: the register part of the run.
        values: of the run.
        dtype: the elements.
        inside: whether they are to be stored, alike in all lanes; None where they are.
    """
    ops = emitter.ops
    lane, last = emitter.lane(), str(layout.lanes - 1)
    own = [word for _, word in emitter.pack(values, dtype)]
    following = ops.binary("and", I32, ops.binary("add", I32, lane, "1"), last)
    towards = ops.binary("xor", I32, lane, following)
    words = own + [emitter.shuffle_xor(word, towards) for word in own]
    kept = ops.binary("sub", I64, str(WIDEST), box.behind())
    words = access_behind(emitter, words, kept, dtype)
    pointer = box.pointer(at)
    is_last, is_first = ops.compare("eq", I32, lane, last), ops.compare("eq", I32, lane, "0")
    others = emitter.both(inside, ops.compare("ne", I32, lane, last))
    target = emitter.fn.assign(f"getelementptr i8, ptr addrspace(1) {pointer}, i64 {kept}")
    emitter.store_words(target, [(I32, word) for word in words], others)
    for number, value in enumerate(values):
        place = number * dtype.bytes
        before = ops.compare("ult", I64, str(place), kept)
        alone = ops.select(I1, before, is_first, is_last)
        target = emitter.fn.assign(f"getelementptr i8, ptr addrspace(1) {pointer}, i64 {place}")
        emitter.store_words(target, emitter.pack([value], dtype), emitter.both(inside, alone))
