"""How operands become arrays, and results registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from tessera.tools.emulate.errors import Unknown
from tessera.tools.emulate.machine import WARP, Array, Machine, Step
from tessera.tools.emulate.text import Instruction, Inverted, Number, Operand, Register, Symbol, Vector

DTYPES: dict[str, Any] = {
    "pred": np.dtype(bool),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("bf16", "e4m3x2", "e5m2x2"), np.dtype(np.uint16)),
    **dict.fromkeys(("f16x2", "bf16x2", "tf32", "u16x2", "s16x2"), np.dtype(np.uint32)),
}
"""NumPy's type of what a register of a PTX type holds; bits where NumPy has none."""

Read = Callable[[Machine], Array]

Compute = (
    Callable[[Array], Array]
    | Callable[[Array, Array], Array]
    | Callable[[Array, Array, Array], Array]
    | Callable[[Array, Array, Array, Array], Array]
)
"""What an instruction computes of its sources."""

HANDLERS: dict[str, Callable[[Instruction], Step]] = {}
"""What makes a step of an instruction, by mnemonic up to the first dot."""


def handles(*names: str) -> Callable[[Callable[[Instruction], Step]], Callable[[Instruction], Step]]:
    """Register what makes steps of instructions."""

    def register(maker: Callable[[Instruction], Step]) -> Callable[[Instruction], Step]:
        for name in names:
            HANDLERS[name] = maker
        return maker

    return register


def step_of(instruction: Instruction) -> Step:
    """Return what an instruction does.

    Raises:
        Unknown: it is not known.
    """
    maker = HANDLERS.get(instruction.name)
    if maker is None:
        raise instruction.unknown()
    step = maker(instruction)
    if instruction.guard is None or instruction.name == "bra":
        return step
    return _guarded(step, reader(instruction.guard, "pred"))


def _guarded(step: Step, guard: Read) -> Step:
    def run(machine: Machine) -> Any:
        before = machine.active
        active = before & guard(machine)
        if not active.any():
            return None
        full = machine.full
        machine.active, machine.full = active, full and bool(active.all())
        left = step(machine)
        if left:
            rest = before & ~active
            if rest.any():
                machine.go(machine.here + 1, rest)
            return True
        machine.active, machine.full = before, full
        return None

    return run


def type_of(instruction: Instruction) -> str:
    """Return the type that ends a mnemonic.

    Raises:
        Unknown: it is none.
    """
    if not instruction.parts or instruction.parts[-1] not in DTYPES:
        raise instruction.unknown()
    return instruction.parts[-1]


def reader(operand: Operand, kind: str) -> Read:
    """Return what reads an operand as a type."""
    dtype = DTYPES[kind]
    match operand:
        case Register(index, bits):
            return _register_reader(index, bits, dtype)
        case Inverted(Register(index, _)):
            return lambda machine: ~machine.regs[index]
        case Number():
            value = _constant(operand, dtype)
            return lambda _: value
        case Symbol(name) if name.startswith("%"):
            return lambda machine: special(machine, name).astype(dtype)
        case Symbol("WARP_SZ"):
            return lambda _: np.array([WARP], dtype)
        case Symbol(name):
            return lambda machine: machine.symbol(name).astype(dtype)
        case _:
            raise Unknown(f"such an operand: {operand}")


def _register_reader(index: int, bits: int, dtype: Any) -> Read:
    width = 8 * dtype.itemsize
    if bits == 1 or dtype.kind == "b":
        return lambda machine: machine.regs[index]
    if bits == width:
        if dtype.kind == "u":
            return lambda machine: machine.regs[index]
        return lambda machine: machine.regs[index].view(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return lambda machine: machine.regs[index].astype(unsigned).view(dtype)


def _constant(number: Number, dtype: Any) -> Array:
    if number.float_bits:
        raw = np.array([number.value], f"u{number.float_bits // 8}").view(f"f{number.float_bits // 8}")
        return raw.view(dtype) if raw.dtype.itemsize == dtype.itemsize else raw.astype(dtype)
    if dtype.kind == "b":
        return np.array([number.value != 0])
    bits = 8 * dtype.itemsize
    return np.array([number.value % (1 << bits)], f"u{bits // 8}").view(dtype)


def special(machine: Machine, name: str) -> Array:
    """Return a special register.

    Raises:
        Unknown: it is not known.
    """
    grid = machine.grid
    first = {
        "%tid.x": machine.thread,
        "%ctaid.x": machine.program + grid.first,
        "%laneid": machine.thread % WARP,
        "%warpid": machine.thread // WARP,
        "%cluster_ctarank": machine.program % grid.cluster,
        "%cluster_ctaid.x": machine.program % grid.cluster,
        "%clusterid.x": (machine.program + grid.first) // grid.cluster,
    }
    if name in first:
        return first[name]
    counts = {
        "%ntid.x": grid.threads,
        "%nctaid.x": grid.programs,
        "%cluster_nctarank": grid.cluster,
        "%nclusterid.x": grid.programs // grid.cluster,
        **dict.fromkeys(("%ntid.y", "%ntid.z", "%nctaid.y", "%nctaid.z"), 1),
        **dict.fromkeys(("%tid.y", "%tid.z", "%ctaid.y", "%ctaid.z"), 0),
    }
    if name not in counts:
        raise Unknown(name)
    return np.full(machine.lanes, counts[name])


Write = Callable[[Machine, Array], None]


def writer(operand: Operand) -> Write:
    """Return what writes a result of any type to an operand; `_` takes it away."""
    match operand:
        case Register(index, 1):
            return lambda machine, value: machine.write(index, value)
        case Register(index, bits):
            unsigned = np.dtype(f"u{bits // 8}")
            return lambda machine, value: machine.write(index, bits_of(value, unsigned))
        case Symbol("_"):
            return lambda _machine, _value: None
        case _:
            raise Unknown(f"a result in {operand}")


def bits_of(value: Array, unsigned: Any) -> Array:
    """Return the bits of values in registers of a width; narrower integers are extended by their sign."""
    if value.dtype == unsigned:
        return value
    if value.dtype.itemsize == unsigned.itemsize:
        return value.view(unsigned)
    if value.dtype.kind == "f":
        value = value.view(f"u{value.dtype.itemsize}")
    return value.astype(unsigned)


def items(operand: Operand) -> tuple[Operand, ...]:
    """Return the parts of a vector, or the operand alone."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def pure(instruction: Instruction, kinds: list[str], compute: Compute) -> Step:
    """Return the step of an instruction that computes its first operand from the others.

    Args:
        instruction: the instruction.
        kinds: the types of its sources.
        compute: what it computes of them.
    """
    target, *sources = instruction.operands
    if len(sources) != len(kinds):
        raise instruction.unknown()
    write = writer(target)
    reads = [reader(source, kind) for source, kind in zip(sources, kinds, strict=True)]
    apply = cast(Callable[..., Array], compute)
    if len(reads) == 1:
        (one,) = reads
        return lambda machine: write(machine, apply(one(machine)))
    if len(reads) == 2:
        one, two = reads
        return lambda machine: write(machine, apply(one(machine), two(machine)))
    return lambda machine: write(machine, apply(*[read(machine) for read in reads]))
