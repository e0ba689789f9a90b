"""Which divisors of sizes and strides compiled code may rely on: few classes, so that few variants are compiled."""

from __future__ import annotations

from functools import cache

MOST = 16
"""The largest class, whatever the dtype."""
NARROWEST = 4
"""Bytes of the narrowest access that a class is kept for: below, elements move one by one."""
WIDEST = 16
"""Bytes of a thread's widest access to memory. Better aligned arrays make no better code."""


@cache
def classes(element_bytes: int) -> tuple[int, ...]:
    """Return the divisors that are told apart, from the largest: 16, then the elements of accesses, then 1.

    Args:
        element_bytes: bytes of an element.
    """
    accesses = [WIDEST >> shift for shift in range((WIDEST // NARROWEST).bit_length())]
    return tuple(sorted({MOST, 1, *(size // element_bytes for size in accesses if size > element_bytes)}, reverse=True))


def class_of(value: int, element_bytes: int) -> int:
    """Return the class of a size or stride, in elements."""
    return next(each for each in classes(element_bytes) if value % each == 0)


def masks(divisor: int, element_bytes: int) -> tuple[int, int]:
    """Return a class as masks: bits of a number that are 0, and bits of which one is not (0 for none)."""
    larger = [each for each in classes(element_bytes) if each > divisor]
    return divisor - 1, larger[-1] - 1 if larger else 0
