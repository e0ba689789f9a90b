"""The table of elementwise functions: what they take and how a program may spell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tessera.tools.fuzz.types import Type, broadcast, common, is_float


@dataclass(frozen=True, slots=True)
class Function:
    """An elementwise function.

    Args:
        name: its name in `ts.tile` and in the tree.
        arity: number of operands.
        domain: `number` (int and float), `float` (integers are converted to f32), `int`, `bits` (int and bool), `any`,
            `word` (32-bit integers, which become u32).
        forms: how it is written, with `{0}`, `{1}`, … for the operands; `ts.tile.NAME(…)` when there is none.
        result: `same` or `bool`.
        augmented: the operator of the augmented assignment that means it, if there is one.
    """

    name: str
    arity: int
    domain: str
    forms: tuple[str, ...] = ()
    result: str = "same"
    augmented: str = ""


def _binary(name: str, sign: str, domain: str = "number") -> Function:
    return Function(name, 2, domain, (f"({{0}} {sign} {{1}})",), augmented=sign)


def _compare(name: str, sign: str, domain: str = "number") -> Function:
    return Function(name, 2, domain, (f"({{0}} {sign} {{1}})",), result="bool")


APPROXIMATE: Final = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "sin",
    "cos",
    "tanh",
    "erf",
    "sigmoid",
    "silu",
    "softplus",
    "gelu",
    "gelu_tanh",
    "rsqrt",
    "log10",
    "tan",
    "atan",
    "asin",
    "acos",
    "cbrt",
    "erfc",
    "lgamma",
)
"""Functions of one float that implementations may be off by a few ULP in."""

ACTIVATIONS: Final = (
    "mish",
    "elu",
    "elu_half",
    "selu",
    "leaky_relu",
    "leaky_relu_eighth",
    "hardsigmoid",
    "hardswish",
)
"""Activations of one float that the library has in the language itself."""

GATES: Final = ("swiglu", "geglu", "geglu_tanh")
"""Those of two, a gate and what it lets through."""

CLASSES: Final = ("isnan", "isinf", "isfinite")
"""Questions about one float."""

BIT_COUNTS: Final = ("popcount", "clz", "ctz")
"""Counts of bits of one integer."""

_TABLE = (
    _binary("add", "+"),
    _binary("sub", "-"),
    _binary("mul", "*"),
    _binary("div", "/", "float"),
    _binary("floordiv", "//"),
    _binary("mod", "%"),
    _binary("and", "&", "bits"),
    _binary("or", "|", "bits"),
    _binary("xor", "^", "bits"),
    _binary("shl", "<<", "int"),
    _binary("shr", ">>", "int"),
    Function("mulhi", 2, "int"),
    *(Function(name, 2, "int") for name in ("rotl", "rotr")),
    *(Function(name, 1, "int") for name in BIT_COUNTS),
    Function("byte_perm", 3, "word"),
    Function("maximum", 2, "number", ("ts.tile.maximum({0}, {1})", "max({0}, {1})")),
    Function("minimum", 2, "number", ("ts.tile.minimum({0}, {1})", "min({0}, {1})")),
    Function("cdiv", 2, "int", ("ts.cdiv({0}, {1})",)),
    Function("pow", 2, "float", ("({0} ** {1})", "ts.tile.pow({0}, {1})")),
    Function("neg", 1, "number", ("(-{0})",)),
    Function("not", 1, "bits", ("(~{0})",)),
    Function("abs", 1, "number", ("ts.tile.abs({0})", "abs({0})")),
    Function("relu", 1, "number"),
    Function("clamp", 3, "number"),
    Function("fma", 3, "float"),
    _compare("lt", "<"),
    _compare("le", "<="),
    _compare("gt", ">"),
    _compare("ge", ">="),
    _compare("eq", "==", "any"),
    _compare("ne", "!=", "any"),
    *(Function(name, 1, "float", result="bool") for name in CLASSES),
    Function("sign", 1, "number"),
    *(Function(name, 2, "float") for name in ("copysign", "hypot", "atan2")),
    *(Function(name, 1, "float") for name in ("floor", "ceil", "round", "trunc", "sqrt")),
    *(Function(name, 1, "float") for name in APPROXIMATE if name != "gelu_tanh"),
    Function("gelu_tanh", 1, "float", ("ts.tile.gelu({0}, approximate=True)",)),
    *(Function(name, 1, "float") for name in ACTIVATIONS if name not in ("elu_half", "leaky_relu_eighth")),
    Function("elu_half", 1, "float", ("ts.tile.elu({0}, 0.5)",)),
    Function("leaky_relu_eighth", 1, "float", ("ts.tile.leaky_relu({0}, slope=0.125)",)),
    *(Function(name, 2, "float") for name in GATES if name != "geglu_tanh"),
    Function("geglu_tanh", 2, "float", ("ts.tile.geglu({0}, {1}, approximate=True)",)),
)

FUNCTIONS: Final = {function.name: function for function in _TABLE}


def operand_dtype(name: str, types: Sequence[Type]) -> str:
    """Return the dtype that a function's operands are converted to."""
    dtype, domain = common(types), FUNCTIONS[name].domain
    if domain == "word":
        return "u32"
    if domain == "float" and not is_float(dtype):
        return "f32"
    return "i32" if domain in ("number", "int") and dtype == "bool" else dtype


def result_type(name: str, types: Sequence[Type]) -> Type:
    """Return the type of a function's result."""
    dtype = "bool" if FUNCTIONS[name].result == "bool" else operand_dtype(name, types)
    return Type(dtype, broadcast(*(type_.shape for type_ in types)))
