"""The exact floating-point remainder as an LLVM function, for targets whose `frem` only divides and subtracts.

Long division on the significands, one bit of the quotient a step, as in any schoolbook `fmod`: the result is exact.
"""

from __future__ import annotations

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
  br i1 %smaller, label %unchanged, label %divide
unchanged:
  ret {F} %x
divide:
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


def remainder_function(element: str) -> tuple[str, str, tuple[str, ...]]:
    """Return name, definition and declarations of the remainder of `float` or `double` scalars (C's `fmod`)."""
    bits, mantissa = (32, 23) if element == "float" else (64, 52)
    integer, name = f"i{bits}", f"tessera_fmod_f{bits}"
    exponents = (1 << bits - 1 - mantissa) - 1
    text = _BODY.format(
        name=name,
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
    return name, text, declares
