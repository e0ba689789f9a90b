"""Runs chains of integer instructions on a GPU and compares with NumPy: what the assembler makes of PTX, alone.

Chains add, multiply, divide, shift, compare, choose and convert, also to floats and back, as far as the PTX ISA says
what comes of it: no division by 0 or of the least number by -1, and no NaN.

    python scripts/check_assembler.py --seed 1 --chains 60000 [--raw] [--target sm_90a]

Random PTX, in the form that Tessera writes (with its rewrites, or without them by `--raw`), is assembled and run on
numbers near the ends of every width. A chain whose result differs is printed with its instructions, and it exits 1.
"""

from __future__ import annotations

import argparse
import ctypes
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tessera.backends.nvidia.assemble import to_cubin
from tessera.backends.nvidia.assembler_faults import respelled
from tessera.target.registry import target_named

WIDTHS = (16, 32, 64)
CHAINS = 40
"""Chains of one entry point."""
Number = np.ndarray
"""The bits of 64 numbers, as u64; those above the width are 0."""


def inputs(width: int, rng: random.Random) -> Number:
    """Return numbers near the ends of the type, near 0, and random ones of every length."""
    ends = [0, 1, -1, 2, -2, 7, 8, -8, 255, 256, -256, 1 << width - 1, (1 << width - 1) - 1, (1 << width - 1) + 1]
    ends += [1 << width // 2, -(1 << width // 2), (1 << width // 2) - 1, 65535, -65535, 65536]
    ends += [rng.getrandbits(rng.randint(1, width)) * rng.choice((1, -1)) for _ in range(64 - len(ends))]
    return np.array([one % (1 << width) for one in ends], np.uint64)


def signed(x: Number, width: int) -> Number:
    """Return numbers as signed ones, in 64 bits."""
    shift = np.uint64(64 - width)
    return (x << shift).view(np.int64) >> shift.astype(np.int64)


def cut(x: Number, width: int) -> Number:
    """Return the lowest bits."""
    return x.astype(np.uint64) & np.uint64((1 << width) - 1)


def _unary(name: str, x: Number, width: int) -> Number:
    match name:
        case "neg":
            return cut(np.uint64(0) - x, width)
        case "abs":
            return cut(np.abs(signed(x, width)).view(np.uint64), width)
        case "not":
            return cut(~x, width)
        case _:
            raise AssertionError(name)


def _binary(name: str, x: Number, y: Number, width: int) -> Number:
    a, b = signed(x, width), signed(y, width)
    match name:
        case "add":
            return cut(x + y, width)
        case "sub":
            return cut(x - y, width)
        case "mul.lo":
            return cut(x * y, width)
        case "and" | "or" | "xor":
            return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[name](x, y)
        case "max.s":
            return cut(np.maximum(a, b).view(np.uint64), width)
        case "min.s":
            return cut(np.minimum(a, b).view(np.uint64), width)
        case "max.u":
            return np.maximum(x, y)
        case "min.u":
            return np.minimum(x, y)
        case _:
            raise AssertionError(name)


UNARY = ("neg", "abs", "not")
SIGNED_BINARY = ("max.s", "min.s", "max.s", "min.s", "max.u", "min.u", "add", "sub", "mul.lo")
BITS = ("and", "or", "xor")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ROUNDED: Mapping[str, Callable[[Any], Any]] = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
"""How numbers become whole, ties going to even ones."""
FLOATS: Mapping[int, Any] = {32: np.float32, 64: np.float64}


def exactly(fn: Callable[..., int], width: int, *numbers: Number) -> Number:
    """Return the lowest bits of what a function gives for Python's integers."""
    rows = zip(*(map(int, number) for number in numbers), strict=True)
    return np.array([fn(*row) % (1 << width) for row in rows], np.uint64)


def quotient(a: int, b: int) -> int:
    """Divide towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    """Return what is left of a division, with the sign of what is divided."""
    return a - quotient(a, b) * b


def read(x: Number, width: int, sign: str) -> Number:
    """Return numbers as signed (`s`) or unsigned ones (`u`)."""
    return signed(x, width) if sign == "s" else x


def whole(x: Any, width: int, sign: str) -> Number:
    """Return whole floats as integers, those outside as the nearest one that there is."""
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if sign == "s" else (0, (1 << width) - 1)
    return np.array([min(max(int(one), low), high) % (1 << width) for one in x], np.uint64)


def spelled(value: float, bits: int) -> str:
    """Return a float as PTX spells it."""
    raw = np.array([value], FLOATS[bits]).view(np.uint32 if bits == 32 else np.uint64)[0]
    return f"0{'f' if bits == 32 else 'd'}{int(raw):0{bits // 4}X}"


class Chain:
    """A few instructions from two numbers to one, and what they give.

    Args:
        rng: the random choices.
        width: bits of the numbers.
        number: its number in its entry point.
        x: the first numbers.
        y: the second ones.
    """

    def __init__(self, rng: random.Random, width: int, number: int, x: Number, y: Number) -> None:
        self.rng, self.lines, self.number, self.count = rng, list[str](), number, 0
        self.predicates = [f"%p{number}"]
        self.known: list[tuple[str, Number, int]] = [(f"%x{width}", x, width), (f"%y{width}", y, width)]
        value = self.known[0]
        for _ in range(rng.randint(1, 4)):
            value = self._step(*value)
        self.result = self._used(*value)

    def _new(self, width: int) -> str:
        self.count += 1
        return f"%v{width}_{self.number}_{self.count}"

    def _emit(self, line: str, name: str, data: Number, width: int) -> tuple[str, Number, int]:
        self.lines.append(line)
        self.known.append((name, data, width))
        return name, data, width

    def _other(self, width: int) -> tuple[str, Number]:
        same = [(name, data) for name, data, bits in self.known if bits == width]
        if same and self.rng.random() < 0.4:
            return self.rng.choice(same)
        number = self.rng.choice(
            (0, 1, -1, 3, 7, -8, 255, -255, 65535, -65535, 1000, 1 << width - 1, (1 << width - 1) - 1)
        )
        number = signed(np.array([number % (1 << width)], np.uint64), width)
        return str(int(number[0])), np.full(64, number[0]).view(np.uint64) & np.uint64((1 << width) - 1)

    def _step(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        steps = (self._changed, self._combined, self._shifted, self._converted)
        more = (self._multiplied, self._divided, self._chosen, self._by_floats)
        (step,) = self.rng.choices((*steps, *more), (40, 35, 12, 13, 10, 10, 12, 10))
        return step(name, x, width)

    def _changed(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        fn, made = self.rng.choice(UNARY), self._new(width)
        typed = f"{fn}.b{width}" if fn == "not" else f"{fn}.s{width}"
        return self._emit(f"{typed} {made}, {name};", made, _unary(fn, x, width), width)

    def _combined(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        rng, made = self.rng, self._new(width)
        fn = rng.choice(SIGNED_BINARY + BITS)
        other, y = self._other(width)
        typed = f"{fn}.b{width}" if fn in BITS else f"{fn}{width}" if fn[-2:] in (".s", ".u") else f"{fn}.s{width}"
        if rng.random() < 0.3 and other[0] == "%":
            name, x, other, y = other, y, name, x
        return self._emit(f"{typed} {made}, {name}, {other};", made, _binary(fn, x, y, width), width)

    def _shifted(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        rng, made = self.rng, self._new(width)
        amount, sign = rng.choice((1, 3, width - 1)), rng.choice("su")
        if rng.random() < 0.3:
            left = cut(x << np.uint64(amount), width)
            return self._emit(f"shl.b{width} {made}, {name}, {amount};", made, left, width)
        moved = cut((signed(x, width) >> amount).view(np.uint64), width) if sign == "s" else x >> np.uint64(amount)
        return self._emit(f"shr.{sign}{width} {made}, {name}, {amount};", made, moved, width)

    def _converted(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        wide, sign = self.rng.choice(WIDTHS), self.rng.choice("su")
        if wide == width:
            return name, x, width
        made = self._new(wide)
        data = cut(read(x, width, sign).view(np.uint64), wide)
        return self._emit(f"cvt.{sign}{wide}.{sign}{width} {made}, {name};", made, data, wide)

    def _multiplied(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        """Multiply for the upper half, for all bits, or add to a product."""
        rng, (other, y), sign = self.rng, self._other(width), self.rng.choice("su")
        a, b = read(x, width, sign), read(y, width, sign)
        kind = rng.choice(("hi", "mad", "wide") if width < 64 else ("hi", "mad"))
        made = self._new(2 * width if kind == "wide" else width)
        if kind == "hi":
            data = exactly(lambda p, q: p * q >> width, width, a, b)
            return self._emit(f"mul.hi.{sign}{width} {made}, {name}, {other};", made, data, width)
        if kind == "wide":
            data = exactly(lambda p, q: p * q, 2 * width, a, b)
            return self._emit(f"mul.wide.{sign}{width} {made}, {name}, {other};", made, data, 2 * width)
        added, z = self._other(width)
        data = exactly(lambda p, q, r: p * q + r, width, a, b, z)
        return self._emit(f"mad.lo.{sign}{width} {made}, {name}, {other}, {added};", made, data, width)

    def _divided(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        """Divide by a constant, or by a number made odd, and if signed positive."""
        rng, sign = self.rng, self.rng.choice("su")
        fn, exact = rng.choice((("div", quotient), ("rem", remainder)))
        by, y = self._other(width)
        if by[0] == "%":
            odd, most = self._new(width), (1 << width - 1) - 1
            by, y, _ = self._emit(f"or.b{width} {odd}, {by}, 1;", odd, y | np.uint64(1), width)
            if sign == "s":
                less = self._new(width)
                by, y, _ = self._emit(f"and.b{width} {less}, {by}, {most};", less, y & np.uint64(most), width)
        else:
            ends = (1, 2, 3, 7, 8, 10, 255, 1000, (1 << width - 1) - 1)
            number = rng.choice(ends if sign == "u" else (*ends, -2, -3, -7, -8, -1000, -(1 << width - 1)))
            by, y = str(number), np.array([number % (1 << width)] * 64, np.uint64)
        made = self._new(width)
        data = exactly(exact, width, read(x, width, sign), read(y, width, sign))
        return self._emit(f"{fn}.{sign}{width} {made}, {name}, {by};", made, data, width)

    def _predicate(self) -> str:
        self.predicates.append(f"%p{self.number}_{len(self.predicates)}")
        return self.predicates[-1]

    def _chosen(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        """Choose by a comparison."""
        (other, y), sign, fn = self._other(width), self.rng.choice("su"), self.rng.choice(COMPARISONS)
        holds, predicate = _compare(fn, read(x, width, sign), read(y, width, sign)), self._predicate()
        self.lines.append(f"setp.{fn}.{sign}{width} {predicate}, {name}, {other};")
        return self._selected(predicate, holds, name, x, width)

    def _selected(self, predicate: str, holds: np.ndarray, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        sides = [(name, x), self._other(width)]
        self.rng.shuffle(sides)
        (first, a), (second, b) = sides
        made = self._new(width)
        return self._emit(f"selp.b{width} {made}, {first}, {second}, {predicate};", made, np.where(holds, a, b), width)

    def _by_floats(self, name: str, x: Number, width: int) -> tuple[str, Number, int]:
        """Convert to a float, compute with it, and choose by it or convert it back."""
        rng, bits, sign = self.rng, self.rng.choice((32, 64)), self.rng.choice("su")
        kind, held = FLOATS[bits], self._float(bits)
        value = read(x, width, sign).astype(kind)
        self.lines.append(f"cvt.rn.f{bits}.{sign}{width} {held}, {name};")
        for _ in range(rng.randint(0, 2)):
            made, number = self._float(bits), rng.choice((0.5, 1.0, -1.0, 0.25, 3.0, -7.0, 1024.0))
            fn = rng.choice(("neg", "abs", "add.rn", "sub.rn", "mul.rn", "div.rn"))
            value = _float_step(fn, value, kind(number))
            operands = held if fn in ("neg", "abs") else f"{held}, {spelled(number, bits)}"
            self.lines.append(f"{fn}.f{bits} {made}, {operands};")
            held = made
        if rng.random() < 0.3:
            fn, number, predicate = rng.choice(COMPARISONS), rng.choice((0.0, 1.0, -8.0, 65535.0)), self._predicate()
            self.lines.append(f"setp.{fn}.f{bits} {predicate}, {held}, {spelled(number, bits)};")
            return self._selected(predicate, _compare(fn, value, kind(number)), name, x, width)
        rounding, sign, wide = rng.choice(tuple(ROUNDED)), rng.choice("su"), rng.choice(WIDTHS)
        made, data = self._new(wide), whole(ROUNDED[rounding](value), wide, sign)
        return self._emit(f"cvt.{rounding}.{sign}{wide}.f{bits} {made}, {held};", made, data, wide)

    def _float(self, bits: int) -> str:
        self.count += 1
        return f"%f{bits}_{self.number}_{self.count}"

    def _used(self, name: str, x: Number, width: int) -> Number:
        """Use the number in a comparison, or as it is."""
        rng, out = self.rng, f"%o{self.number}"
        if rng.random() < 0.5:
            fn, sign = rng.choice(COMPARISONS), rng.choice("su")
            other, y = self._other(width)
            holds = _compare(fn, read(x, width, sign), read(y, width, sign))
            self.lines.append(f"setp.{fn}.{sign}{width} %p{self.number}, {name}, {other};")
            self.lines.append(f"selp.b64 {out}, 1, 0, %p{self.number};")
            return holds.astype(np.uint64)
        self.lines.append(f"mov.b64 {out}, {name};" if width == 64 else f"cvt.u64.u{width} {out}, {name};")
        return x


def _compare(fn: str, a: Any, b: Any) -> np.ndarray:
    return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}[fn]


def _float_step(fn: str, a: Any, b: Any) -> Any:
    return {"neg": -a, "abs": np.abs(a), "add.rn": a + b, "sub.rn": a - b, "mul.rn": a * b, "div.rn": a / b}[fn]


def entry(name: str, rng: random.Random, pairs: dict[int, tuple[Number, Number]]) -> tuple[str, list[Chain]]:
    """Return an entry point of several chains, and those."""
    chains = [Chain(rng, width, number, *pairs[width]) for number, width in enumerate(rng.choices(WIDTHS, k=CHAINS))]
    registers = {name for chain in chains for line in chain.lines for name in _registers(line)}
    body: list[str] = []
    for width in WIDTHS:
        found = sorted(one for one in registers if one.startswith(f"%v{width}_"))
        body += [f".reg .b{width} {', '.join(found)};"] if found else []
        body.append(f".reg .b{width} %x{width}, %y{width};")
    for bits in FLOATS:
        found = sorted(one for one in registers if one.startswith(f"%f{bits}_"))
        body += [f".reg .f{bits} {', '.join(found)};"] if found else []
    body.append(f".reg .pred {', '.join(one for chain in chains for one in chain.predicates)};")
    body.append(f".reg .b64 {', '.join(f'%o{chain.number}' for chain in chains)}, %in, %out, %at;")
    body += [".reg .b32 %lane;", "mov.u32 %lane, %tid.x;", "ld.param.u64 %in, [in];", "ld.param.u64 %out, [out];"]
    body += ["mul.wide.u32 %at, %lane, 8;", "add.u64 %in, %in, %at;", "add.u64 %out, %out, %at;"]
    for place, width in enumerate(WIDTHS):
        for number, letter in enumerate("xy"):
            body.append(f"ld.global.b{width} %{letter}{width}, [%in+{512 * (2 * place + number)}];")
    for chain in chains:
        body += [*chain.lines, f"st.global.b64 [%out+{512 * chain.number}], %o{chain.number};"]
    lines = "\n".join(body)
    return f".visible .entry {name}(.param .u64 in, .param .u64 out)\n{{\n{lines}\nret;\n}}\n", chains


def _registers(line: str) -> list[str]:
    return [part.strip(" ,;") for part in line.split()[1:] if part.startswith(("%v", "%f"))]


def main() -> None:
    """Assemble, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chains", type=int, default=60_000)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--raw", action="store_true", help="without Tessera's rewrites")
    parser.add_argument("--shown", type=int, default=20, help="most chains that are printed")
    given = parser.parse_args()
    rng, target = random.Random(given.seed), target_named(given.target)
    pairs = {width: (inputs(width, rng), np.roll(inputs(width, rng), rng.randrange(64))) for width in WIDTHS}
    entries = [entry(f"chains_{number}", rng, pairs) for number in range(-(-given.chains // CHAINS))]
    header = f".version 8.3\n.target {target.name}\n.address_size 64\n"

    def assembled(text: str) -> bytes:
        ptx = header + text
        return to_cubin(ptx if given.raw else respelled(ptx, target), target)[0]

    with ThreadPoolExecutor() as pool:
        cubins = list(pool.map(assembled, [text for text, _ in entries]))
    print(f"{len(cubins)} entry points assembled", flush=True)
    wrong = sum(
        _compared(cubin, number, chains, pairs, given.shown)
        for number, (cubin, (_, chains)) in enumerate(zip(cubins, entries, strict=True))
    )
    print(f"{CHAINS * len(entries)} chains, {wrong} wrong")
    raise SystemExit(wrong > 0)


def _compared(
    cubin: bytes, number: int, chains: list[Chain], pairs: dict[int, tuple[Number, Number]], shown: int
) -> int:
    """Run an entry point; print the chains whose results differ, and return how many."""
    found = _run(cubin, f"chains_{number}", np.concatenate([one for width in WIDTHS for one in pairs[width]]))
    wrong = 0
    for chain, row in zip(chains, found, strict=True):
        places = np.flatnonzero(row != chain.result)
        if len(places):
            wrong += 1
            if shown > 0:
                at = int(places[0])
                given = {
                    f"{letter}{width}": hex(int(one[at]))
                    for width in WIDTHS
                    for letter, one in zip("xy", pairs[width], strict=True)
                }
                print(
                    "\n".join(chain.lines),
                    f"\n  lane {at}: {hex(int(row[at]))}, not {hex(int(chain.result[at]))}; {given}\n",
                    flush=True,
                )
    return wrong


_driver: Any = None


def _run(cubin: bytes, name: str, given: np.ndarray) -> np.ndarray:
    """Run an entry point in one block of 64 threads."""
    global _driver
    from cuda.bindings import driver as cu

    def check(result: Any) -> Any:
        if result[0] != cu.CUresult.CUDA_SUCCESS:
            raise RuntimeError(str(result[0]))
        return result[1] if len(result) > 1 else None

    if _driver is None:
        check(cu.cuInit(0))
        _driver = check(cu.cuDevicePrimaryCtxRetain(check(cu.cuDeviceGet(0))))
        check(cu.cuCtxSetCurrent(_driver))
    module = check(cu.cuModuleLoadData(cubin))
    function = check(cu.cuModuleGetFunction(module, name.encode()))
    out = np.zeros((CHAINS, 64), np.uint64)
    memory = [check(cu.cuMemAlloc(given.nbytes)), check(cu.cuMemAlloc(out.nbytes))]
    check(cu.cuMemcpyHtoD(memory[0], given.ctypes.data, given.nbytes))
    args = (tuple(int(one) for one in memory), (ctypes.c_uint64, ctypes.c_uint64))
    check(cu.cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, 0, args, 0))
    check(cu.cuMemcpyDtoH(out.ctypes.data, memory[1], out.nbytes))
    for one in memory:
        check(cu.cuMemFree(one))
    check(cu.cuModuleUnload(module))
    return out


if __name__ == "__main__":
    main()
