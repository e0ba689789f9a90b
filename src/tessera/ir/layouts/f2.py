"""Linear algebra over F2 on vectors held as Python integers (bit i of the integer is coordinate i)."""

from __future__ import annotations

from collections.abc import Iterable


class Span:
    """The span of the vectors offered so far, kept in echelon form with the combination behind every row.

    Vectors are numbered in the order in which they are offered. One that depends on earlier ones is counted
    but never used in a combination, so `solve` leaves every free coordinate at zero.
    """

    __slots__ = ("_offered", "_rows")

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        """Start from `vectors`, offered in order."""
        self._rows: dict[int, tuple[int, int]] = {}
        self._offered = 0
        for vector in vectors:
            self.add(vector)

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return len(self._rows)

    def _reduce(self, vector: int) -> tuple[int, int]:
        """Return what is left of `vector` after elimination, and the combination that was subtracted."""
        combination = 0
        while vector:
            row = self._rows.get(vector.bit_length())
            if row is None:
                break
            vector ^= row[0]
            combination ^= row[1]
        return vector, combination

    def add(self, vector: int) -> bool:
        """Offer a vector; return whether it was independent of those before it."""
        number = self._offered
        self._offered += 1
        rest, combination = self._reduce(vector)
        if rest == 0:
            return False
        self._rows[rest.bit_length()] = (rest, combination | 1 << number)
        return True

    def solve(self, vector: int) -> int | None:
        """Return the mask of offered vectors whose XOR is `vector`, or None when it lies outside the span."""
        rest, combination = self._reduce(vector)
        return combination if rest == 0 else None

    def __contains__(self, vector: int) -> bool:
        """Return whether `vector` lies in the span."""
        return self._reduce(vector)[0] == 0


def rank(vectors: Iterable[int]) -> int:
    """Return the dimension of the span of `vectors`."""
    return Span(vectors).rank


def kernel(columns: Iterable[int]) -> tuple[int, ...]:
    """Return a basis of the kernel of the matrix with these columns, as masks of columns.

    Each basis vector has a distinct highest column, and its other columns come earlier: with columns ordered
    register, lane, warp, a vector that can do without warps does without them.
    """
    span = Span()
    found: list[int] = []
    for number, column in enumerate(columns):
        combination = span.solve(column)
        if combination is not None:
            found.append(combination | 1 << number)
        span.add(column)
    return tuple(found)


def log2_exact(value: int) -> int | None:
    """Return log2 of a power of two, or None for any other number."""
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None
