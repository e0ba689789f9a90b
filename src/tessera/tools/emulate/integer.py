"""Integer and logical instructions, moves and comparisons of integers.

Source: PTX ISA 9.2, "Integer Arithmetic Instructions", "Logic and Shift Instructions", "Comparison and Selection".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tessera.tools.emulate.machine import Array, Machine, Step
from tessera.tools.emulate.memory import where
from tessera.tools.emulate.text import Instruction, Number, Operand, Vector
from tessera.tools.emulate.values import DTYPES, handles, pure, reader, type_of, writer

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


def _unsigned(value: Array) -> Array:
    return value.view(f"u{value.dtype.itemsize}")


def _divide(a: Array, b: Array) -> Array:
    """Divide towards zero; by zero gives all ones."""
    zero = b == 0
    safe = where(zero, 1, b).astype(b.dtype)
    if a.dtype.kind == "u":
        return where(zero, ~a * 0 + np.array(-1).astype(a.dtype), a // safe)
    quotient = _unsigned(np.abs(a)) // _unsigned(np.abs(safe))
    signed = quotient.view(a.dtype)
    return where(zero, np.array(-1, a.dtype), where((a < 0) != (safe < 0), -signed, signed))


def _remainder(a: Array, b: Array) -> Array:
    return where(b == 0, a, a - _divide(a, b) * b)


def high(a: Array, b: Array) -> Array:
    """Return the upper half of the product."""
    if a.dtype.itemsize < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return (a.astype(wide) * b.astype(wide) >> (8 * a.dtype.itemsize)).astype(a.dtype)
    x, y = _unsigned(a), _unsigned(b)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = (middle & low) + x0 * y1
    result = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        result = result - where(a < 0, y, np.uint64(0)) - where(b < 0, x, np.uint64(0))
    return result.view(a.dtype)


def _wide(a: Array, b: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


def _bounded(function: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    return np.maximum(function(a, b), 0)


def _added(a: Array, b: Array) -> Array:
    return a + b


def _times(a: Array, b: Array) -> Array:
    return a * b


def _multiply(how: str) -> Callable[[Array, Array], Array]:
    return {"lo": _times, "hi": high, "wide": _wide}[how]


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": _added,
    "sub": lambda a, b: a - b,
    "div": _divide,
    "rem": _remainder,
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda a: -a,
    "abs": np.abs,
    "not": lambda a: ~a,
    "cnot": lambda a: (a == 0).astype(a.dtype),
    "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
    "clz": lambda a: leading_zeros(a),
    "brev": lambda a: reversed_bits(a),
}


def _paired(kind: str, function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a function of words that are two numbers of 16 bits each."""
    half = np.dtype("u2" if kind.startswith("u") else "i2")

    def on_words(a: Array, b: Array) -> Array:
        halves = [np.ascontiguousarray(word).view(half) for word in np.broadcast_arrays(a, b)]
        return function(*halves).view(np.uint32)

    return on_words


def leading_zeros(a: Array) -> Array:
    """Return the number of zeros before the first one."""
    bits = 8 * a.dtype.itemsize
    step = 1
    while step < bits:
        a = a | a >> a.dtype.type(step)
        step *= 2
    return np.uint32(bits) - np.bitwise_count(a).astype(np.uint32)


def reversed_bits(a: Array) -> Array:
    """Return the bits in reverse order."""
    size = a.dtype.itemsize
    bits = np.unpackbits(_bytes(a), axis=-1, bitorder="little")[:, ::-1]
    return np.packbits(bits, axis=-1, bitorder="little").view(f"u{size}").reshape(-1)


def _bytes(a: Array) -> Array:
    return np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1)


def floating(instruction: Instruction) -> bool:
    """Return whether a mnemonic ends in a type of floats."""
    return bool(instruction.parts) and instruction.parts[-1] in FLOATS


def integer(instruction: Instruction) -> Step:
    """Return the step of arithmetic on integers, or on bits."""
    kind = type_of(instruction)
    if instruction.has("cc"):
        return _carrying(instruction, kind)
    function = _BINARY.get(instruction.name)
    if function is not None and instruction.parts[:-1] == ("relu",) and instruction.name in ("min", "max"):
        function = partial(_bounded, function)
    elif len(instruction.parts) > 1:
        raise instruction.unknown()
    if function is not None:
        return pure(instruction, [kind, kind], _paired(kind, function) if kind.endswith("x2") else function)
    return pure(instruction, [kind], _UNARY[instruction.name])


def _carrying(instruction: Instruction, kind: str) -> Step:
    """Return the step of a sum or a difference that leaves, and may take, a carry."""
    target, *sources = instruction.operands
    write, bits = writer(target), f"u{kind[1:]}"
    one, two = (reader(source, bits) for source in sources)
    subtracts, takes = instruction.name.startswith("sub"), instruction.name.endswith("c")

    def run(machine: Machine) -> None:
        a, b = np.broadcast_arrays(one(machine), two(machine))
        before: Array = machine.units.get("carry", np.zeros(machine.lanes, bool))
        taken = before.astype(a.dtype) if takes else np.zeros(1, a.dtype)
        first = a - b if subtracts else a + b
        result = first - taken if subtracts else first + taken
        carry = (a < b) | (first < taken) if subtracts else (first < a) | (result < first)
        machine.units["carry"] = where(machine.active, carry, before)
        write(machine, result)

    return run


@handles("addc", "subc")
def _carried(instruction: Instruction) -> Step:
    return _carrying(instruction, type_of(instruction))


for _name in ("and", "or", "xor", "not", "cnot", "popc", "clz", "brev", "rem"):
    handles(_name)(integer)


def multiplied(instruction: Instruction) -> Step:
    """Return the step of a product of integers."""
    kind = type_of(instruction)
    return pure(instruction, [kind, kind], _multiply(instruction.parts[0]))


def multiplied_added(instruction: Instruction) -> Step:
    """Return the step of a product of integers plus a third one."""
    kind, how = type_of(instruction), instruction.parts[0]
    if len(instruction.parts) != 2 or how not in ("lo", "hi", "wide"):
        raise instruction.unknown()
    third = kind[0] + str(2 * int(kind[1:])) if how == "wide" else kind
    product = _multiply(how)
    return pure(instruction, [kind, kind, third], lambda a, b, c: product(a, b) + c)


def _shifted(left: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, by: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        count = np.minimum(by, np.uint32(bits - 1)).astype(a.dtype)
        moved = a << count if left else a >> count
        if a.dtype.kind == "i" and not left:
            return moved
        return where(by >= bits, a.dtype.type(0), moved)

    return shift


@handles("shl", "shr")
def _shift(instruction: Instruction) -> Step:
    return pure(instruction, [type_of(instruction), "u32"], _shifted(instruction.name == "shl"))


@handles("shf")
def _funnel(instruction: Instruction) -> Step:
    left, wrap = instruction.has("l"), instruction.has("wrap")

    def compute(low: Array, top: Array, by: Array) -> Array:
        count = (by & np.uint32(31) if wrap else np.minimum(by, np.uint32(32))).astype(np.uint64)
        both = top.astype(np.uint64) << np.uint64(32) | low
        moved = both << count >> np.uint64(32) if left else both >> count
        return moved.astype(np.uint32)

    return pure(instruction, ["u32", "u32", "u32"], compute)


@handles("bfe")
def _extract(instruction: Instruction) -> Step:
    kind = type_of(instruction)
    dtype = DTYPES[kind]
    bits = 8 * dtype.itemsize

    def compute(a: Array, start: Array, count: Array) -> Array:
        first = (start & np.uint32(0xFF)).astype(np.int64)
        length = (count & np.uint32(0xFF)).astype(np.int64)
        kept = np.minimum(length, np.maximum(bits - first, 0))
        moved = where(first >= bits, 0, _unsigned(a) >> np.minimum(first, bits - 1).astype(f"u{dtype.itemsize}"))
        mask = where(kept >= bits, -1, (np.int64(1) << np.minimum(kept, 63)) - 1).astype(f"u{dtype.itemsize}")
        field = (moved.astype(f"u{dtype.itemsize}") & mask).view(dtype)
        if dtype.kind == "u":
            return field
        top = np.minimum(first + length - 1, bits - 1)
        sign = (length > 0) & ((_unsigned(a) >> np.maximum(top, 0).astype(f"u{dtype.itemsize}")) & 1 == 1)
        return where(sign, field | ~mask.view(dtype), field)

    return pure(instruction, [kind, "u32", "u32"], compute)


@handles("bfi")
def _insert(instruction: Instruction) -> Step:
    kind = type_of(instruction)
    dtype = DTYPES[kind]
    bits = 8 * dtype.itemsize

    def compute(a: Array, b: Array, start: Array, count: Array) -> Array:
        first = np.minimum(start & np.uint32(0xFF), bits).astype(np.uint64)
        length = np.minimum((count & np.uint32(0xFF)).astype(np.uint64), np.uint64(bits) - first)
        ones = where(length >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(length, 63)) - np.uint64(1))
        shift = np.minimum(first, np.uint64(63))
        mask = where(first >= bits, np.uint64(0), ones << shift).astype(dtype)
        return b & ~mask | (a.astype(np.uint64) << shift).astype(dtype) & mask

    return pure(instruction, [kind, kind, "u32", "u32"], compute)


def _four_bytes_from(a: Array, b: Array, start: Array) -> Array:
    """Return the four bytes from the one numbered `start` (0 to 3) on, of `a` and then of `b`."""
    both = b.astype(np.uint64) << np.uint64(32) | a
    return (both >> (start.astype(np.uint64) & np.uint64(3)) * np.uint64(8)).astype(np.uint32)


@handles("prmt")
def _permute(instruction: Instruction) -> Step:
    if instruction.parts == ("b32", "f4e"):
        return pure(instruction, ["b32", "b32", "b32"], _four_bytes_from)
    if instruction.parts != ("b32",):
        raise instruction.unknown()

    def compute(a: Array, b: Array, selector: Array) -> Array:
        both = b.astype(np.uint64) << np.uint64(32) | a
        result = np.uint64(0)
        for byte in range(4):
            choice = selector.astype(np.uint64) >> np.uint64(4 * byte)
            found = both >> (choice & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
            sign = where(found & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            found = where(choice & np.uint64(8), sign, found)
            result = result | found << np.uint64(8 * byte)
        return result.astype(np.uint32)

    return pure(instruction, ["b32", "b32", "b32"], compute)


@handles("lop3")
def _logic(instruction: Instruction) -> Step:
    table = instruction.operands[-1]
    if instruction.parts != ("b32",) or not isinstance(table, Number):
        raise instruction.unknown()

    def compute(a: Array, b: Array, c: Array, _table: Array) -> Array:
        result = np.zeros(1, np.uint32)
        for row in range(8):
            if table.value >> row & 1:
                result = result | (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    return pure(instruction, ["b32"] * 4, compute)


@handles("mov")
def _move(instruction: Instruction) -> Step:
    kind = type_of(instruction)
    target, source = instruction.operands
    if isinstance(target, Vector):
        return _unpacked(target, reader(source, kind))
    if isinstance(source, Vector):
        return _packed(target, source, DTYPES[kind].itemsize)
    return pure(instruction, [kind], lambda a: a)


def _unpacked(target: Vector, read: Callable[[Machine], Array]) -> Step:
    writes = [writer(item) for item in target.items]

    def run(machine: Machine) -> None:
        value = read(machine)
        unit = value.dtype.itemsize // len(writes)
        parts = np.broadcast_to(value, (machine.lanes,)).copy().view(f"u{unit}").reshape(machine.lanes, -1)
        for number, write in enumerate(writes):
            write(machine, np.ascontiguousarray(parts[:, number]))

    return run


def _packed(target: Operand, source: Vector, size: int) -> Step:
    write, unit = writer(target), size // len(source.items)
    reads = [reader(item, f"b{8 * unit}") for item in source.items]

    def run(machine: Machine) -> None:
        result = np.zeros(1, f"u{size}")
        for number, read in enumerate(reads):
            part = read(machine).astype(f"u{size}")
            result = result | part << result.dtype.type(8 * unit * number)
        write(machine, result)

    return run


@handles("cvta")
def _to_generic(instruction: Instruction) -> Step:
    if not instruction.has("global") and not instruction.has("param") and not instruction.has("local"):
        raise instruction.unknown()
    return pure(instruction, ["u64"], lambda a: a)


@handles("selp")
def _select(instruction: Instruction) -> Step:
    kind = type_of(instruction)
    return pure(instruction, [kind, kind, "pred"], lambda a, b, p: where(p, a, b))


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def comparison(name: str, is_float: bool) -> Callable[[Array, Array], Array] | None:
    """Return what compares two arrays; None for a name that is not known."""
    if not is_float:
        return _COMPARE.get(_UNSIGNED.get(name, name))
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name == "ne":  # NumPy's is true of NaN
        return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
    if name in _COMPARE:
        return _COMPARE[name]
    ordered = _COMPARE.get(name.removesuffix("u"))
    return None if ordered is None else lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)


@handles("mapa")
def _remote_address(instruction: Instruction) -> Step:
    if instruction.parts != ("shared::cluster", "u32"):
        raise instruction.unknown()
    place = np.uint32((1 << 24) - 1)
    return pure(instruction, ["u32", "u32"], lambda a, rank: a & place | rank << np.uint32(24))
