"""Instructions of a machine that the language has no function for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike

__all__ = ["inline_asm"]


@tile_function
def inline_asm(
    *args: TileLike,
    meaning: Callable[..., Any] | None = None,
    ptx: str | None = None,
    x86_64: str | None = None,
    aarch64: str | None = None,
    effects: Literal["none", "io"] = "none",
) -> Tile:
    """Apply instructions of a machine to each element; elsewhere, and in the interpreter, a function of the language.

        @ts.function
        def sine(x):
            return ts.tile.sin(x)

        y = ts.tile.inline_asm(x, meaning=sine, ptx="sin.approx.f32 $0, $1;")

    Without effects, the result depends on the operands alone: the instructions may be moved, merged with equal ones,
    run for elements that do not count, or left out where nothing uses the result. With `effects="io"` they act, take
    scalars and give nothing: each thread of a program runs them (on CPUs, the program), in order with its accesses to
    memory, and where there is no text, nothing is done:

        ts.tile.inline_asm(500, ptx="nanosleep.u32 $1;", effects="io")

    Several instructions may stand in a text, with registers of their own in braces (PTX). Registers hold floats of 32
    and 64 bits as such, and all else as integers of the width; a number without a dtype is an i32 or f32.

    Args:
        *args: tiles and scalars of 16, 32 or 64 bits, which broadcast; `$1`, `$2`, … in the texts. A dollar is `$$`.
        meaning: a `@ts.function` of the same operands: what the instructions compute. Its result, one tile or scalar,
            gives the shape and dtype of `$0`; equal, or as near as whoever uses them accepts. None with effects.
        ptx: compile-time text for NVIDIA GPUs.
        x86_64: the same for x86-64 CPUs, in AT&T syntax: sources come first.
        aarch64: the same for 64-bit Arm CPUs. Texts for CPUs are used where a kernel is compiled on such a CPU.
        effects: compile-time; `"none"` or `"io"`.

    Returns:
        Tile or scalar, as `meaning` gives; None with effects.

    Raises:
        LanguageError: `bad-assembly` for a text that is not known at compile time, without `$0`, or with operands that
            are not there, that an assembler refuses, and for a meaning that is no `@ts.function`.
        TypeMismatchError: `dtype-mismatch` for operands or results of other widths; `shape-mismatch` where operands do
            not broadcast to the result.
    """
    ...
