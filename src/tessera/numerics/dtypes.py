"""Element types and numeric policies.

A policy (`ts.bf16 @ ts.accum(ts.f32)` or `"bf16 @accum(f32)"`) is a dtype with the rules that go with its
arithmetic: accumulation type, loss scale, rounding. Both spellings give the same value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from tessera.data import dataclass
from tessera.errors import LanguageError, caller_location

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Args:
        name: Tessera's name, such as `bf16`.
        kind: `float`, `int`, `uint` or `bool`.
        bits: width of the value.
        storage_bits: width of one element in memory (sub-byte types take a byte, `tf32` is f32 storage).
        mantissa: explicit mantissa bits of a float type, 0 otherwise.
    """

    name: str
    kind: Kind
    bits: int
    storage_bits: int
    mantissa: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory."""
        return self.storage_bits // 8

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Whether the type is a signed or unsigned integer."""
        return self.kind in ("int", "uint")

    @property
    def storage(self) -> DType:
        """The type its elements have in memory (`f32` for `tf32`)."""
        return f32 if self.name == "tf32" else self

    def numpy(self) -> Any:
        """Return the NumPy dtype (ml_dtypes' for the types NumPy lacks)."""
        return _numpy_dtype(self.storage.name)

    def __matmul__(self, rule: Rule | Callable[[], Rule]) -> Policy:
        return Policy(self) @ rule

    def __or__(self, other: object) -> Any:
        raise LanguageError(
            f"{self!r} | {other!r}: a parameter has one type",
            code="bad-annotation",
            location=caller_location(),
            help="a number that may be missing is a compile-time one: a: ts.constexpr = None"
            if other is None
            else "take the wider type, or give the parameter a default",
        )

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"ts.{self.name}"


@cache
def _numpy_dtype(name: str) -> Any:
    import numpy as np

    plain = {
        "f64": "float64",
        "f32": "float32",
        "f16": "float16",
        "bool": "bool",
        **{f"i{b}": f"int{b}" for b in (8, 16, 32, 64)},
        **{f"u{b}": f"uint{b}" for b in (8, 16, 32, 64)},
    }
    if name in plain:
        return np.dtype(plain[name])
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))


_ML_DTYPES = {
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "fp6_e2m3": "float6_e2m3fn",
    "fp6_e3m2": "float6_e3m2fn",
    "fp4_e2m1": "float4_e2m1fn",
}

f64 = DType("f64", "float", 64, 64, 52)
f32 = DType("f32", "float", 32, 32, 23)
tf32 = DType("tf32", "float", 19, 32, 10)
f16 = DType("f16", "float", 16, 16, 10)
bf16 = DType("bf16", "float", 16, 16, 7)
fp8_e4m3 = DType("fp8_e4m3", "float", 8, 8, 3)
fp8_e5m2 = DType("fp8_e5m2", "float", 8, 8, 2)
fp6_e2m3 = DType("fp6_e2m3", "float", 6, 8, 3)
fp6_e3m2 = DType("fp6_e3m2", "float", 6, 8, 2)
fp4_e2m1 = DType("fp4_e2m1", "float", 4, 8, 1)
i8 = DType("i8", "int", 8, 8)
i16 = DType("i16", "int", 16, 16)
i32 = DType("i32", "int", 32, 32)
i64 = DType("i64", "int", 64, 64)
u8 = DType("u8", "uint", 8, 8)
u16 = DType("u16", "uint", 16, 16)
u32 = DType("u32", "uint", 32, 32)
u64 = DType("u64", "uint", 64, 64)
boolean = DType("bool", "bool", 1, 8)

ALL: tuple[DType, ...] = (
    f64,
    f32,
    tf32,
    f16,
    bf16,
    fp8_e4m3,
    fp8_e5m2,
    fp6_e2m3,
    fp6_e3m2,
    fp4_e2m1,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
    boolean,
)
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
_ALIASES = {
    "fp32": "f32",
    "fp16": "f16",
    "fp64": "f64",
    "float32": "f32",
    "float16": "f16",
    "float64": "f64",
    "bfloat16": "bf16",
    "bool_": "bool",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
}


def accumulator_of(dtype: DType) -> DType:
    """Return the default accumulation type: f32 for 32-bit floats and smaller, i32 for small integers."""
    if dtype.kind == "float":
        return f64 if dtype.name == "f64" else f32
    if dtype.kind == "bool":
        return i32
    return dtype if dtype.bits == 64 else (i32 if dtype.kind == "int" else u32)


def widens(source: DType, target: DType) -> bool:
    """Return whether a float dtype has every number of a narrower one."""
    return source.is_float and target.is_float and source.bits < target.bits >= 16


def promote(a: DType, b: DType) -> DType:
    """Return the type of `a ⊕ b` for two tiles.

    Float beats integer and keeps its own type; between floats the wider wins (`bf16 ⊕ f16` is f32); between
    integers NumPy's rule holds, except that mixed 64-bit signs give i64.
    """
    a, b = a.storage, b.storage
    if a == b:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return _promote_floats(a, b)
    if a.kind == "bool" or b.kind == "bool":
        return b if a.kind == "bool" else a
    if a.kind == b.kind:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return BY_NAME[f"i{min(unsigned.bits * 2, 64)}"]


def promote_numbers(dtype: DType, numbers: Collection[object]) -> DType:
    """Return the type of operands of a dtype and Python numbers, which adapt to it where it has their kind."""
    if any(isinstance(number, float) for number in numbers) and not dtype.is_float:
        return f32
    whole = any(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    return i32 if whole and dtype.kind == "bool" else dtype


def computed_in(dtype: DType) -> DType:
    """Return the dtype that numbers of a dtype are computed in where they are not rounded in between."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def _promote_floats(a: DType, b: DType) -> DType:
    if a.bits != b.bits:
        wide, narrow = (a, b) if a.bits > b.bits else (b, a)
        return wide if wide.bits >= 32 or narrow.bits < wide.bits else f32
    return f32 if a.bits == 16 else (f16 if a.bits <= 8 else a)


@dataclass(frozen=True, slots=True)
class Rule:
    """One numeric rule of a policy; made by `accum`, `loss_scale`, `stochastic_round`, `saturate`."""

    name: str
    value: DType | float | None = None


def accum(dtype: DType) -> Rule:
    """Accumulate in `dtype`."""
    if not isinstance(dtype, DType):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LanguageError(
            f"accum takes a dtype, got {dtype!r:.80}",
            code="bad-policy",
            location=caller_location(),
            help="write accum(ts.f32)",
        )
    return Rule("accum", dtype)


def loss_scale(scale: float) -> Rule:
    """Multiply by `scale` when storing and divide when loading gradients."""
    if not isinstance(scale, int | float) or not math.isfinite(scale):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LanguageError(
            f"{scale!r:.80} is not a loss scale",
            code="bad-policy",
            location=caller_location(),
            help="write loss_scale(128.0)",
        )
    return Rule("loss_scale", float(scale))


def stochastic_round() -> Rule:
    """Round to the storage type with probability proportional to the distance."""
    return Rule("stochastic_round")


def saturate() -> Rule:
    """Clamp to the storage type's largest finite value instead of overflowing to infinity."""
    return Rule("saturate")


@dataclass(frozen=True, slots=True)
class Policy:
    """Storage @ accumulate @ scale @ rounding.

    Args:
        dtype: storage type.
        accum: accumulation type, None for the default.
        loss_scale: scale factor.
        rounding: `nearest` or `stochastic`.
        saturate: whether conversions to the storage type clamp.
    """

    dtype: DType
    accum: DType | None = None
    loss_scale: float = 1.0
    rounding: Literal["nearest", "stochastic"] = "nearest"
    saturate: bool = False

    def __matmul__(self, rule: Rule | Callable[[], Rule]) -> Policy:
        if not isinstance(rule, Rule) and (rule is saturate or rule is stochastic_round):
            rule = rule()
        if not isinstance(rule, Rule):
            raise LanguageError(
                f"{rule!r:.80} is not a numeric rule",
                code="bad-policy",
                location=caller_location(),
                help="rules: ts.accum(dtype), ts.loss_scale(x), ts.stochastic_round, ts.saturate",
            )
        if rule.name == "accum":
            if not isinstance(rule.value, DType):
                raise LanguageError("accum needs a dtype", code="bad-policy", help="write accum(f32)")
            return replace(self, accum=rule.value)
        if rule.name == "loss_scale":
            if not isinstance(rule.value, float):
                raise LanguageError("loss_scale needs a number", code="bad-policy", help="write loss_scale(128.0)")
            return replace(self, loss_scale=rule.value)
        if rule.name == "stochastic_round":
            return replace(self, rounding="stochastic")
        return replace(self, saturate=True)

    @property
    def accumulator(self) -> DType:
        """The accumulation type that holds, given or default."""
        return self.accum or accumulator_of(self.dtype)

    def __str__(self) -> str:
        parts = [self.dtype.name]
        if self.accum is not None:
            parts.append(f"@accum({self.accum.name})")
        if self.loss_scale != 1.0:
            parts.append(f"@loss_scale({self.loss_scale})")
        if self.rounding == "stochastic":
            parts.append("@stochastic_round")
        if self.saturate:
            parts.append("@saturate")
        return " ".join(parts)


_RULE = re.compile(r"\s*@\s*(\w+)\s*(?:\(\s*([^()]*?)\s*\))?")


def dtype_named(name: str) -> DType:
    """Return the dtype called `name`.

    Raises:
        LanguageError: `unknown-dtype`, with the nearest names.
    """
    key = _ALIASES.get(name, name)
    if key not in BY_NAME:
        raise LanguageError(
            f"no dtype is called {name!r}", code="unknown-dtype", help=f"one of {', '.join(sorted(BY_NAME))}"
        )
    return BY_NAME[key]


def dtype_help(value: object, otherwise: str) -> str:
    """Return what to write for what is no dtype here: for a dtype of NumPy, PyTorch or JAX the one of its name.

    Args:
        value: what was given.
        otherwise: the help for what is no dtype anywhere.
    """
    name = getattr(value, "__name__", str(value).rpartition(".")[2])
    found = BY_NAME.get(_ALIASES.get(name, name))
    return otherwise if found is None else f"write ts.{'bool_' if found.kind == 'bool' else found.name}"


def parse_policy(text: str) -> Policy:
    """Parse `"bf16 @accum(f32) @loss_scale(128.0)"`.

    Raises:
        LanguageError: `unknown-dtype` or `bad-policy`.
    """
    head = re.match(r"\s*(?:ts\.)?(\w+)", text)
    if head is None:
        raise LanguageError(f"{text!r} is not a numeric policy", code="bad-policy", help='write "bf16 @accum(f32)"')
    policy, at = Policy(dtype_named(head.group(1))), head.end()
    while at < len(text.rstrip()):
        match = _RULE.match(text, at)
        if match is None or match.group(1) not in _RULES:
            raise LanguageError(
                f"{text[at:].strip()!r} is not a numeric rule",
                code="bad-policy",
                help="rules: @accum(dtype), @loss_scale(x), @stochastic_round, @saturate",
            )
        policy, at = policy @ _RULES[match.group(1)](match.group(2)), match.end()
    return policy


def _parse_scale(text: str | None) -> Rule:
    try:
        return loss_scale(float(text or ""))
    except ValueError as error:
        raise LanguageError(
            f"{text!r} is not a loss scale", code="bad-policy", help="write @loss_scale(128.0)"
        ) from error


_RULES: dict[str, Callable[[str | None], Rule]] = {
    "accum": lambda text: accum(dtype_named((text or "").removeprefix("ts."))),
    "loss_scale": _parse_scale,
    "stochastic_round": lambda _text: stochastic_round(),
    "saturate": lambda _text: saturate(),
}


def as_policy(value: DType | Policy | str) -> Policy:
    """Return `value` as a policy, whichever of the three spellings it has."""
    if isinstance(value, Policy):
        return value
    return Policy(value) if isinstance(value, DType) else parse_policy(value)


@cache
def from_numpy(dtype: Any) -> DType | None:
    """Return the Tessera dtype of a NumPy dtype, or None when there is none."""
    for candidate in ALL:
        if candidate.name != "tf32" and candidate.numpy() == dtype:
            return candidate
    return None
