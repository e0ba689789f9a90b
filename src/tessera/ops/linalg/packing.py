"""Which copies let bulk copies fetch the operands of a product, what they take, and how they lie in memory.

Bulk copies (TMA) want one contiguous dimension, and 16-byte multiples of every other stride and of the address. An
operand that is stored otherwise can be copied once into rows that begin at multiples of 128 bytes, padded at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Literal

from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.ops.linalg.problem import Problem

Order = Literal["", "k", "other"]
"""Which dimension of an operand's copy is contiguous; empty for an operand that is used as it is."""

ROW_BYTES = 128
"""Rows of a copy begin at multiples of this: a whole sector of memory, and a row of the swizzle."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A padded copy of an operand: lines of one contiguous dimension.

    Args:
        shape: sizes as the operand has them, with or without a batch.
        axis: which of the two last dimensions is contiguous.
        dtype: type of the elements.
    """

    shape: tuple[int, ...]
    axis: int
    dtype: DType

    @property
    def lines(self) -> tuple[int, ...]:
        """The batch if there is one, the number of lines, and the elements of one with its padding."""
        length = self.shape[-2:][self.axis] * self.dtype.bytes
        padded = -(-length // ROW_BYTES) * ROW_BYTES // self.dtype.bytes
        return (*self.shape[:-2], self.shape[-2:][1 - self.axis], padded)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements, of an array of `shape` over the copy."""
        count, padded = self.lines[-2:]
        steps = (1, padded) if self.axis == 0 else (padded, 1)
        return steps if len(self.shape) == 2 else (count * padded, *steps)

    @property
    def bytes(self) -> int:
        """Bytes it takes."""
        return prod(self.lines) * self.dtype.bytes


def sums_of(problem: Problem, parts: int) -> Copy:
    """Return how the sums lie that programs leave which share the tiles of a product.

    Args:
        problem: the product.
        parts: programs of each tile.
    """
    return Copy((parts, problem.m, problem.n), 1, problem.acc)


def packings(problem: Problem, turned: bool) -> Iterator[tuple[Order, Order, Problem]]:
    """Yield the ways to copy operands, and the product of what they give.

    Args:
        problem: the product of the operands as they are.
        turned: whether copies may be stored in another order than the operand.
    """
    for pack_a, pack_b in product(*(_orders(major, turned) for major in (problem.a_major, problem.b_major))):
        if pack_a or pack_b:
            yield pack_a, pack_b, packed(problem, pack_a, pack_b)


def _orders(major: str, turned: bool) -> tuple[Order, ...]:
    if turned:
        return ("", "k", "other")
    return ("", "other") if major == "other" else ("", "k")


def packed(problem: Problem, pack_a: Order, pack_b: Order) -> Problem:
    """Return the product of operands some of which are copies.

    Args:
        problem: the product of the operands as they are.
        pack_a: how the left one is copied.
        pack_b: how the right one is copied.
    """
    if pack_a:
        problem = replace(problem, a_major=pack_a, a_aligned=True, a_lines=True)
    return replace(problem, b_major=pack_b, b_aligned=True, b_lines=True) if pack_b else problem


def copies(problem: Problem, pack_a: Order, pack_b: Order) -> tuple[Copy | None, Copy | None]:
    """Return the copy of each operand; one copy twice where an array is both operands and lies alike.

    Args:
        problem: the product.
        pack_a: how the left one is copied.
        pack_b: how the right one is copied.
    """
    batch = () if problem.batch is None else (problem.batch,)
    left = (problem.k, problem.m) if problem.trans_a else (problem.m, problem.k)
    right = (problem.n, problem.k) if problem.trans_b else (problem.k, problem.n)
    a_axis = int(problem.trans_a != (pack_a == "k"))
    b_axis = int(problem.trans_b == (pack_b == "k"))
    a = Copy((*(batch if problem.a_batched else ()), *left), a_axis, problem.a) if pack_a else None
    b = Copy((*(batch if problem.b_batched else ()), *right), b_axis, problem.b) if pack_b else None
    return a, b


def distinct(problem: Problem, pack_a: Order, pack_b: Order) -> tuple[Copy, ...]:
    """Return the copies that are made: one where both operands are one array and lie alike."""
    a, b = copies(problem, pack_a, pack_b)
    return tuple(copy for copy in (a, None if problem.same and a == b else b) if copy is not None)
