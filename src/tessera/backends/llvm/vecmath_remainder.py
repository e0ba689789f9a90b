"""The remainder of large f64 by pi/2 as LLVM IR: a scalar function in integers of 128 bits.

As `reduce_large_f32` of `numerics.elementary.trigonometry` with 64-bit words; two words of the product are kept, and
normalised before rounding.
"""

from __future__ import annotations

from typing import Final

from tessera.numerics.elementary.trigonometry import HALF_PI, HALF_PI_LOW, TWO_OVER_PI_WORDS
from tessera.numerics.elementary.writer import F64

HELPER_RESULT: Final = "{ double, double, i64 }"

TABLE_DEFINITION: Final = (
    f"@tessera_two_over_pi = internal unnamed_addr constant [{len(TWO_OVER_PI_WORDS) + 1} x i64] "
    f"[i64 0, {', '.join(f'i64 {word}' for word in TWO_OVER_PI_WORDS)}]"
)

HELPER_DEFINITION: Final = f"""define internal {HELPER_RESULT} @tessera_rem_pio2_f64(double %a) noinline {{
entry:
  %bits = bitcast double %a to i64
  %exponent = lshr i64 %bits, 52
  %explicit = and i64 %bits, {(1 << 52) - 1}
  %mantissa = or i64 %explicit, {1 << 52}
  %signed.position = sub i64 %exponent, {1075 - 62}
  %below = icmp slt i64 %signed.position, 0
  %position = select i1 %below, i64 0, i64 %signed.position
  %index = lshr i64 %position, 6
  %offset = and i64 %position, 63
  %p0 = getelementptr [{len(TWO_OVER_PI_WORDS) + 1} x i64], ptr @tessera_two_over_pi, i64 0, i64 %index
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %w0 = load i64, ptr %p0
  %w1 = load i64, ptr %p1
  %w2 = load i64, ptr %p2
  %w3 = load i64, ptr %p3
  %g0 = call i64 @llvm.fshl.i64(i64 %w0, i64 %w1, i64 %offset)
  %g1 = call i64 @llvm.fshl.i64(i64 %w1, i64 %w2, i64 %offset)
  %g2 = call i64 @llvm.fshl.i64(i64 %w2, i64 %w3, i64 %offset)
  %m = zext i64 %mantissa to i128
  %x0 = zext i64 %g0 to i128
  %x1 = zext i64 %g1 to i128
  %x2 = zext i64 %g2 to i128
  %m0 = mul i128 %m, %x0
  %m1 = mul i128 %m, %x1
  %m2 = mul i128 %m, %x2
  %s0 = shl i128 %m0, 64
  %s2 = lshr i128 %m2, 64
  %s01 = add i128 %s0, %m1
  %product = add i128 %s01, %s2
  %nudged = add i128 %product, {1 << 125}
  %quadrant = lshr i128 %nudged, 126
  %whole = shl i128 %quadrant, 126
  %fraction = sub i128 %product, %whole
  %negative = icmp slt i128 %fraction, 0
  %opposite = sub i128 0, %fraction
  %size = select i1 %negative, i128 %opposite, i128 %fraction
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %shift = and i128 %zeros, 127
  %normal = shl i128 %size, %shift
  %top = lshr i128 %normal, 75
  %top64 = trunc i128 %top to i64
  %next = lshr i128 %normal, 22
  %next64 = trunc i128 %next to i64
  %tail64 = and i64 %next64, {(1 << 53) - 1}
  %head = sitofp i64 %top64 to double
  %tail.raw = sitofp i64 %tail64 to double
  %tail = fmul double %tail.raw, 0x{F64.bits_of(2.0**-53):016X}
  %low = fmul double %head, 0x{F64.bits_of(HALF_PI_LOW):016X}
  %low.tail = call double @llvm.fma.f64(double %tail, double 0x{F64.bits_of(HALF_PI):016X}, double %low)
  %r = call double @llvm.fma.f64(double %head, double 0x{F64.bits_of(HALF_PI):016X}, double %low.tail)
  %minus.r = fneg double %r
  %residual = call double @llvm.fma.f64(double %head, double 0x{F64.bits_of(HALF_PI):016X}, double %minus.r)
  %r.low = fadd double %residual, %low.tail
  %zeros64 = trunc i128 %shift to i64
  %power = sub i64 {1023 - 51}, %zeros64
  %power.bits = shl i64 %power, 52
  %power.float = bitcast i64 %power.bits to double
  %minus.power = fneg double %power.float
  %factor = select i1 %negative, double %minus.power, double %power.float
  %high.result = fmul double %r, %factor
  %low.result = fmul double %r.low, %factor
  %quadrant64 = trunc i128 %quadrant to i64
  %part = insertvalue {HELPER_RESULT} poison, double %high.result, 0
  %parts = insertvalue {HELPER_RESULT} %part, double %low.result, 1
  %full = insertvalue {HELPER_RESULT} %parts, i64 %quadrant64, 2
  ret {HELPER_RESULT} %full
}}"""

HELPER_ITEMS: Final = (
    "declare i64 @llvm.fshl.i64(i64, i64, i64)",
    "declare i128 @llvm.ctlz.i128(i128, i1)",
    "declare double @llvm.fma.f64(double, double, double)",
    TABLE_DEFINITION,
    HELPER_DEFINITION,
)
