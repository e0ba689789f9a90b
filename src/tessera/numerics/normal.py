"""The tail of the normal distribution, Q(a) = erfc(a / sqrt(2)) / 2, for composites such as GELU.

A weighted minimax fit by scripts/fit_vecmath.py: the error of Q is within 2^-25.3 of it where Q is well above 1e-4 and
within 2^-25.3 of 1e-4 below, up to a = 5.5. Beyond, the polynomial falls faster and faster, so that Q vanishes.
"""

from __future__ import annotations

from typing import Final

NORMAL_TAIL_END: Final = 14.0
"""From here on 2^(a P(a)) is 0 in f32."""

# log2(2 Q(a)) = a * P(a), Q(a) = erfc(a / sqrt(2)) / 2, 0 <= a <= 5.5; lowest power first.
NORMAL_TAIL: Final = (
    float.fromhex("-0x1.26aed40000000p+0"),
    float.fromhex("-0x1.d63bda0000000p-2"),
    float.fromhex("-0x1.adc57e0000000p-5"),
    float.fromhex("0x1.c8bfb80000000p-8"),
    float.fromhex("-0x1.3398280000000p-17"),
    float.fromhex("-0x1.2667460000000p-12"),
    float.fromhex("0x1.4a08b80000000p-14"),
    float.fromhex("-0x1.89aa320000000p-17"),
    float.fromhex("0x1.04bb4c0000000p-20"),
    float.fromhex("-0x1.2d35780000000p-25"),
)
