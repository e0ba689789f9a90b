"""Runs chains of integer instructions on a GPU and compares with NumPy: what the assembler makes of PTX, alone.

    python scripts/check_assembler.py --seed 1 --chains 60000 [--raw] [--target sm_90a]

Random PTX, in the form that Tessera writes (with its rewrites, or without them by `--raw`), is assembled and run on
numbers near the ends of every width. A chain whose result differs is printed with its instructions, and it exits 1.
"""

from __future__ import annotations

import argparse
import ctypes
import random
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
        rng, made = self.rng, self._new(width)
        kind = rng.random()
        if kind < 0.4:
            fn = rng.choice(UNARY)
            typed = f"{fn}.b{width}" if fn == "not" else f"{fn}.s{width}"
            return self._emit(f"{typed} {made}, {name};", made, _unary(fn, x, width), width)
        if kind < 0.75:
            fn = rng.choice(SIGNED_BINARY + BITS)
            other, y = self._other(width)
            typed = f"{fn}.b{width}" if fn in BITS else f"{fn}{width}" if fn[-2:] in (".s", ".u") else f"{fn}.s{width}"
            if rng.random() < 0.3 and other[0] == "%":
                name, x, other, y = other, y, name, x
            return self._emit(f"{typed} {made}, {name}, {other};", made, _binary(fn, x, y, width), width)
        if kind < 0.87:
            amount, sign = rng.choice((1, 3, width - 1)), rng.choice("su")
            moved = cut((signed(x, width) >> amount).view(np.uint64), width) if sign == "s" else x >> np.uint64(amount)
            if rng.random() < 0.3:
                return self._emit(
                    f"shl.b{width} {made}, {name}, {amount};", made, cut(x << np.uint64(amount), width), width
                )
            return self._emit(f"shr.{sign}{width} {made}, {name}, {amount};", made, moved, width)
        wide = rng.choice(WIDTHS)
        sign = rng.choice("su")
        made = self._new(wide)
        if wide == width:
            return name, x, width
        if wide < width:
            return self._emit(f"cvt.{sign}{wide}.{sign}{width} {made}, {name};", made, cut(x, wide), wide)
        longer = cut(signed(x, width).view(np.uint64), wide) if sign == "s" else x
        return self._emit(f"cvt.{sign}{wide}.{sign}{width} {made}, {name};", made, longer, wide)

    def _used(self, name: str, x: Number, width: int) -> Number:
        """Use the number in a comparison, or as it is."""
        rng, out = self.rng, f"%o{self.number}"
        if rng.random() < 0.5:
            fn, sign = rng.choice(COMPARISONS), rng.choice("su")
            other, y = self._other(width)
            a, b = (signed(x, width), signed(y, width)) if sign == "s" else (x, y)
            holds = {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}[fn]
            self.lines.append(f"setp.{fn}.{sign}{width} %p{self.number}, {name}, {other};")
            self.lines.append(f"selp.b64 {out}, 1, 0, %p{self.number};")
            return holds.astype(np.uint64)
        self.lines.append(f"mov.b64 {out}, {name};" if width == 64 else f"cvt.u64.u{width} {out}, {name};")
        return x


def entry(name: str, rng: random.Random, pairs: dict[int, tuple[Number, Number]]) -> tuple[str, list[Chain]]:
    """Return an entry point of several chains, and those."""
    chains = [Chain(rng, width, number, *pairs[width]) for number, width in enumerate(rng.choices(WIDTHS, k=CHAINS))]
    registers = {name for chain in chains for line in chain.lines for name in _registers(line)}
    body: list[str] = []
    for width in WIDTHS:
        found = sorted(one for one in registers if one.startswith(f"%v{width}_"))
        body += [f".reg .b{width} {', '.join(found)};"] if found else []
        body.append(f".reg .b{width} %x{width}, %y{width};")
    body.append(f".reg .pred {', '.join(f'%p{chain.number}' for chain in chains)};")
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
    return [part.strip(" ,;") for part in line.split()[1:] if part.startswith("%v")]


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
