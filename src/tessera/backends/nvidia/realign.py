"""Copies of elements of 8 or 16 bits from any address to shared memory, 16 bytes at a time.

An instruction loads a word from a multiple of its size only. Where rows begin at any element, a run of elements is
loaded as the aligned words that hold it, one more than it fills, and shifted into place::

    memory   | a0 a1 | a2 a3 | a4 a5 |        run of 4 elements from a1
    loaded     w0      w1      w2
    stored       | a1 a2 | a3 a4 |            (w1:w0) >> 16, (w2:w1) >> 16

A word is loaded where it holds an element of the run that is inside the tensor: no page is touched that the tensor does
not touch. What a word holds besides, of neighbouring rows, is cleared after the shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tessera.backends.llvm.ops import I32, I64
from tessera.backends.nvidia.emitter import NvidiaEmitter
from tessera.backends.simt.memory import BoxAddresses
from tessera.numerics.dtypes import DType

WORD_BYTES = 4
RUN_BYTES = 16


class Runs:
    """Runs of elements along the contiguous dimension of a box, as one thread loads them.

    Args:
        emitter: the emitter.
        box: the box.
        axis: its fragment axis of stride 1.
        count: elements of a run, a multiple of a word's.
        dtype: the elements, of 1 or 2 bytes.
    """

    def __init__(self, emitter: NvidiaEmitter, box: BoxAddresses, axis: int, count: int, dtype: DType):
        self.emitter, self.box, self.axis, self.count = emitter, box, axis, count
        self.bits = 8 * dtype.bytes
        self.per_word = WORD_BYTES // dtype.bytes
        self._ends: dict[int, tuple[str, str]] = {}
        self._masks: dict[int, list[str | None]] = {}

    def load(self, at: Sequence[int]) -> list[str]:
        """Return the words of the run whose register part is `at`; elements outside of the tensor are zero."""
        ops, fn = self.emitter.ops, self.emitter.fn
        step = at[self.axis]
        address = fn.assign(f"ptrtoint ptr addrspace(1) {self.box.pointer(at)} to i64")
        aligned = fn.assign(f"inttoptr i64 {ops.binary('and', I64, address, str(-WORD_BYTES))} to ptr addrspace(1)")
        odd = ops.binary("and", I32, ops.convert("trunc", I64, address, I32), str(WORD_BYTES - 1))
        shift = ops.binary("shl", I32, odd, "3")
        inside = self._inside(at, ops.binary("udiv", I32, shift, str(self.bits)))
        words = [self._word(aligned, number, predicate) for number, predicate in enumerate(inside)]
        shifted = [ops.intrinsic("fshr", I32, after, before, shift) for before, after in pairwise(words)]
        return [
            word if mask is None else ops.binary("and", I32, word, mask)
            for word, mask in zip(shifted, self._mask(step), strict=True)
        ]

    def _word(self, aligned: str, number: int, predicate: str) -> str:
        pointer = self.emitter.fn.assign(f"getelementptr i32, ptr addrspace(1) {aligned}, i64 {number}")
        return self.emitter.load_holding(pointer, predicate)[0]

    def _inside(self, at: Sequence[int], before: str) -> list[str]:
        """Return for each word whether it holds an element of the run that is inside the tensor.

        Args:
            at: the register part of the run.
            before: elements of the first word that stand before the run.
        """
        ops, per = self.emitter.ops, self.per_word
        first, span = self._end(at[self.axis])
        reach = ops.binary("add", I32, span, str(per - 1))
        wanted = self.emitter.both(ops.compare("ne", I32, span, "0"), self.box.predicate(at, apart=self.axis))
        assert wanted is not None
        limit = ops.select(I32, wanted, reach, "0")
        last = ops.binary("sub", I32, ops.binary("sub", I32, str(per - 1), first), before)
        places = (ops.binary("add", I32, last, str(word * per)) for word in range(self.count // per + 1))
        return [ops.compare("ult", I32, place, limit) for place in places]

    def _end(self, step: int) -> tuple[str, str]:
        """Return the first element of a run that is inside along the contiguous dimension, and how many are."""
        if step not in self._ends:
            dimension = self.box.axes[self.axis]
            checked = dimension in self.box.checked
            self._ends[step] = self._bounded(dimension, step) if checked else ("0", str(self.count))
        return self._ends[step]

    def _bounded(self, dimension: int, step: int) -> tuple[str, str]:
        ops = self.emitter.ops
        start = ops.binary("add", I64, self.box.starts[dimension], str(step))
        size = self.emitter.unit(self.box.op.sizes[dimension])
        first, end = (self._clamped(ops.binary("sub", I64, limit, start)) for limit in ("0", size))
        return first, ops.intrinsic("smax", I32, ops.binary("sub", I32, end, first), "0")

    def _clamped(self, place: str) -> str:
        ops = self.emitter.ops
        within = ops.intrinsic("smin", I64, ops.intrinsic("smax", I64, place, "0"), str(self.count))
        return ops.convert("trunc", I64, within, I32)

    def _mask(self, step: int) -> list[str | None]:
        """Return the bits of a run's words that belong to elements inside the tensor, None for all."""
        if step not in self._masks:
            first, span = self._end(step)
            starts = range(0, self.count, self.per_word)
            known = self.box.axes[self.axis] not in self.box.checked
            self._masks[step] = [None if known else self._bits(start, first, span) for start in starts]
        return self._masks[step]

    def _bits(self, start: int, first: str, span: str) -> str:
        ops, total = self.emitter.ops, "0"
        for lane in range(self.per_word):
            place = ops.binary("sub", I32, str(start + lane), first)
            inside = ops.compare("ult", I32, place, span)
            ones = ops.select(I32, inside, str(((1 << self.bits) - 1) << lane * self.bits), "0")
            total = ones if total == "0" else ops.binary("or", I32, total, ones)
        return total
