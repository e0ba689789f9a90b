"""The exact floating-point remainder as LLVM functions, for what `frem` does not do, or one lane at a time.

Of scalars, where `frem` only divides and subtracts: long division on the significands, one bit of the quotient a step,
as in any schoolbook `fmod`. Where a target has reciprocals of f32, quotients below 2^19 are cut off at once, to no less
than they are and one too many at most, so that what is left, or lacks, is exact.

Of vectors of f32: long division in f64, 28 bits of the quotient a step; products of them and the divisor have no more
than 53 bits, and what is left of the dividend is exact. Quotients are never too large.
"""

from __future__ import annotations

from tessera.backends.llvm.types import float_literal

_STEP_BITS = 28
_BELOW = 1 - 2.0**-51
"""A rounded quotient times this is no larger than the exact one."""
_VECTORS = """\
define internal <{W} x float> @{name}(<{W} x float> %x, <{W} x float> %y) alwaysinline {{
entry:
  %ax = call <{W} x float> @llvm.fabs.v{W}f32(<{W} x float> %x)
  %ay = call <{W} x float> @llvm.fabs.v{W}f32(<{W} x float> %y)
  %whole = fpext <{W} x float> %ax to <{W} x double>
  %divisor = fpext <{W} x float> %ay to <{W} x double>
  %finite = fcmp olt <{W} x float> %ax, splat (float {infinity})
  %divides = fcmp ogt <{W} x float> %ay, zeroinitializer
  %defined = and <{W} x i1> %finite, %divides
  br label %head
head:
  %left = phi <{W} x double> [ %whole, %entry ], [ %next, %step ]
  %reaches = fcmp oge <{W} x double> %left, %divisor
  %open = and <{W} x i1> %reaches, %defined
  %any = call i1 @llvm.vector.reduce.or.v{W}i1(<{W} x i1> %open)
  br i1 %any, label %step, label %done
step:
  %ratio = fdiv <{W} x double> %left, %divisor
  %below = fmul <{W} x double> %ratio, splat (double {below})
  %bits = bitcast <{W} x double> %below to <{W} x i64>
  %leading = and <{W} x i64> %bits, splat (i64 {mask})
  %few = bitcast <{W} x i64> %leading to <{W} x double>
  %count = call <{W} x double> @llvm.trunc.v{W}f64(<{W} x double> %few)
  %some = fcmp ogt <{W} x double> %count, splat (double 1.0)
  %times = select <{W} x i1> %some, <{W} x double> %count, <{W} x double> splat (double 1.0)
  %less = fneg <{W} x double> %times
  %rest = call <{W} x double> @llvm.fma.v{W}f64(<{W} x double> %less, <{W} x double> %divisor, <{W} x double> %left)
  %next = select <{W} x i1> %open, <{W} x double> %rest, <{W} x double> %left
  br label %head
done:
  %short = fptrunc <{W} x double> %left to <{W} x float>
  %signed = call <{W} x float> @llvm.copysign.v{W}f32(<{W} x float> %short, <{W} x float> %x)
  %result = select <{W} x i1> %defined, <{W} x float> %signed, <{W} x float> splat (float {nan})
  ret <{W} x float> %result
}}
"""

_BODY = """\
define internal {F} @{name}({F} %x, {F} %y) {{
entry:
  %ux = bitcast {F} %x to {I}
  %uy = bitcast {F} %y to {I}
  %ax = and {I} %ux, {magnitude}
  %ay = and {I} %uy, {magnitude}
  %sign = xor {I} %ux, %ax
  %infinite = icmp uge {I} %ax, {infinity}
  %not.number = icmp ugt {I} %ay, {infinity}
  %zero = icmp eq {I} %ay, 0
  %bad = or i1 %infinite, %not.number
  %undefined = or i1 %bad, %zero
  br i1 %undefined, label %nan, label %defined
nan:
  %product = fmul {F} %x, %y
  %quotient = fdiv {F} %product, %product
  ret {F} %quotient
defined:
  %smaller = icmp ult {I} %ax, %ay
  br i1 %smaller, label %unchanged, label %{large}
unchanged:
  ret {F} %x
{quick}divide:
  %fx = and {I} %ax, {fraction}
  %fy = and {I} %ay, {fraction}
  %rx = lshr {I} %ax, {mantissa}
  %ry = lshr {I} %ay, {mantissa}
  %x.normal = icmp ne {I} %rx, 0
  %y.normal = icmp ne {I} %ry, 0
  %x.implied = select i1 %x.normal, {I} {implied}, {I} 0
  %y.implied = select i1 %y.normal, {I} {implied}, {I} 0
  %sx = or {I} %fx, %x.implied
  %sy = or {I} %fy, %y.implied
  %x.zeros = call {I} @llvm.ctlz.{I}({I} %sx, i1 false)
  %y.zeros = call {I} @llvm.ctlz.{I}({I} %sy, i1 false)
  %x.shift = sub {I} %x.zeros, {lead}
  %y.shift = sub {I} %y.zeros, {lead}
  %mx = shl {I} %sx, %x.shift
  %my = shl {I} %sy, %y.shift
  %x.least = call {I} @llvm.umax.{I}({I} %rx, {I} 1)
  %y.least = call {I} @llvm.umax.{I}({I} %ry, {I} 1)
  %ex = sub {I} %x.least, %x.shift
  %ey = sub {I} %y.least, %y.shift
  br label %head
head:
  %m = phi {I} [ %mx, %divide ], [ %m.next, %body ]
  %e = phi {I} [ %ex, %divide ], [ %e.next, %body ]
  %rest = sub {I} %m, %my
  %fits = icmp sge {I} %rest, 0
  %kept = select i1 %fits, {I} %rest, {I} %m
  %more = icmp sgt {I} %e, %ey
  br i1 %more, label %body, label %done
body:
  %m.next = shl {I} %kept, 1
  %e.next = sub {I} %e, 1
  br label %head
done:
  %none = icmp eq {I} %kept, 0
  %zeros = call {I} @llvm.ctlz.{I}({I} %kept, i1 false)
  %back = sub {I} %zeros, {lead}
  %normal = shl {I} %kept, %back
  %exponent = sub {I} %ey, %back
  %is.normal = icmp sgt {I} %exponent, 0
  %plain.fraction = and {I} %normal, {fraction}
  %plain.exponent = shl {I} %exponent, {mantissa}
  %plain = or {I} %plain.fraction, %plain.exponent
  %below = sub {I} 1, %exponent
  %safe = select i1 %is.normal, {I} 0, {I} %below
  %subnormal = lshr {I} %normal, %safe
  %finite = select i1 %is.normal, {I} %plain, {I} %subnormal
  %bits = select i1 %none, {I} 0, {I} %finite
  %signed = or {I} %bits, %sign
  %result = bitcast {I} %signed to {F}
  ret {F} %result
}}
"""


_CUT = """\
large:
  %dividend = bitcast i32 %ax to float
  %divisor = bitcast i32 %ay to float
  %reciprocal = call float @{reciprocal}(float %divisor)
  %ratio = fmul float %dividend, %reciprocal
  %is.small = fcmp olt float %ratio, {most}
  %above = fadd float %ratio, {quarter}
  %times = call float @llvm.trunc.f32(float %above)
  %less = fneg float %times
  %left = call float @llvm.fma.f32(float %less, float %divisor, float %dividend)
  %lacks = fcmp olt float %left, {zero}
  %more.left = fadd float %left, %divisor
  %short = select i1 %lacks, float %more.left, float %left
  %is.left = fcmp oge float %short, {zero}
  %is.less = fcmp olt float %short, %divisor
  %is.rest = and i1 %is.left, %is.less
  %is.quick = and i1 %is.small, %is.rest
  br i1 %is.quick, label %quick, label %divide
"""
"""Cuts off the quotient of the magnitudes `ax` and `ay`, to `times` or one less where something `lacks`."""
_QUICK = """\
quick:
  %short.bits = bitcast float %short to i32
  %short.signed = or i32 %short.bits, %sign
  %short.result = bitcast i32 %short.signed to float
  ret float %short.result
"""
_FLOORED = """\
define internal float @{name}(float %x, float %y) {{
entry:
  %ux = bitcast float %x to i32
  %uy = bitcast float %y to i32
  %ax = and i32 %ux, {magnitude}
  %ay = and i32 %uy, {magnitude}
  br label %large
{cut}quick:
  %one.less = fsub float %times, {one}
  %count = select i1 %lacks, float %one.less, float %times
  %signs = xor i32 %ux, %uy
  %opposite = icmp slt i32 %signs, 0
  %inexact = fcmp one float %short, {zero}
  %goes.down = and i1 %opposite, %inexact
  %one.more = fadd float %count, {one}
  %size = select i1 %goes.down, float %one.more, float %count
  %negative = fneg float %size
  %floor = select i1 %opposite, float %negative, float %size
  ret float %floor
divide:
  %exact = call float @{exact}(float %x, float %y)
  ret float %exact
}}
"""
_NUMBERS = {
    key: float_literal(one, "float") for key, one in (("most", 2.0**19), ("quarter", 0.25), ("zero", 0.0), ("one", 1.0))
}
_OF_QUICK = ("declare float @llvm.trunc.f32(float)", "declare float @llvm.fma.f32(float, float, float)")


def vector_remainder_function(width: int) -> tuple[str, str, tuple[str, ...]]:
    """Return name, definition and declarations of the remainder of vectors of `float` (C's `fmod` of each lane)."""
    name = f"tessera_fmod_v{width}f32"
    text = _VECTORS.format(
        name=name,
        W=width,
        infinity=float_literal(float("inf"), "float"),
        nan=float_literal(float("nan"), "float"),
        below=float_literal(_BELOW, "double"),
        mask=-(1 << 53 - _STEP_BITS),
    )
    wide, short, lanes = f"<{width} x double>", f"<{width} x float>", f"<{width} x i1>"
    declares = (
        f"declare {short} @llvm.fabs.v{width}f32({short})",
        f"declare {short} @llvm.copysign.v{width}f32({short}, {short})",
        f"declare {wide} @llvm.trunc.v{width}f64({wide})",
        f"declare {wide} @llvm.fma.v{width}f64({wide}, {wide}, {wide})",
        f"declare i1 @llvm.vector.reduce.or.v{width}i1({lanes})",
    )
    return name, text, declares


def remainder_function(element: str, reciprocal: str = "") -> tuple[str, str, tuple[str, ...]]:
    """Return name, definition and declarations of the remainder of `float` or `double` scalars (C's `fmod`).

    Args:
        element: LLVM's name of the type.
        reciprocal: an intrinsic that gives reciprocals of f32 within 2^-23 of them, 0 and infinity near the ends of the
            range.
    """
    bits, mantissa = (32, 23) if element == "float" else (64, 52)
    integer, name = f"i{bits}", f"tessera_fmod_f{bits}"
    exponents = (1 << bits - 1 - mantissa) - 1
    is_quick = bool(reciprocal) and element == "float"
    quick = (_CUT + _QUICK).format(reciprocal=reciprocal, **_NUMBERS)
    text = _BODY.format(
        name=name,
        quick=quick if is_quick else "",
        large="large" if is_quick else "divide",
        F=element,
        I=integer,
        magnitude=(1 << bits - 1) - 1,
        infinity=exponents << mantissa,
        fraction=(1 << mantissa) - 1,
        implied=1 << mantissa,
        mantissa=mantissa,
        lead=bits - 1 - mantissa,
    )
    declares = (
        f"declare {integer} @llvm.ctlz.{integer}({integer}, i1)",
        f"declare {integer} @llvm.umax.{integer}({integer}, {integer})",
    )
    if is_quick:
        declares += (f"declare float @{reciprocal}(float)", *_OF_QUICK)
    return name, text, declares


def floor_function(reciprocal: str, exact: str) -> tuple[str, str, tuple[str, ...]]:
    """Return name, definition and declarations of the largest whole numbers below quotients of `float` scalars.

    Args:
        reciprocal: as of `remainder_function`.
        exact: the name of a function that gives them where quotients are large, or no numbers.
    """
    name = "tessera_floordiv_f32"
    numbers = {"magnitude": (1 << 31) - 1, "exact": exact, **_NUMBERS}
    text = _FLOORED.format(name=name, cut=_CUT.format(reciprocal=reciprocal, **_NUMBERS), **numbers)
    return name, text, (f"declare float @{reciprocal}(float)", *_OF_QUICK)
