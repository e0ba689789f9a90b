"""Compiles inline assembly."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.calls import inline
from tessera.frontend.convert import broadcast_to, cast_to, constant, operand
from tessera.frontend.function import DeviceFunction
from tessera.frontend.registry import compiles
from tessera.frontend.values import Value, is_number, show, wrap
from tessera.ir.tile.debug import AssemblyOp
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.types import describe, element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.numerics import dtypes
from tessera.numerics.assembly import BITS, assembly, operands_named


@compiles(tile.inline_asm)
def _inline_asm(
    b: Builder, args: tuple[Any, ...], meaning: Any, ptx: Any, x86_64: Any, aarch64: Any, effects: Any
) -> Any:
    if effects not in ("none", "io"):
        raise LanguageError(
            f"inline_asm: the effects {show(effects)}",
            code="bad-assembly",
            help='"none" for a result that depends on the operands alone, "io" for what acts',
        )
    acts = effects == "io"
    texts = {"ptx": ptx, "x86_64": x86_64, "aarch64": aarch64}
    given = {machine: text for machine, text in texts.items() if text is not None}
    for machine, text in given.items():
        _check_text(machine, text, len(args), acts)
    if acts:
        _act(b, args, given, meaning)
        return None
    if not isinstance(meaning, DeviceFunction):
        raise LanguageError(
            f"inline_asm: the meaning is {show(meaning)}",
            code="bad-assembly",
            help="pass a function decorated with @ts.function that computes what the instructions do",
        )
    ready = [_register(b, operand(b, arg, "inline_asm")) for arg in args]
    effects_before = b.effects
    result = operand(b, inline(b, meaning.function, [wrap(value) for value in ready], {}), "inline_asm: the meaning")
    if b.effects != effects_before:
        raise LanguageError(
            f"inline_asm: the meaning {meaning.function.__name__} stores, updates or prints",
            code="bad-assembly",
            help="let it compute its result alone",
        )
    last = _register(b, result)
    shape = shape_of(last.type)
    wide = [broadcast_to(b, value, shape) if shape else value for value in ready]
    if any(shape_of(value.type) != shape for value in wide):
        raise TypeMismatchError(
            f"inline_asm: a tile among the operands, and the meaning gives {show(result)}",
            code="shape-mismatch",
            help="the instructions are applied to each element: reduce the result afterwards",
        )
    return wrap(b.emit(ElementwiseOp(assembly(given), [*wide, last])).result)


def _act(b: Builder, args: tuple[Any, ...], texts: dict[str, str], meaning: Any) -> None:
    """Compile assembly that is run for what it does."""
    b.require_program("inline_asm")
    if meaning is not None:
        raise LanguageError(
            "inline_asm: assembly that acts has no meaning in the language",
            code="bad-assembly",
            help="leave it out: where there is no text, nothing is done",
        )
    if b.predicate is not None:
        raise LanguageError(
            "inline_asm: assembly that acts inside an `if` on a tile",
            code="predicated",
            help="branch on a scalar: if ts.tile.any(condition)",
        )
    ready = [_register(b, operand(b, arg, "inline_asm")) for arg in args]
    if any(shape_of(value.type) for value in ready):
        raise TypeMismatchError(
            "inline_asm: assembly that acts takes scalars", code="shape-mismatch", help="pass sizes, offsets, numbers"
        )
    b.emit(AssemblyOp(assembly(texts), ready))


def _check_text(machine: str, text: Any, count: int, acts: bool) -> None:
    if not isinstance(text, str):
        raise LanguageError(
            f"inline_asm: the text for {machine} is {show(text)}",
            code="bad-assembly",
            help="write the instructions as a constant text",
        )
    named = operands_named(text)
    if (0 in named) is acts or max(named, default=0) > count:
        raise LanguageError(
            f"inline_asm: the text for {machine} names the operands {', '.join(f'${one}' for one in sorted(named))}",
            code="bad-assembly",
            help=f"$0 is the result{' (there is none here)' * acts}, $1 to ${count} what is given",
        )


def _register(b: Builder, value: Any) -> SSAValue:
    """Return a value that a register holds; sizes and offsets count as i64."""
    if is_number(value):
        return constant(b, value, element_type(dtypes.i32 if isinstance(value, int) else dtypes.f32))
    assert isinstance(value, Value)
    ssa = value.ssa
    if element_of(ssa.type) == index:
        ssa = cast_to(b, ssa, element_type(dtypes.i64))
    dtype = dtype_of(element_of(ssa.type))
    if dtype.bits not in BITS or dtype.kind == "bool":
        raise TypeMismatchError(
            f"inline_asm: {describe(ssa.type)} has {dtype.bits} bits an element",
            code="dtype-mismatch",
            help="registers hold 16, 32 or 64: convert it with ts.tile.cast",
        )
    return ssa
