"""Works around assembler bugs: rewrites PTX text, before it is assembled, so that it is translated correctly.

Plain LLVM IR would not do: LLVM folds each spelling into the one that goes wrong. Each rewrite names the versions it is
for; `tests/conformance/test_wrapping.py` runs the programs that show the fault.
"""

from __future__ import annotations

import re

from tessera.backends.nvidia.mnemonics import word
from tessera.target.nvidia import compute_capability
from tessera.target.records import TargetRecord

_SIGN_SET = re.compile(word("or") + r"\.b32\s+(%\w+), (%\w+), (-\d+);")
_NARROW_EXTREME = re.compile(f"({word('max', 'min')})" + r"\.([su])16\s+(%\w+), ([^,;]+), ([^;]+);")
_ABSOLUTE = re.compile(word("abs") + r"\.s(16|32|64)\s+(%\w+), (%\w+);")
_EXTREME = re.compile(word("max", "min") + r"\.[su](?:16|32)\b")
_NARROW_DIFFERENCE = re.compile(word("sub") + r"\.s16\s+(%\w+), (%\w+), (%\w+);")
_NO_MAXIMUM = re.compile(word("max") + r"\.u64\s+(%\w+), (%\w+), 0;")
_NARROW_NEGATION = re.compile(word("neg", "sub") + r"\.s(16)\s+(%\w+), (?:0, )?(%\w+);")
_NEGATION = re.compile(word("neg") + r"\.s(32)\s+(%\w+), (%\w+);")
_LARGER = re.compile(word("max") + r"\.u32\s+(%\w+), (%\w+), (\d+);")
_LIMITED = re.compile(word("min") + r"\.s32\s+%\w+, (%\w+), \d+;")
_SHIFT = re.compile(word("shr") + r"\.s32\s+(%\w+), (%\w+), (\d+);")
_PRODUCT = re.compile(word("mul") + r"((?:\.ftz)?(?:\.sat)?\.f32\s+%\w+, (%\w+), (%\w+);)")
_READ_AT = re.compile(word("ld", "atom") + r"\.[\w.:]+\s+(%\w+), \[(%\w+)\]")
_COPY = re.compile(word("mov") + r"\.[bfsu]32\s+(%\w+), (%\w+);")
_UPPER = re.compile(word("mul") + r"\.hi\.u32\s+(%\w+), ([^,;]+), ([^;]+);")
_EXTENDED = re.compile(word("cvt") + r"\.u64\.u32\s+%\w+, (%\w+);|" + word("mov") + r"\.b64\s+%\w+, \{(%\w+), 0\};")
_LESS = re.compile(word("sub", "neg") + r"\.[su]64\b")
_OWN = "%tessera_"
"""How registers of these rewrites begin: inline assembly has names of its own."""
_ENTRY = re.compile(r"(?=^\.visible \.entry )", re.MULTILINE)
_HALVES = re.compile(word("mov") + r"\.b32\s+\{(_|%\w+), (%\w+)\}, (%\w+);")
_UNPACKED_FP8 = re.compile(word("cvt") + r"\.rn\.f16x2\.e\dm\dx2\s+%\w+, (%\w+);")
_LOADED = re.compile(r"^\s*ld(?:matrix)?\.[^{%]*(?:\{([^}]*)\}|(%\w+))", re.MULTILINE)


def respelled(ptx: str, target: TargetRecord) -> str:
    """Return PTX that assemblers, and drivers that compile it, translate correctly for the target.

    `max.u64(x, 0)` is x: ptxas and nvJitLink 13.0 make 0 of it where x is a signed minimum with 0.
    """
    ptx = _NO_MAXIMUM.sub(r"mov.b64 \t\1, \2;", _NARROW_DIFFERENCE.sub(_spelled_difference, ptx))
    ptx = _SIGN_SET.sub(_by_table, _NARROW_NEGATION.sub(_spelled_negation, _ABSOLUTE.sub(_wrapped_absolute, ptx)))
    ptx = _SHIFT.sub(_extracted, ptx)
    if _LESS.search(ptx) is not None and _UPPER.search(ptx) is not None:
        ptx = "".join(map(_whole_products, _ENTRY.split(ptx)))
    if _PRODUCT.search(ptx) is not None:
        ptx = "".join(map(_no_squares, _ENTRY.split(ptx)))
    if _LARGER.search(ptx) is not None and _LIMITED.search(ptx) is not None:
        ptx = "".join(map(_signed_extremes, _ENTRY.split(ptx)))
    if _UNPACKED_FP8.search(ptx) is not None:
        ptx = "".join(map(_shifted_halves, _ENTRY.split(ptx)))
    if not 90 <= compute_capability(target.name) < 120 or _EXTREME.search(ptx) is None:
        return ptx
    return _NARROW_EXTREME.sub(_widened_extreme, _NEGATION.sub(_spelled_negation, ptx))


def _shifted_halves(entry: str) -> str:
    """Shift a word for its upper two fp8 numbers, unless it comes straight from a load.

    Where ptxas and nvJitLink 13.0 to 13.5 find late that the word is a constant, such as what a masked load gives that
    never happens, they convert some small number instead of the constant's upper half (sm_89 to sm_120).
    """
    unpacked = set(_UNPACKED_FP8.findall(entry))
    loaded = set(re.findall(r"%\w+", " ".join(several or one for several, one in _LOADED.findall(entry))))

    def shifted(found: re.Match[str]) -> str:
        lower, upper, word = found.groups()
        if upper not in unpacked or word in loaded:
            return found.group()
        rest = "" if lower == "_" else f"cvt.u16.u32 {lower}, {word}; "
        return f"{{ .reg .b32 {_OWN}high; shr.u32 {_OWN}high, {word}, 16; {rest}cvt.u16.u32 {upper}, {_OWN}high; }}"

    return _HALVES.sub(shifted, entry)


def _whole_products(entry: str) -> str:
    """Take the upper half of a product, where it becomes 64 bits wide, from the whole of it.

    ptxas and nvJitLink 13.0 subtract `y` from it in one IMAD.HI that adds the negated lower half of `y`, and take its
    carry: of a lower half of 0 there is none, and the difference is too small by 2^32 (seen on sm_90, and in the
    machine code for sm_75 to sm_100).
    """
    extended = {one or other for one, other in _EXTENDED.findall(entry)}

    def whole(found: re.Match[str]) -> str:
        result, left, right = found.groups()
        if result not in extended:
            return found.group()
        both = f"{_OWN}both"
        return f"{{ .reg .b64 {both}; mul.wide.u32 {both}, {left}, {right}; mov.b64 {{_, {result}}}, {both}; }}"

    return _UPPER.sub(whole, entry)


def _no_squares(entry: str) -> str:
    """Round products of two numbers that were read at one address, which is all that `.rn` changes.

    ptxas and nvJitLink 13.0 take `mul.f32` of them for a square, whatever was written between the reads (or done by the
    atomics that read): they leave `abs` out, and make a constant of `x * y < 0` (seen for sm_75 to sm_90).
    """
    places: dict[str, set[str]] = {}
    for register, address in _READ_AT.findall(entry):
        places.setdefault(register, set()).add(address)
    copies, grows = _COPY.findall(entry), True
    while grows:
        grows = False
        for register, source in copies:
            new = places.get(source, set()) - places.setdefault(register, set())
            places[register] |= new
            grows = grows or bool(new)

    def rounded(found: re.Match[str]) -> str:
        rest, left, right = found.groups()
        if left == right or places.get(left, set()).isdisjoint(places.get(right, set())):
            return found.group()
        return f"mul.rn{rest}"

    return _PRODUCT.sub(rounded, entry)


def _extracted(found: re.Match[str]) -> str:
    """Write `x >> c` as the bits of x from c on, with their sign.

    ptxas and nvJitLink 13.0 take the result for positive where they know no more of x than that it is negative, and
    compare it so: `~(x >> 1) >> 1 < 0` with the inner shift unsigned is false there (seen for sm_80 and sm_90,
    `scripts/check_assembler.py`). LLVM knows better wherever it sees as much.
    """
    result, operand, count = found.groups()
    if not 0 < int(count) < 31:
        return found.group()
    return f"bfe.s32 \t{result}, {operand}, {count}, {32 - int(count)};"


def _signed_extremes(entry: str) -> str:
    """Write unsigned maxima with constants, of which a signed minimum is taken, as signed ones.

    ptxas and nvJitLink 13.0 take `min.s32(max.u32(x, c), d)` for a number from c to d, where of -1 it is -1, and leave
    out the `& 65535` behind it (seen for sm_80 and sm_90, `scripts/check_assembler.py`).
    """
    limited = set(_LIMITED.findall(entry))

    def signed(found: re.Match[str]) -> str:
        result, operand, constant = found.groups()
        if result not in limited:
            return found.group()
        flip = f"xor.b32 {result}, {{}}, -2147483648;"
        larger = f"max.s32 {result}, {result}, {int(constant) - (1 << 31)};"
        return f"{flip.format(operand)} {larger} {flip.format(result)}"

    return _LARGER.sub(signed, entry)


def _wrapped_absolute(found: re.Match[str]) -> str:
    """Write absolute values as `(x ^ s) - s`, where s is -1 for negative numbers and else 0.

    ptxas and nvJitLink 13.0 take `abs` for positive also of the least number, which wraps to itself (16 bits: sm_75 to
    sm_120), and the negation of `abs.s64` for the least number in comparisons, minima and maxima, whatever it is of:
    `max(-abs(x), -65535)` is -65535 there for every x (32 and 64 bits: seen on sm_90, `scripts/check_assembler.py`).
    """
    bits, result, operand = found.groups()
    sign, number = f"{_OWN}sign", f"{_OWN}number"
    parts = f"shr.s{bits} {sign}, {operand}, {int(bits) - 1}; xor.b{bits} {number}, {operand}, {sign};"
    return f"{{ .reg .b{bits} {sign}, {number}; {parts} sub.s{bits} {result}, {number}, {sign}; }}"


def _by_table(found: re.Match[str]) -> str:
    """Write `x | c` with a negative `c` as the same instruction by its truth table.

    ptxas and nvJitLink 13.0 take `(x | -2147483648) >> 1` for positive where they compare it with constants (32 bits:
    seen on sm_90, `scripts/check_assembler.py`), which LLVM leaves to them only where it finds constants late.
    """
    result, operand, constant = found.groups()
    return f"lop3.b32 \t{result}, {operand}, {constant}, 0, 0xfc;"


def _spelled_negation(found: re.Match[str]) -> str:
    """Write `-x` as `~x + 1`.

    ptxas and nvJitLink 13.0 negate 16 bits as 32, and compare, shift and widen the result as if it never wrapped: of
    -32768 `neg.s16` gives 32768 there (seen for sm_80 and sm_90). Of 32 bits, for sm_90 to sm_103, ptxas, nvJitLink and
    drivers up to CUDA 13.3 make one VIMNMX3 of `max(max(a, b), c)` and forget the negation of its second operand.
    """
    bits, result, operand = found.groups()
    return f"not.b{bits} \t{result}, {operand}; add.s{bits} \t{result}, {result}, 1;"


def _spelled_difference(found: re.Match[str]) -> str:
    """Write `a - b` of 16 bits as `~b + a + 1`, which takes as many instructions: `a` may turn out to be 0."""
    result, left, right = found.groups()
    number = f"{_OWN}number"
    parts = f"not.b16 {number}, {right}; add.s16 {number}, {number}, {left};"
    return f"{{ .reg .b16 {number}; {parts} add.s16 {result}, {number}, 1; }}"


def _widened_extreme(found: re.Match[str]) -> str:
    """Write maxima and minima of 16 bits with 32.

    CUDA 13.0 makes a packed VIMNMX.S16x2 of them, lets it answer comparisons of the result with an operand too, and
    takes the answer of the other half.
    """
    name, sign, result, *operands = found.groups()
    lines, given = [f"{{ .reg .b32 {_OWN}wide<2>;"], list[str]()
    for number, operand in enumerate(map(str.strip, operands)):
        if operand.startswith("%"):
            lines.append(f"cvt.{sign}32.{sign}16 {_OWN}wide{number}, {operand};")
            given.append(f"{_OWN}wide{number}")
        else:
            given.append(str(int(operand) & 0xFFFF if sign == "u" else int(operand)))
    lines.append(f"{name}.{sign}32 {_OWN}wide0, {', '.join(given)}; cvt.u16.u32 {result}, {_OWN}wide0; }}")
    return " ".join(lines)
