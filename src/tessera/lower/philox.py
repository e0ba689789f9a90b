"""Philox4x32-10 in terms of a few 32-bit operations (Salmon et al., SC 2011, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox_rounds(
    counter: tuple[T, T, T, T],
    key: tuple[T, T],
    constant: Callable[[int], T],
    binary: Callable[[str, T, T], T],
) -> tuple[T, T, T, T]:
    """Return the four random words of a counter.

    Args:
        counter: the counter's words.
        key: the key's words.
        constant: makes a 32-bit constant.
        binary: applies `mul`, `mulhi`, `xor` or `add` to two 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = (constant(m) for m in _MULTIPLIERS)
    w0, w1 = (constant(w) for w in _WEYL)
    for number in range(_ROUNDS):
        if number:
            k0, k1 = binary("add", k0, w0), binary("add", k1, w1)
        low0, high0 = binary("mul", c0, m0), binary("mulhi", c0, m0)
        low1, high1 = binary("mul", c2, m1), binary("mulhi", c2, m1)
        c0 = binary("xor", binary("xor", high1, c1), k0)
        c2 = binary("xor", binary("xor", high0, c3), k1)
        c1, c3 = low1, low0
    return c0, c1, c2, c3
