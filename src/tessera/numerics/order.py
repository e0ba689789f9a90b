"""The order of summation under the `strict` profile: one tree for every target, vector length and number of threads.

A reduction of n elements pads them to the next power of two with elements that change nothing, and adds the second
half to the first, element i + n/2 to element i, until one is left. A larger power of two gives the same bits. Vectors
fold chunks and then halves of lanes in this order, threads of a GPU registers, warps and lanes by index bits from the
highest down.

A running sum takes index bits from the lowest up: of each two neighbouring blocks of 2^b elements, every result of the
second becomes the sum of the first's last result and itself. From the end, it is the first block's results and the
second's first one; blocks are counted from the tile's start as before.

Source: W. D. Hillis, G. L. Steele, "Data parallel algorithms", 1986, for the tree; J. Sklansky, "Conditional-sum
addition logic", 1960, for running sums.
"""

from __future__ import annotations

from typing import Final

NEUTRAL: Final = {"sum": -0.0, "prod": 1.0}
"""What changes no other number, by reduction: +0 would make +0 of a sum of -0 alone."""


def is_ordered(profile: str, fn: str, is_float: bool) -> bool:
    """Return whether the order of a reduction or scan decides the bits of its result, and is therefore given.

    Args:
        profile: the numerics profile.
        fn: a reduction's name.
        is_float: whether it combines floats.
    """
    return profile == "strict" and is_float and fn in NEUTRAL
