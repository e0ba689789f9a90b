"""The table of elementwise functions, shared by TIR-H and TIR-T.

One line per function: arity, the operand kinds it takes, and the kind of its result. How it is executed is
said where it is executed: `interp/elementwise.py` (NumPy) and the backends' emitters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Domain = Literal["float", "number", "int", "bool", "any", "int_or_bool"]


@dataclass(frozen=True, slots=True)
class Function:
    """One elementwise function.

    Args:
        name: its name in the IR and in `ts.tile`.
        arity: number of operands, all of one type (`select` takes a condition first).
        domain: kinds of operand it is defined for.
        result: `same` as the operands, or `bool`.
        commutative: whether operands may be exchanged.
        approximate: whether `fast` may use a target's approximation.
    """

    name: str
    arity: int
    domain: Domain
    result: Literal["same", "bool"] = "same"
    commutative: bool = False
    approximate: bool = False


_TABLE = (
    Function("add", 2, "number", commutative=True),
    Function("sub", 2, "number"),
    Function("mul", 2, "number", commutative=True),
    Function("div", 2, "float"),
    Function("floordiv", 2, "number"),
    Function("mod", 2, "number"),
    Function("mulhi", 2, "int", commutative=True),
    Function("maximum", 2, "number", commutative=True),
    Function("minimum", 2, "number", commutative=True),
    Function("pow", 2, "float", approximate=True),
    Function("neg", 1, "number"),
    Function("abs", 1, "number"),
    Function("fma", 3, "float"),
    Function("select", 3, "any"),
    Function("lt", 2, "number", "bool"),
    Function("le", 2, "number", "bool"),
    Function("gt", 2, "number", "bool"),
    Function("ge", 2, "number", "bool"),
    Function("eq", 2, "any", "bool", commutative=True),
    Function("ne", 2, "any", "bool", commutative=True),
    Function("isnan", 1, "float", "bool"),
    Function("and", 2, "int_or_bool", commutative=True),
    Function("or", 2, "int_or_bool", commutative=True),
    Function("xor", 2, "int_or_bool", commutative=True),
    Function("not", 1, "int_or_bool"),
    Function("shl", 2, "int"),
    Function("shr", 2, "int"),
    Function("floor", 1, "float"),
    Function("ceil", 1, "float"),
    Function("round", 1, "float"),
    Function("trunc", 1, "float"),
    Function("sqrt", 1, "float"),
    Function("rsqrt", 1, "float", approximate=True),
    Function("exp", 1, "float", approximate=True),
    Function("exp2", 1, "float", approximate=True),
    Function("expm1", 1, "float", approximate=True),
    Function("log", 1, "float", approximate=True),
    Function("log2", 1, "float", approximate=True),
    Function("log1p", 1, "float", approximate=True),
    Function("sin", 1, "float", approximate=True),
    Function("cos", 1, "float", approximate=True),
    Function("tanh", 1, "float", approximate=True),
    Function("erf", 1, "float", approximate=True),
    Function("sigmoid", 1, "float", approximate=True),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}


COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul", "any": "or", "all": "and"}
"""The function that a reduction combines two elements with."""


def accepts(function: Function, kind: str) -> bool:
    """Return whether operands of dtype kind `kind` (`float`, `int`, `uint`, `bool`) are in the domain."""
    allowed = {
        "float": {"float"},
        "number": {"float", "int", "uint"},
        "int": {"int", "uint"},
        "bool": {"bool"},
        "any": {"float", "int", "uint", "bool"},
        "int_or_bool": {"int", "uint", "bool"},
    }
    return kind in allowed[function.domain]
