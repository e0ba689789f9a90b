"""Elementwise functions, constants, splats and aranges.

f16, bf16 and narrower floats are computed in f32 and rounded once per op. Transcendental functions of f32 are
evaluated in f64 and rounded, which makes them the reference that backends state their ULP against. Under `strict` they
are the sequences of IEEE operations that all targets compute (`numerics.elementary`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tessera.interp.casts import to_f32
from tessera.interp.elementary import evaluate
from tessera.interp.fused import fma
from tessera.interp.gamma import lgamma
from tessera.interp.machine import Machine, handles
from tessera.interp.values import Array, dtype_at
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.numerics import dtypes
from tessera.numerics.assembly import is_assembly
from tessera.numerics.conversions import round_once
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import FUNCTIONS, ROUGH, TRANSCENDENTAL, rough

FormulaFn = Callable[..., Any]

_ERF: Any = np.frompyfunc(math.erf, 1, 1)
_ERFC: Any = np.frompyfunc(math.erfc, 1, 1)


def _in_f64(function: FormulaFn) -> FormulaFn:
    """Evaluate in f64 and give the operand's type back: the correctly rounded f32, but for rare ties."""

    def evaluate(*args: Any) -> Any:
        return function(*(arg.astype(np.float64) for arg in args)).astype(args[0].dtype)

    return evaluate


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _rsqrt(x: Any) -> Any:
    return 1.0 / np.sqrt(x)


def _erf(x: Any) -> Any:
    return np.asarray(_ERF(x)).astype(np.float64)


def _erfc(x: Any) -> Any:
    return np.asarray(_ERFC(x)).astype(np.float64)


def _maximum(a: Array, b: Array) -> Array:
    """The larger one; NaN wins, and +0 is larger than -0: a sum of zeros is -0 only of two such."""
    larger = np.maximum(a, b)
    if larger.dtype.kind != "f":
        return larger
    return np.where((a == 0) & (b == 0), a + b, larger)


def _minimum(a: Array, b: Array) -> Array:
    """The smaller one; NaN wins, and -0 is smaller than +0."""
    smaller = np.minimum(a, b)
    if smaller.dtype.kind != "f":
        return smaller
    return np.where((a == 0) & (b == 0), -(-a - b), smaller)


def _mulhi(a: Array, b: Array) -> Array:
    """Return the high half of the exact product."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(a.dtype)
    high = _mulhi_u64(a.view(np.uint64), b.view(np.uint64)).view(a.dtype)
    if a.dtype.kind == "i":  # as unsigned numbers, negative operands are 2**64 too large
        high = high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
    return high.astype(a.dtype)


def _mulhi_u64(a: Array, b: Array) -> Array:
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    carry = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (carry >> half)


def _bits_of(a: Array) -> tuple[Array, Any, int]:
    """Return the bits of integers as unsigned numbers, their type and its width."""
    kind = np.dtype(f"u{a.dtype.itemsize}")
    return np.asarray(a).view(kind), kind.type, 8 * kind.itemsize


def _rotl(a: Array, b: Array) -> Array:
    """Rotate the bits to the left; the amount counts modulo the width."""
    bits, kind, width = _bits_of(a)
    left = _bits_of(b)[0] & kind(width - 1)
    right = (kind(width) - left) & kind(width - 1)
    return ((bits << left) | (bits >> right)).view(a.dtype)


def _rotr(a: Array, b: Array) -> Array:
    """Rotate the bits to the right."""
    return _rotl(a, -b)


def _clz(a: Array) -> Array:
    """Count the zero bits above the highest one: the bits that are not below it."""
    bits, kind, width = _bits_of(a)
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> kind(shift) if shift < width else kind(0))
    return (kind(width) - np.bitwise_count(bits).astype(kind)).view(a.dtype)


def _ctz(a: Array) -> Array:
    """Count the zero bits below the lowest one."""
    bits, kind, _ = _bits_of(a)
    return np.bitwise_count(~bits & (bits - kind(1))).astype(kind).view(a.dtype)


def _popcount(a: Array) -> Array:
    bits, kind, _ = _bits_of(a)
    return np.bitwise_count(bits).astype(kind).view(a.dtype)


def _byte_perm(x: Array, y: Array, selector: Array) -> Array:
    """Pick four of the eight bytes of two words, by the low three bits of the selector's digits of four bits."""
    pool = _bits_of(x)[0].astype(np.uint64) | (_bits_of(y)[0].astype(np.uint64) << np.uint64(32))
    digits = _bits_of(selector)[0].astype(np.uint64)
    result = np.zeros_like(pool)
    for place in range(4):
        which = (digits >> np.uint64(4 * place)) & np.uint64(7)
        byte = (pool >> (which * np.uint64(8))) & np.uint64(255)
        result = result | (byte << np.uint64(8 * place))
    return result.astype(np.uint32).view(x.dtype)


_FORMULAS: dict[str, FormulaFn] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "rounded_mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "mulhi": _mulhi,
    "maximum": _maximum,
    "minimum": _minimum,
    "pow": _in_f64(np.power),
    "neg": np.negative,
    "abs": np.abs,
    "fma": fma,
    "select": np.where,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "rotl": _rotl,
    "rotr": _rotr,
    "popcount": _popcount,
    "clz": _clz,
    "ctz": _ctz,
    "byte_perm": _byte_perm,
    "copysign": np.copysign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sqrt": np.sqrt,
    "rsqrt": _in_f64(_rsqrt),
    "erf": _in_f64(_erf),
    "erfc": _in_f64(_erfc),
    "lgamma": _in_f64(lgamma),
    "sigmoid": _in_f64(_sigmoid),
}

_FORMULAS.update({name: _in_f64(getattr(np, name)) for name in TRANSCENDENTAL - _FORMULAS.keys() if hasattr(np, name)})
_FORMULAS.update({rough(name): _FORMULAS[name] for name in ROUGH})

if _FORMULAS.keys() != FUNCTIONS.keys():
    raise NotImplementedError(f"no formula for {sorted(_FORMULAS.keys() ^ FUNCTIONS.keys())}")


def _in_order(fn: str, *args: Any) -> Any:
    """Return a transcendental function by its sequence of IEEE operations."""
    return np.divide(args[0].dtype.type(1), np.sqrt(args[0])) if fn == "rsqrt" else evaluate(fn, args)


def apply(fn: str, args: tuple[Any, ...], dtype: DType, profile: str = "fast") -> Any:
    """Evaluate an elementwise function.

    Args:
        fn: its name in `numerics.functions`.
        args: NumPy scalars or arrays of one shape.
        dtype: dtype of the operands (of the last two, for `select`).
        profile: the numerics profile.

    Returns:
        A NumPy scalar or array: bool for comparisons, else of the operands' dtype.
    """
    if is_assembly(fn):
        return args[-1]
    with np.errstate(all="ignore"):
        formula = partial(_in_order, fn) if profile == "strict" and fn in TRANSCENDENTAL else _FORMULAS[fn]
        result = formula(*(arg if fn == "select" else to_f32(arg, dtype) for arg in args))
        kind = dtypes.boolean if FUNCTIONS[fn].result == "bool" else dtype
        return np.asarray(result).astype(kind.numpy(), copy=False)[()]


@handles(ElementwiseOp)
def _elementwise(op: ElementwiseOp, machine: Machine) -> Any:
    return apply(op.fn.data, machine.all(op.args), dtype_at(op.args[-1].type), machine.profile)


def scalar(value: float, dtype: DType) -> Any:
    """Return a Python number as a NumPy scalar of `dtype`; integers wrap."""
    if dtype.is_float:
        return round_once(np.asarray(value, np.float64), dtype)[()] if dtype.bits <= 32 else np.float64(value)
    if dtype.kind == "bool":
        return np.bool_(value)
    return np.asarray(int(value) & (2**dtype.bits - 1), f"u{dtype.bytes}").astype(dtype.numpy())[()]


@handles(ConstantOp)
def _constant(op: ConstantOp, machine: Machine) -> Any:
    return scalar(op.python_value, dtype_at(op.result.type))


@handles(BitcastOp)
def _bitcast(op: BitcastOp, machine: Machine) -> Any:
    source = np.asarray(machine.get(op.source))
    return np.ascontiguousarray(source).view(dtype_at(op.result.type).numpy()).reshape(source.shape)[()]


@handles(SplatOp)
def _splat(op: SplatOp, machine: Machine) -> Any:
    return np.full(op.result.type.shape, machine.get(op.value))


@handles(ArangeOp)
def _arange(op: ArangeOp, machine: Machine) -> Any:
    return np.arange(op.result.type.shape[0]).astype(dtype_at(op.result.type).numpy())
