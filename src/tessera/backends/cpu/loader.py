"""Makes object code executable in this process."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import llvmlite.binding as llvm

from tessera.errors import CompilerFault
from tessera.runtime.elf import functions_of
from tessera.runtime.host import matrix_unit_granted
from tessera.runtime.once import once

_llvm: Any = llvm  # llvmlite ships no types
_numbers = itertools.count()


@once
def _jit() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return _llvm.create_lljit_compiler()


class LoadedObject:
    """Object code in memory; it stays executable while this lives.

    Args:
        code: an ELF object made by `compile_cpu` for this machine.
        symbols: the functions whose addresses may be asked for.
    """

    def __init__(self, code: bytes, symbols: tuple[str, ...]):
        builder: Any = llvm.JITLibraryBuilder()
        builder.add_object_img(code)
        builder.add_current_process()
        for symbol in symbols:
            builder.export_symbol(symbol)
        try:
            self._library: Any = builder.link(_jit(), f"tessera_{next(_numbers)}")
        except RuntimeError as error:
            raise CompilerFault(f"the object code does not link: {error}", code="link-failed") from error

    def address(self, symbol: str) -> int:
        """Return the address of a function.

        Raises:
            CompilerFault: `link-failed` when the object has no such function.
        """
        try:
            return int(self._library[symbol])
        except KeyError as error:
            raise CompilerFault(f"the object code has no function {symbol}", code="link-failed") from error


def load_object(code: bytes) -> LoadedObject:
    """Return object code made executable; all its global functions can be found.

    Args:
        code: an ELF object for this machine.
    """
    matrix_unit_granted()
    return LoadedObject(code, _functions(code))


def _functions(code: bytes) -> tuple[str, ...]:
    """Return the global functions an ELF-64 object defines, in its symbol table's order."""
    if code[:5] != b"\x7fELF\x02":
        raise CompilerFault("the object code is not a 64-bit ELF file", code="link-failed")
    try:
        return functions_of(code)
    except (struct.error, ValueError, IndexError) as error:
        raise CompilerFault(f"the object code is damaged: {error}", code="link-failed") from error
