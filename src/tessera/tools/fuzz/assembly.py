"""Functions of two operands as inline assembly, for each machine."""

from __future__ import annotations

KINDS = ("f32", "f64", "i16", "u16", "i32", "u32", "i64", "u64")
FUNCTIONS = ("add", "sub", "mul", "and", "or", "xor")

_OF_FLOATS = ("add", "sub", "mul")
_SUFFIX = {16: "w", 32: "l", 64: "q"}


def text_for(fn: str, dtype: str) -> dict[str, str] | None:
    """Return the texts of a function of two numbers, by machine; None for one that has none."""
    if fn not in FUNCTIONS or (dtype[0] == "f" and fn not in _OF_FLOATS):
        return None
    bits = int(dtype[1:])
    if dtype[0] == "f":
        short = "s" if bits == 32 else "d"
        return {
            "ptx": f"{fn}.rn.{dtype} $0, $1, $2;",
            "x86_64": f"movap{short} $1, $0; {fn}s{short} $2, $0",
            "aarch64": f"f{fn} ${{0:{short}}}, ${{1:{short}}}, ${{2:{short}}}",
        }
    kind = f"b{bits}" if fn in ("and", "or", "xor") else f"s{bits}"
    suffix, name = _SUFFIX[bits], "mul.lo" if fn == "mul" else fn
    return {
        "ptx": f"{{ .reg .b{bits} %both; {name}.{kind} %both, $1, $2; mov.b{bits} $0, %both; }}",
        "x86_64": f"mov{suffix} $1, $0; {'imul' if fn == 'mul' else fn}{suffix} $2, $0",
    }


def helper_name(fn: str) -> str:
    """Return the name of the function of the language that computes the same."""
    return f"asm_{fn}"


FENCE = {
    "ptx": "{ .reg .b32 %sum; add.s32 %sum, $1, 1; membar.cta; }",
    "x86_64": "mfence",
    "aarch64": "dmb ish",
}
"""Assembly that acts, and changes nothing that a program computes."""

SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
