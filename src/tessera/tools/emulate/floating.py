"""Arithmetic and comparisons of floats, and the instructions that floats share with integers.

Source: PTX ISA 9.2, "Floating Point Instructions", "Half Precision Floating Point Instructions", "Mixed Precision
Floating Point Instructions".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.tools.emulate.integer import comparison, floating, integer, multiplied, multiplied_added
from tessera.tools.emulate.machine import Array, Machine, Step
from tessera.tools.emulate.memory import where
from tessera.tools.emulate.rounding import fma32, fma64, from_bf16, narrowed, to_bf16
from tessera.tools.emulate.text import Instruction, Operand, Pair
from tessera.tools.emulate.values import Read, Write, handles, reader, type_of, writer

_ALLOWED = ("rn", "ftz", "NaN", "full", "approx", "xorsign", "noftz")


def float_reader(operand: Operand, kind: str) -> Read:
    """Return what reads an operand as numbers: f64 as it is, others as f32; of a pair two columns."""
    read = reader(operand, kind)
    if kind in ("f32", "f64"):
        return read
    if kind == "f16":
        return lambda machine: read(machine).astype(np.float32)
    if kind == "bf16":
        return lambda machine: from_bf16(read(machine))
    return lambda machine: halves(read(machine), kind)


def halves(words: Array, kind: str) -> Array:
    """Return the numbers of words of `f16x2` or `bf16x2`, as f32 in two columns."""
    parts = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 2)
    return from_bf16(parts) if kind == "bf16x2" else parts.view(np.float16).astype(np.float32)


def float_writer(operand: Operand, kind: str) -> Write:
    """Return what rounds f64 or f32 numbers to a type and writes them."""
    write = writer(operand)
    if kind.endswith("x2"):
        return lambda machine, value: write(machine, _joined(value, kind[:-2]))
    return lambda machine, value: write(machine, _rounded(value, kind))


def _rounded(value: Array, kind: str) -> Array:
    if value.dtype == np.float64:
        return narrowed(value, kind)
    if kind == "bf16":
        return to_bf16(value)
    return value.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind])


def _joined(value: Array, kind: str) -> Array:
    parts = np.ascontiguousarray(_rounded(value, kind))
    return parts.view(np.uint16).view(np.uint32).reshape(-1)


def _flushed(value: Array) -> Array:
    """Return f32 numbers with those below the least normal one as zeros."""
    return where(np.abs(value) < np.float32(2.0**-126), np.copysign(np.float32(0), value), value)


def _minimum(a: Array, b: Array) -> Array:
    smaller = where(a == b, where(np.signbit(a), a, b), np.fmin(a, b))
    return smaller


def _maximum(a: Array, b: Array) -> Array:
    return where(a == b, where(np.signbit(a), b, a), np.fmax(a, b))


def _with_nan(pick: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), pick(a, b))


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "min": _minimum,
    "max": _maximum,
    "copysign": lambda a, b: np.copysign(b, a),
}


def _wide(compute: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function of f32 that is computed in f64."""
    return lambda a: compute(a.astype(np.float64))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "sqrt": np.sqrt,
    "rcp": lambda a: a.dtype.type(1) / a,
    "rsqrt": _wide(lambda a: 1 / np.sqrt(a)),
    "ex2": _wide(np.exp2),
    "lg2": _wide(np.log2),
    "sin": _wide(np.sin),
    "cos": _wide(np.cos),
    "tanh": _wide(np.tanh),
}


def _check(instruction: Instruction) -> str:
    """Return the type; raise `Unknown` for a rounding or a clamping that is not known."""
    kind = type_of(instruction)
    if any(part not in _ALLOWED for part in instruction.parts[:-1]):
        raise instruction.unknown()
    return kind


def _mixed(instruction: Instruction, compute: Callable[..., Array]) -> Step | None:
    """Return the step of `add.f32.f16` and its like, whose last operand alone is an f32; None for others."""
    match instruction.parts:
        case (*modifiers, "f32", ("f16" | "bf16") as kind) if instruction.name in ("add", "sub", "fma"):
            pass
        case _:
            return None
    if any(part != "rn" for part in modifiers):
        raise instruction.unknown()
    target, *sources, last = instruction.operands
    reads = [*(float_reader(source, kind) for source in sources), float_reader(last, "f32")]
    write = float_writer(target, "f32")
    return lambda machine: write(machine, compute(*(read(machine) for read in reads)))


def _applied(instruction: Instruction, compute: Callable[..., Array]) -> Step:
    """Return the step of a function of floats of one type, or of narrow ones and an f32."""
    if (mixed := _mixed(instruction, compute)) is not None:
        return mixed
    kind = _check(instruction)
    target, *sources = instruction.operands
    write, reads = float_writer(target, kind), [float_reader(source, kind) for source in sources]
    if instruction.has("ftz") and kind == "f32":

        def flush(machine: Machine) -> None:
            write(machine, _flushed(_rounded(compute(*(_flushed(read(machine)) for read in reads)), "f32")))

        return flush
    return lambda machine: write(machine, compute(*(read(machine) for read in reads)))


def _binary(instruction: Instruction) -> Step:
    compute = _BINARY[instruction.name]
    if instruction.has("xorsign"):
        raise instruction.unknown()
    return _applied(instruction, _with_nan(compute) if instruction.has("NaN") else compute)


@handles("add", "sub", "div", "min", "max")
def _shared(instruction: Instruction) -> Step:
    return _binary(instruction) if floating(instruction) else integer(instruction)


@handles("mul")
def _multiply(instruction: Instruction) -> Step:
    return _binary(instruction) if floating(instruction) else multiplied(instruction)


@handles("copysign")
def _sign(instruction: Instruction) -> Step:
    return _binary(instruction)


@handles(*_UNARY)
def _function(instruction: Instruction) -> Step:
    return _applied(instruction, _UNARY[instruction.name])


@handles("neg", "abs")
def _sign_bits(instruction: Instruction) -> Step:
    """Change signs in the bits: those of NaN too."""
    if not floating(instruction):
        return integer(instruction)
    kind = type_of(instruction)
    bits = {"f64": 64, "f32": 32, "f16x2": 32, "bf16x2": 32}.get(kind, 16)
    sign = 0x80008000 if kind.endswith("x2") else 1 << (bits - 1)
    target, source = instruction.operands
    write, read, mask = writer(target), reader(source, f"b{bits}"), np.array([sign], f"u{bits // 8}")
    if instruction.name == "neg":
        return lambda machine: write(machine, read(machine) ^ mask)
    return lambda machine: write(machine, read(machine) & ~mask)


@handles("fma", "mad")
def _fused(instruction: Instruction) -> Step:
    if not floating(instruction):
        return multiplied_added(instruction)
    if instruction.parts[-1] == "f64":
        return _applied(instruction, fma64)
    return _applied(instruction, fma32)


@handles("setp")
def _compare(instruction: Instruction) -> Step:
    kind, name = type_of(instruction), instruction.parts[0]
    compute = comparison(name, floating(instruction))
    target, *sources = instruction.operands
    join = [part for part in instruction.parts[1:-1] if part in ("and", "or", "xor")]
    if compute is None or len(sources) != 2 + len(join):
        raise instruction.unknown()
    if kind.endswith("x2"):
        return _compare_halves(instruction, compute)
    read = float_reader if floating(instruction) else reader
    one, two = read(sources[0], kind), read(sources[1], kind)
    third = reader(sources[2], "pred") if join else None
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    writes = writer(first), None if second is None else writer(second)

    def run(machine: Machine) -> None:
        found = compute(one(machine), two(machine))
        other = ~found
        if third is not None:
            found, other = (_BITWISE[join[0]](value, third(machine)) for value in (found, other))
        writes[0](machine, found)
        if writes[1] is not None:
            writes[1](machine, other)

    return run


def _compare_halves(instruction: Instruction, compute: Callable[[Array, Array], Array]) -> Step:
    """Return the step of a comparison of words of two numbers: `p|q` is what comes of the lower, and of the upper."""
    kind = type_of(instruction)
    target, *sources = instruction.operands
    if not floating(instruction) or not isinstance(target, Pair) or len(sources) != 2:
        raise instruction.unknown()
    writes = writer(target.first), writer(target.second)
    one, two = (float_reader(source, kind) for source in sources)

    def run(machine: Machine) -> None:
        found = compute(one(machine), two(machine))
        for half, write in enumerate(writes):
            write(machine, found[:, half])

    return run


_BITWISE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
