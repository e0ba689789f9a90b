"""Lengths of rows that kernels are compiled for, before they take any length."""

from __future__ import annotations

from tessera.numerics.profiles import current_profile

MOST = 16
"""Lengths that a kernel is compiled for: a model has a few, and a decoder a new one for each token."""
_LONGEST_PIECE = 4096
_SHORTEST_PIECE = 128


class Lengths:
    """The lengths of rows that a process has had of one op.

    A kernel that knows the length of its rows holds one in registers and moves it in the widest accesses. After `MOST`
    lengths new ones are left to a kernel that takes rows of any length by pieces. Which of the two computes a row then
    depends on what a process did before, and with it the order of sums: not so under the profiles `deterministic` and
    `strict`.
    """

    def __init__(self) -> None:
        self._known = set[int]()

    def are_many_before(self, length: int) -> bool:
        """Return whether a length is left to the kernel for all, and remember it where it is not."""
        if length in self._known:
            return False
        if len(self._known) >= MOST and current_profile() == "fast":
            return True
        self._known.add(length)
        return False


def piece(length: int) -> int:
    """Return how many elements of rows of a length are taken at a time: a power of two."""
    return max(_SHORTEST_PIECE, min(_LONGEST_PIECE, 1 << max(length - 1, 0).bit_length()))
