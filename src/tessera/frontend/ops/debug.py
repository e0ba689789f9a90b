"""Compiles device print and assert."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from tessera.errors import LanguageError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.constants import static_call
from tessera.frontend.convert import apply, boolean, broadcast_shapes, broadcast_to, operand
from tessera.frontend.expressions import is_runtime
from tessera.frontend.registry import compiles
from tessera.frontend.values import TensorValue, Text, Value, show, wrap
from tessera.ir.tile.debug import AssertOp, PrintOp
from tessera.ir.tile.types import shape_of


@compiles(tile.device_print)
def _print(b: Builder, values: tuple[Any, ...]) -> None:
    b.require_program("print")
    if b.predicate is not None:
        raise LanguageError(
            "print inside an `if` on a tile",
            code="predicated",
            help="print ts.tile.where(condition, x, 0), or branch on a scalar: if ts.tile.any(condition)",
        )
    text, args = list[str](), list[Value]()
    for value in values:
        pieces = value.parts if isinstance(value, Text) else (value,)
        text.append("".join(_piece(b, piece, args) for piece in pieces))
    shape = broadcast_shapes([shape_of(arg.ssa.type) for arg in args], "print")
    tiles = [broadcast_to(b, arg.ssa, shape) if shape_of(arg.ssa.type) else arg.ssa for arg in args]
    b.emit(PrintOp(" ".join(text), tiles))


def _piece(b: Builder, piece: Any, args: list[Value]) -> str:
    if is_runtime(piece):
        if isinstance(piece, TensorValue):
            raise LanguageError(
                f"print of {show(piece)}",
                code="not-a-value",
                help=f"print a slice of it: {piece.param.name}[0:8]",
            )
        args.append(operand(b, piece, "print"))
        return "{}"
    shown = static_call(b, "str()", str, piece)
    if "{}" in shown:
        raise LanguageError("print of a text with {}", code="bad-format", help="{} stands for a value; write { }")
    return shown


@compiles(tile.device_assert)
def _assert(b: Builder, condition: Any, message: Any) -> None:
    b.require_program("assert", "; ts.assume(...) checks sizes and arguments of a call")
    if not isinstance(message, str):
        raise LanguageError(
            f"the message of an assert is {show(message)}",
            code="bad-format",
            help="use a text without run-time parts",
        )
    holds = boolean(b, condition, "the condition of assert")
    if b.spec.debug:
        _check(b, holds, message)


def check(b: Builder, condition: Any, message: str) -> None:
    """Let a build with asserts check a condition."""
    if b.spec.debug:
        _check(b, boolean(b, condition, "the condition of assert"), message)


def _check(b: Builder, holds: SSAValue, message: str) -> None:
    if b.predicate is not None:
        holds = apply(b, "or", apply(b, "not", b.predicate), wrap(holds)).ssa
    b.emit(AssertOp(holds, message))
