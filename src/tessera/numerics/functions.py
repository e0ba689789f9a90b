"""The table of elementwise functions, shared by all levels of the IR.

A new one, such as sinh, takes a line here, a declaration with its docstring in `frontend/tile/math.py`, and what CPUs,
GPUs and, under `strict`, the interpreter compute in `numerics/elementary`. Otherwise the interpreter takes NumPy's
function of the same name; one that NumPy lacks has its formula in `interp/elementwise.py`. Tests name the place that is
missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tessera.data import dataclass
from tessera.errors import TypeMismatchError
from tessera.numerics.assembly import is_assembly
from tessera.numerics.dtypes import DType, f32, i32

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
        cost: vector instructions of a CPU, roughly; only ratios matter.
        special: whether a GPU's special function unit computes it, or most of it.
        ulp: what every backend keeps in f32 and f64, `fast` included, for a function that it may approximate: the error
            of the result, and of the argument, in units in the last place (two unit roundoffs). Of the argument, as
            `ex2.approx(x * log2 e)` rounds the product, and the fast power goes through the logarithm likewise.
        bits: the only width of operands, None for all.
    """

    name: str
    arity: int
    domain: Domain
    result: Literal["same", "bool"] = "same"
    commutative: bool = False
    cost: int = 1
    special: bool = False
    ulp: tuple[float, float] | None = None
    bits: int | None = None


_TABLE = (
    Function("add", 2, "number", commutative=True),
    Function("sub", 2, "number"),
    Function("mul", 2, "number", commutative=True),
    Function("rounded_mul", 2, "float", commutative=True),
    Function("div", 2, "float", cost=4, special=True),
    Function("floordiv", 2, "number", cost=20),
    Function("mod", 2, "number", cost=20),
    Function("mulhi", 2, "int", commutative=True),
    Function("maximum", 2, "number", commutative=True),
    Function("minimum", 2, "number", commutative=True),
    Function("pow", 2, "float", cost=40, special=True, ulp=(4.0, 2.0)),
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
    Function("isinf", 1, "float", "bool", cost=2),
    Function("isfinite", 1, "float", "bool", cost=2),
    Function("and", 2, "int_or_bool", commutative=True),
    Function("or", 2, "int_or_bool", commutative=True),
    Function("xor", 2, "int_or_bool", commutative=True),
    Function("not", 1, "int_or_bool"),
    Function("shl", 2, "int"),
    Function("shr", 2, "int"),
    Function("rotl", 2, "int"),
    Function("rotr", 2, "int"),
    Function("popcount", 1, "int", cost=8),
    Function("clz", 1, "int", cost=8),
    Function("ctz", 1, "int", cost=8),
    Function("byte_perm", 3, "int", cost=16, bits=32),
    Function("copysign", 2, "float"),
    Function("floor", 1, "float"),
    Function("ceil", 1, "float"),
    Function("round", 1, "float"),
    Function("trunc", 1, "float"),
    Function("sqrt", 1, "float", cost=5, special=True),
    Function("rsqrt", 1, "float", cost=8, special=True, ulp=(3.0, 0.0)),
    Function("exp", 1, "float", cost=12, special=True, ulp=(3.0, 1.0)),
    Function("exp2", 1, "float", cost=12, special=True, ulp=(3.0, 0.0)),
    Function("expm1", 1, "float", cost=16, ulp=(3.0, 0.0)),
    Function("log", 1, "float", cost=14, special=True, ulp=(3.0, 0.0)),
    Function("log2", 1, "float", cost=14, special=True, ulp=(3.0, 0.0)),
    Function("log1p", 1, "float", cost=18, ulp=(3.0, 0.0)),
    Function("sin", 1, "float", cost=20, special=True, ulp=(3.0, 0.0)),
    Function("cos", 1, "float", cost=20, special=True, ulp=(3.0, 0.0)),
    Function("tanh", 1, "float", cost=20, special=True, ulp=(3.0, 0.0)),
    Function("erf", 1, "float", cost=24, special=True, ulp=(3.0, 0.0)),
    Function("log10", 1, "float", cost=14, special=True, ulp=(3.0, 0.0)),
    Function("tan", 1, "float", cost=26, special=True, ulp=(4.0, 0.0)),
    Function("atan", 1, "float", cost=24, ulp=(3.0, 0.0)),
    Function("atan2", 2, "float", cost=32, ulp=(3.0, 0.0)),
    Function("asin", 1, "float", cost=24, ulp=(3.0, 0.0)),
    Function("acos", 1, "float", cost=24, ulp=(3.0, 0.0)),
    Function("cbrt", 1, "float", cost=24, ulp=(2.0, 0.0)),
    Function("hypot", 2, "float", commutative=True, cost=16, special=True, ulp=(2.0, 0.0)),
    Function("erfc", 1, "float", cost=40, special=True, ulp=(5.0, 0.0)),
    Function("lgamma", 1, "float", cost=60, special=True, ulp=(6.0, 0.0)),
    Function("sigmoid", 1, "float", cost=16, special=True, ulp=(5.0, 1.0)),
)

ROUGH = frozenset(
    "acos asin atan atan2 cos erfc exp expm1 hypot lgamma log log2 log10 log1p pow sigmoid sin sqrt tan tanh".split()
)
"""The functions that have a second form, for results that are 16-bit floats where they are not kept in f32."""
ROUGH_ERROR = 2.0**-14
"""Of such a form, relative to the result, which a rounding to f16 changes by up to 2^-11, one to bf16 by 2^-8."""


def rough(fn: str) -> str:
    """Return the name of the form of a function that is good for 16-bit floats."""
    return f"rough_{fn}"


def exact(fn: str) -> str:
    """Return the name of the function whose rough form one is, or its own."""
    return fn.removeprefix("rough_")


def _rough(function: Function) -> Function:
    ulp = (ROUGH_ERROR * 2**23, 0.0)
    return replace(function, name=rough(function.name), cost=function.cost // 2, special=True, ulp=ulp)


FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}
FUNCTIONS.update({rough(name): _rough(FUNCTIONS[name]) for name in sorted(ROUGH)})
_ASSEMBLY = Function("asm", 0, "any", cost=4)


def function_named(fn: str) -> Function | None:
    """Return the record of a function by its name in the IR, None for no function.

    That of inline assembly (`numerics/assembly.py`) says nothing of its operands: they may have different dtypes.
    """
    return _ASSEMBLY if is_assembly(fn) else FUNCTIONS.get(fn)


def record_of(fn: str) -> Function:
    """Return the record of a function that there is."""
    return _ASSEMBLY if is_assembly(fn) else FUNCTIONS[fn]


INTERNAL = frozenset({"rounded_mul", *map(rough, ROUGH)})
"""The functions that the compiler writes, not programs: products that no addition is fused with, and rough forms."""

TRANSCENDENTAL = frozenset(name for name, function in FUNCTIONS.items() if function.ulp is not None)
"""The functions that no processor rounds correctly: `fast` may use a target's approximation."""


COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul", "any": "or", "all": "and"}
"""The function that a reduction combines two elements with."""


def identity_of(fn: str, dtype: DType) -> float:
    """Return the value that a reduction ignores; of sums it is +0."""
    if fn in ("sum", "any"):
        return 0
    if fn in ("prod", "all"):
        return 1
    if dtype.is_float:
        return float("-inf") if fn == "max" else float("inf")
    low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
    high = (1 << dtype.bits - (dtype.kind == "int")) - 1
    return low if fn == "max" else high


def domain_dtype(fn: str, dtype: DType, what: str) -> DType:
    """Return the dtype that a function computes in for operands of a dtype.

    Args:
        fn: the function's name.
        dtype: what its operands are promoted to.
        what: its name in messages.

    Raises:
        TypeMismatchError: `dtype-mismatch` outside its domain.
    """
    domain = FUNCTIONS[fn].domain
    if domain == "float" and not dtype.is_float:
        return f32
    if domain in ("number", "int") and dtype.kind == "bool":
        return i32
    if domain in ("int", "int_or_bool") and dtype.is_float:
        raise TypeMismatchError(
            f"{what} is not defined for {dtype}",
            code="dtype-mismatch",
            help="cast to an integer or bool type first",
        )
    return dtype


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
