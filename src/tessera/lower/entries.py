"""What the code of a launch is called: an identifier of every assembler, which no library function has."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"(_[0-9]|_?[A-Za-z])[A-Za-z0-9_]*")
_ODD = re.compile(r"[^A-Za-z0-9_]")
_TAKEN = frozenset(
    f"{name}{of}"
    for name in (
        "acos asin atan atan2 cbrt ceil copysign cos cosh exp exp10 exp2 fabs floor fma fmax fmaximum fmaximum_num fmin"
        " fminimum fminimum_num fmod frexp ldexp llrint llround log log10 log2 lrint lround modf nearbyint pow rint"
        " round roundeven sin sincos sinh sqrt tan tanh trunc"
    ).split()
    for of in ("", "f", "l")
) | frozenset(
    "WARP_SZ abort bcmp bzero calloc free malloc memcmp memcpy memmove memset printf realloc strlen strnlen"
    " vprintf".split()
)
"""What generated code calls or may call without saying so, and a word of PTX.

Sources: LLVM's `RuntimeLibcalls.td`; PTX ISA, "Predefined identifiers"; CUDA C++ Programming Guide, "Formatted output".
"""


def entry_name(kernel: str) -> str:
    """Return the name of a kernel's code: its own, where that can be one.

    Names of Python may hold any letter, and names that a program gives (`function.__name__ = "gemm[64]"`) anything.
    LLVM and PTX take ASCII; `_` alone is no identifier of PTX; and a function called `fmaf` would be called by what
    LLVM makes of a fused multiply-add.
    """
    if _PLAIN.fullmatch(kernel) and kernel not in _TAKEN:
        return kernel
    return "kernel_" + _ODD.sub(lambda odd: f"_{ord(odd[0]):x}_", kernel)
