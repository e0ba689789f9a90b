"""Inline assembly in LLVM IR."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp

from tessera.backends.llvm.emitter import Emitter
from tessera.backends.llvm.types import LLVMType
from tessera.errors import CompilerFault, LanguageError
from tessera.ir.locations import location_of
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.debug import AssemblyOp
from tessera.ir.target.types import element_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.numerics.assembly import is_assembly, renumbered, texts_of


def _first_error(message: str) -> str:
    """Return the line of a message that says what is wrong: one is repeated for each element."""
    lines = [line for line in message.splitlines() if re.search(r"\berror\b", line)]
    return re.sub(r"^.*\berror\s*: ", "", lines[0]) if lines else message


@contextmanager
def refusing_assembly(module: ModuleOp) -> Generator[bool]:
    """Say whether TIR-T has inline assembly; what an assembler refuses inside is then the user's error.

    Raises:
        LanguageError: `bad-assembly` in place of a `CompilerFault`.
    """
    found = [op for op in ops_in(module) if isinstance(op, AssemblyOp | ElementwiseOp) and is_assembly(op.fn.data)]
    try:
        yield bool(found)
    except CompilerFault as error:
        if not found:
            raise
        raise LanguageError(
            f"inline_asm: {_first_error(error.message)}",
            code="bad-assembly",
            location=location_of(found[0]),
            help="correct the instructions: operands are $0, $1, ... and a dollar is $$",
        ) from error


def emit_assembly(emitter: Emitter, op: ElementwiseOp) -> None:
    """Write the only text for each lane of each unit; the last operand just says what the result is like."""
    (text,) = texts_of(op.fn.data).values()
    types = [emitter.unit_type(arg.type) for arg in op.args]
    registers = [emitter.asm_register(dtype_of(element_of(arg.type))) for arg in op.args]
    result, (kind, held) = types[-1], registers[-1]
    constraints = ",".join(
        [f"{emitter.asm_output}{kind}", *(kind for kind, _ in registers[:-1]), *emitter.asm_clobbers]
    )

    def lane(unit: str, place: int, at: int) -> str:
        own, (_, wanted) = types[place], registers[place]
        one = emitter.ops.extract(own, unit, at)
        return f"{wanted} {one if own.element == wanted.element else emitter.reinterpret(one, scalar_of(own), wanted)}"

    units: list[str] = []
    for number in range(emitter.unit_count(op.result.type)):
        column = [emitter.units(arg)[number] for arg in op.args[:-1]]
        found = "poison"
        for at in range(result.width):
            args = ", ".join(lane(unit, place, at) for place, unit in enumerate(column))
            one = emitter.fn.assign(f'call {held} asm "{_quoted(text)}", "{constraints}"({args})')
            one = one if held.element == result.element else emitter.reinterpret(one, held, scalar_of(result))
            found = one if result.width == 1 else emitter.ops.insert(result, found, one, at)
        units.append(found)
    emitter.bind(op.result, units)


def emit_acting(emitter: Emitter, op: AssemblyOp) -> None:
    """Write a text that is run for what it does: it stays, in order with all that reads or writes memory."""
    (text,) = texts_of(op.fn.data).values()
    kinds: list[str] = []
    args: list[str] = []
    for arg in op.args:
        (kind, wanted), own = emitter.asm_register(dtype_of(arg.type)), emitter.unit_type(arg.type)
        one = emitter.unit(arg)
        one = one if own.element == wanted.element else emitter.reinterpret(one, own, wanted)
        kinds.append(kind)
        args.append(f"{wanted} {one}")
    constraints = ",".join([*kinds, "~{memory}", *emitter.asm_clobbers])
    emitter.fn.line(f'call void asm sideeffect "{_quoted(text, 1)}", "{constraints}"({", ".join(args)})')


def scalar_of(type_: LLVMType) -> LLVMType:
    """Return the type of a lane."""
    return LLVMType(type_.element)


def _quoted(text: str, first: int = 0) -> str:
    """Return a text as LLVM writes it between quotes, and numbers operands: from 0."""
    text = renumbered(text, first)
    return "".join(c if c.isprintable() and c not in '"\\' else "".join(f"\\{x:02X}" for x in c.encode()) for c in text)
