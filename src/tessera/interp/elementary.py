"""Elementary functions on NumPy by the sequences of `numerics.elementary`, which are what `strict` gives everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.interp.fused import fma
from tessera.interp.values import Array
from tessera.numerics.elementary import GENERATORS, Options
from tessera.numerics.elementary.trigonometry import HALF_PI, HALF_PI_LOW, TWO_OVER_PI_WORDS
from tessera.numerics.elementary.writer import FLOAT_KINDS, FORMATS, Operand, Value, Writer

_KINDS: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.uint32,  # wraps, and shifts zeros in
    "i64": np.uint64,
    "i1": np.bool_,
}


def _signed(value: Any) -> Array:
    return np.asarray(value).view(np.int32 if value.dtype == np.uint32 else np.int64)


def _less_or_greater(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _signed_less(a: Array, b: Array) -> Array:
    return _signed(a) < _signed(b)


def _funnel(high: Array, low: Array, count: Array) -> Array:
    """Return the upper half of two words shifted to the left by less than 32 bits."""
    both = high.astype(np.uint64) << np.uint64(32) | low
    return (both << count.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "lshr": np.right_shift,
}
_COMPARE: dict[str, Callable[..., Any]] = {
    "olt": np.less,
    "oge": np.greater_equal,
    "ogt": np.greater,
    "oeq": np.equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "une": np.not_equal,
    "one": _less_or_greater,
    "uno": _unordered,
    "slt": _signed_less,
    "ult": np.less,
}
_INTRINSICS: dict[str, Callable[..., Any]] = {
    "fma": fma,
    "fabs": np.abs,
    "sqrt": np.sqrt,
    "copysign": np.copysign,
    "rint": np.rint,
    "fshl": _funnel,
}


def evaluate(fn: str, args: Sequence[Any]) -> Any:
    """Return an elementary function's values.

    Args:
        fn: one of `GENERATORS`.
        args: f32 or f64 arrays or scalars, all of one type.
    """
    kind = "f64" if args[0].dtype == np.float64 else "f32"
    writer = Arrays()
    given = tuple(Value(writer, kind, np.asarray(arg)) for arg in args)
    with np.errstate(all="ignore"):
        result = GENERATORS[fn](writer, given, Options(False, frozenset())).held
    return np.broadcast_to(result, np.broadcast_shapes(*(np.shape(arg) for arg in args)))


class Arrays(Writer):
    """Computes with arrays; of branches it takes both, and the values of the one that holds for any element."""

    def __init__(self) -> None:
        self.width = 1
        self.block = "entry"

    def const(self, kind: str, value: float) -> Value:
        """An array of one number."""
        if kind in FLOAT_KINDS:
            return Value(self, kind, np.asarray(FORMATS[kind].nearest(value), _KINDS[kind]))
        return Value(self, kind, np.asarray(int(value) & ((1 << int(kind[1:])) - 1), _KINDS[kind]))

    def binary(self, opcode: str, left: Value, right: Operand) -> Value:
        """NumPy's function, whose integers wrap."""
        right = self.operand(left.kind, right)
        return Value(self, left.kind, np.asarray(_BINARY[opcode](left.held, right.held)))

    def compare(self, predicate: str, left: Value, right: Operand) -> Value:
        """NumPy's comparison."""
        right = self.operand(left.kind, right)
        return Value(self, "i1", np.asarray(_COMPARE[predicate](left.held, right.held)))

    def convert(self, opcode: str, value: Value, kind: str) -> Value:
        """The same bits, or the same number in another type."""
        if value.kind == kind:
            return value
        if opcode == "bitcast":
            return Value(self, kind, np.ascontiguousarray(value.held).view(_KINDS[kind]).reshape(value.held.shape))
        source = _signed(value.held) if opcode == "sitofp" else value.held
        return Value(self, kind, source.astype(_KINDS[kind]))

    def select(self, condition: Value, true: Operand, false: Operand) -> Value:
        """`np.where`."""
        kind = true.kind if isinstance(true, Value) else false.kind if isinstance(false, Value) else ""
        true, false = self.operand(kind, true), self.operand(kind, false)
        return Value(self, kind, np.where(condition.held, true.held, false.held))

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """NumPy's function, or an exact one."""
        held = _INTRINSICS[name](*(argument.held for argument in arguments))
        return Value(self, arguments[0].kind, np.asarray(held))

    def negate(self, x: Value) -> Value:
        """The other sign."""
        return Value(self, x.kind, np.asarray(np.negative(x.held)))

    def unit(self, instruction: str, *xs: Value) -> Value:
        """Nothing here has a GPU's units."""
        raise NotImplementedError

    def avx512(self, name: str, arguments: tuple[Value, ...], immediates: tuple[str, ...], suffix: str) -> Value:
        """Nothing: functions that are given no features do not ask for it."""
        raise NotImplementedError(name)

    def any_lane(self, condition: Value) -> Value:
        """Whether it holds for any element."""
        return Value(self, "i1", np.asarray(condition.held).any())

    def branch(self, condition: Value, true: str, false: str) -> None:
        """Go on with the first block."""

    def jump(self, block: str) -> None:
        """Go on."""

    def start(self, block: str) -> None:
        """Open a block."""
        self.block = block

    def phi(self, kind: str, incoming: Sequence[tuple[Value, str]]) -> Value:
        """The value of the longer way, which is right for every element."""
        return incoming[-1][0]

    def large_remainder(self, a: Value) -> tuple[Value, Value, Value]:
        """The remainders, by integers of any size."""
        columns = zip(*(_reduced(float(each)) for each in a.held.reshape(-1)), strict=True)
        head, tail, factor, quadrant = (np.asarray(column).reshape(a.held.shape) for column in columns)
        half_pi = np.asarray(HALF_PI)
        low = fma(tail * 2.0**-53, half_pi, head * HALF_PI_LOW)
        high = fma(head, half_pi, low)
        rest = fma(head, half_pi, -high) + low
        return (
            Value(self, "f64", high * factor),
            Value(self, "f64", rest * factor),
            Value(self, "i64", quadrant.astype(np.uint64)),
        )


def _reduced(a: float) -> tuple[float, float, float, int]:
    """Return f64 number over pi/2 less its nearest integer, as two parts and a factor, and that integer modulo 4.

    The steps are those of `backends.llvm.vecmath_remainder`.
    """
    bits = int(np.float64(a).view(np.uint64))
    mantissa, position = bits & _ones(52) | 1 << 52, max((bits >> 52) - (1075 - 62), 0)
    words = (0, *TWO_OVER_PI_WORDS)
    whole = sum(words[position // 64 + i] << 64 * (3 - i) for i in range(4))
    window = whole << position % 64 >> 64 & _ones(192)
    first, second, third = window >> 128, window >> 64 & _ones(64), window & _ones(64)
    product = (mantissa * first << 64) + mantissa * second + (mantissa * third >> 64) & _ones(128)
    quadrant = (product + (1 << 125) & _ones(128)) >> 126
    fraction = product - (quadrant << 126) & _ones(128)
    negative = fraction >> 127 == 1
    size = (1 << 128) - fraction if negative else fraction
    zeros = 128 - size.bit_length() & 127
    normal = size << zeros & _ones(128)
    factor = (-1.0 if negative else 1.0) * 2.0 ** (-51 - zeros)
    return float(normal >> 75), float(normal >> 22 & _ones(53)), factor, quadrant


def _ones(count: int) -> int:
    return (1 << count) - 1
