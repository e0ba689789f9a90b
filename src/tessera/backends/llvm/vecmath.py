"""Vector transcendental functions of the CPU backend, as LLVM IR text.

`vecmath_function` writes one function over vectors of any width. The IR is generic: `llvm.fma`, bit
operations and selects, no fast-math flag and no library call. It wants a target with fused multiply-add
(x86-64-v3 and later, AArch64; elsewhere `llvm.fma` becomes a slow call), rounding to nearest and subnormals
not flushed. The result, NaN apart, has the same bits at every width, on every such target, with or without
the AVX-512 instructions that `features` allows. `fast` gives that up.

`docs/numerics.md` has the errors, which `scripts/measure_ulp.py` measures; those of f32 of one argument, up to cos, are
known of all 2^32 arguments (`tests/unit/backends/test_vecmath.py`). Infinities, NaN, zeros and their signs are as in
C99, annex F.

The `fast` form of f32 pow is off by up to 4 + 2 abs(y log2 x), its results below 2^-126 may be 0, and those from
2^127.5 on infinite. So may those of fast f32 exp and exp2 be on CPUs without AVX-512. Fast tanh and sigmoid of f32
take a reciprocal from AVX-512's estimate, and keep their errors. Subnormal results of sigmoid may be 0. Otherwise
`fast` changes nothing.
"""

from __future__ import annotations

from tessera.backends.llvm.vecmath_ir import TextWriter, abreast
from tessera.data import dataclass
from tessera.numerics.elementary import GENERATORS, Options
from tessera.numerics.elementary.writer import FORMATS, Value
from tessera.numerics.functions import FUNCTIONS


@dataclass(frozen=True)
class VecFunction:
    """One generated function.

    Attributes:
        name: The symbol, without the at sign.
        definition: The `define internal ... alwaysinline` text.
        declares: Module-level items the definition needs (declarations; for sin and cos of f64 a table and a
            helper too), each complete in itself. A module holds each text once: merge by equality.
    """

    name: str
    definition: str
    declares: tuple[str, ...]


def vecmath_function(
    fn: str, width: int, elem: str, fast: bool = False, features: frozenset[str] = frozenset()
) -> VecFunction:
    """Generate `tessera_<fn>_v<width><elem>`, or `tessera_<fn>_fast_v<width><elem>`.

    Args:
        fn: One of `GENERATORS`.
        width: Number of lanes, 1 (a scalar function) or more.
        elem: "f32" or "f64".
        fast: Trade accuracy for speed, see the table of the module.
        features: LLVM's names of the CPU features that may be used; "avx512f", "avx512dq" and "avx512vl" matter.

    Raises:
        ValueError: The function does not exist for this element type, or the width is not positive.
    """
    if fn not in GENERATORS or elem not in FORMATS:
        raise ValueError(f"no vector function {fn} for {elem}")
    if width < 1:
        raise ValueError(f"vector width {width} is not positive")
    w = TextWriter(width)
    arguments = tuple(Value(w, elem, name) for name in ("%x", "%y")[: FUNCTIONS[fn].arity])
    ready = tuple(abreast(w, argument, features) for argument in arguments)
    result = GENERATORS[fn](w, ready, Options(fast and elem == "f32", features))
    result = abreast(w, result, features)
    name = f"tessera_{fn}{'_fast' if fast else ''}_{w.suffix_of(elem)}"
    vector = w.type_of(elem)
    parameters = ", ".join(f"{vector} {argument.held}" for argument in arguments)
    lines = [f"define internal {vector} @{name}({parameters}) alwaysinline {{", "entry:", *w.lines]
    lines += [f"  ret {vector} {result.held}", "}", ""]
    return VecFunction(name, "\n".join(lines), tuple(w.declares))
